use std::time::Duration;

use watchkeeper::ListenerState::{Connecting, Initializing, Recovering, Running, Stopped};
use watchkeeper::{ListenerStateMachine, ObserverError};

use super::support::until;

fn machine() -> ListenerStateMachine {
    ListenerStateMachine::new("listener-1".to_owned())
}

#[tokio::test]
async fn test_listener_state_transitions() {
    let machine = machine();
    assert_eq!((machine.listener_id(), machine.get_state().await), ("listener-1", Initializing));
    let same = machine.clone();
    for next in [Connecting, Running, Recovering, Running, Connecting, Running, Stopped] {
        machine.transition(next).await.expect("the way is legal");
        assert_eq!(same.get_state().await, next, "a clone is the same listener");
    }
}

#[tokio::test]
async fn test_listener_state_duration_tracking() {
    let machine = machine();
    machine.transition(Connecting).await.expect("it is legal");
    let grown = until("time passes", async || {
        let duration = machine.get_state_duration().await;
        (duration > Duration::from_millis(30)).then_some(duration)
    });
    let grown = grown.await;
    assert!(machine.transition(Recovering).await.is_err());
    assert!(machine.get_state_duration().await >= grown, "a refused transition does not begin anew");
    machine.transition(Running).await.expect("it is legal");
    assert!(machine.get_state_duration().await < grown, "a transition does");
}

#[tokio::test]
async fn test_listener_invalid_transitions() {
    let ways: [&[_]; 5] = [&[], &[Connecting], &[Connecting, Running], &[Connecting, Running, Recovering], &[Stopped]];
    let legal = [
        (Initializing, Connecting),
        (Connecting, Running),
        (Running, Recovering),
        (Running, Connecting),
        (Recovering, Running),
        (Recovering, Connecting),
    ];
    for way in ways {
        for next in [Initializing, Connecting, Running, Recovering, Stopped] {
            let machine = machine();
            for step in way {
                machine.transition(*step).await.expect("the way is legal");
            }
            let before = machine.get_state().await;
            let is_legal = legal.contains(&(before, next)) || (next == Stopped && before != Stopped);
            match machine.transition(next).await {
                Ok(()) => assert!(is_legal, "{before} to {next}"),
                Err(ObserverError::InvalidTransition { listener_id, from, to }) => {
                    assert!(!is_legal, "{before} to {next}");
                    assert_eq!((listener_id.as_str(), from, to), ("listener-1", before, next));
                    assert_eq!(machine.get_state().await, before, "nothing changed");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[tokio::test]
async fn test_listener_state_recovery() {
    let machine = machine().with_max_recovery_attempts(3);
    for step in [Connecting, Running] {
        machine.transition(step).await.expect("it is legal");
    }
    for attempt in 1..=3 {
        machine.transition(Recovering).await.expect("it may recover");
        machine.transition(Running).await.expect("it recovered");
        assert_eq!(machine.recovery_attempts(), attempt);
    }
    let exhausted = machine.transition(Recovering).await;
    assert!(matches!(exhausted, Err(ObserverError::RecoveryExhausted { attempts: 3, .. })), "{exhausted:?}");
    assert_eq!(machine.get_state().await, Running, "nothing changed");
    machine.note_progress();
    machine.transition(Recovering).await.expect("it got on, so it may recover again");
    machine.transition(Connecting).await.expect("another one may try");
    assert_eq!(machine.recovery_attempts(), 0);
}
