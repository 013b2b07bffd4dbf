//! The context of a call: what may still begin, and what is abandoned.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Cx, Error, ErrorKind, Moment, Result};

use crate::support::ManualClock;

const SECOND: Duration = Duration::from_secs(1);

fn context() -> (ManualClock, Cx) {
    let clock = ManualClock::at(1_000);
    (clock.clone(), Cx::new(Arc::new(clock)))
}

fn kind<T>(answer: Poll<Result<T>>) -> Option<ErrorKind> {
    match answer {
        Poll::Ready(Err(error)) => Some(error.kind()),
        Poll::Ready(Ok(_)) | Poll::Pending => None,
    }
}

#[test]
fn without_a_deadline_there_is_always_time() {
    let (clock, cx) = context();
    clock.advance(SECOND * 1_000_000);
    assert_eq!((cx.deadline(), cx.remaining()), (None, None));
    assert!(cx.check().is_ok());
}

#[test]
fn the_nearest_of_nested_time_outs_counts() {
    let (clock, cx) = context();
    let outer = cx.within(SECOND * 2);
    assert_eq!(outer.within(SECOND * 5).remaining(), Some(SECOND * 2));
    assert_eq!(outer.within(SECOND).remaining(), Some(SECOND));
    clock.advance(SECOND);
    assert_eq!(outer.remaining(), Some(SECOND));
    assert_eq!(cx.remaining(), None, "the context itself is unchanged");
}

#[test]
fn a_lease_moves_the_deadline_with_every_renewal() {
    let (clock, cx) = context();
    let lease = Arc::new(AtomicU64::new((cx.now() + SECOND).nanos()));
    let bound = cx.within(SECOND * 4).bound_to(Arc::clone(&lease), CancellationToken::new());
    assert_eq!(bound.remaining(), Some(SECOND), "the lease is nearer");

    lease.store((cx.now() + SECOND * 3).nanos(), Ordering::Release);
    assert_eq!(bound.remaining(), Some(SECOND * 3), "renewed");
    lease.store((cx.now() + SECOND * 9).nanos(), Ordering::Release);
    assert_eq!(bound.remaining(), Some(SECOND * 4), "the time-out is nearer");

    lease.store(cx.now().nanos(), Ordering::Release);
    assert_eq!(bound.check().map_err(|error| error.kind()), Err(ErrorKind::Unavailable));
    clock.advance(SECOND);
    assert_eq!(bound.remaining(), Some(Duration::ZERO));
}

#[tokio::test]
async fn a_call_is_not_begun_after_the_deadline() {
    let (clock, cx) = context();
    let cx = cx.within(SECOND);
    clock.advance(SECOND);
    let mut begun = false;
    let answer = cx
        .run(async {
            begun = true;
            Ok(())
        })
        .await;
    assert_eq!(answer.map_err(|error| error.kind()), Err(ErrorKind::Unavailable), "nothing has changed");
    assert!(!begun);
}

#[tokio::test]
async fn a_call_is_abandoned_at_the_deadline_and_may_have_happened() {
    let (clock, cx) = context();
    let cx = cx.within(SECOND);
    let mut call = pin!(cx.run(pending::<Result<()>>()));
    assert!(poll!(&mut call).is_pending());
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(poll!(&mut call).is_pending(), "one nanosecond is left");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(kind(poll!(&mut call)), Some(ErrorKind::Unknown));
}

#[tokio::test]
async fn an_answer_in_time_is_passed_on() {
    let (_clock, cx) = context();
    assert_eq!(cx.within(SECOND).run(async { Ok(7) }).await.ok(), Some(7));
    assert_eq!(cx.run(async { Ok(8) }).await.ok(), Some(8));
    let failed = cx.within(SECOND).run(async { Err::<(), _>(Error::corrupt("bad")) }).await;
    assert_eq!(failed.map_err(|error| error.kind()), Err(ErrorKind::Corrupt));
}

#[tokio::test]
async fn who_gives_up_abandons_the_call_and_begins_no_other() {
    for timeout in [None, Some(SECOND)] {
        let (_clock, cx) = context();
        let cancel = CancellationToken::new();
        let cx = cx.cancelled_by(cancel.clone());
        let cx = timeout.map_or(cx.clone(), |timeout| cx.within(timeout));
        let mut call = pin!(cx.run(pending::<Result<()>>()));
        assert!(poll!(&mut call).is_pending());
        cancel.cancel();
        assert_eq!(kind(poll!(&mut call)), Some(ErrorKind::Unknown), "it had been sent");
        let next = cx.run(async { Ok(()) }).await;
        assert_eq!(next.map_err(|error| error.kind()), Err(ErrorKind::Unavailable), "it was never sent");
        assert!(poll!(pin!(cx.cancelled())).is_ready());
    }
}

#[tokio::test]
async fn the_end_of_a_tenure_abandons_its_calls() {
    let (_clock, cx) = context();
    let over = CancellationToken::new();
    let lease = Arc::new(AtomicU64::new(Moment::from_nanos(u64::MAX).nanos()));
    let cx = cx.bound_to(lease, over.clone());
    let mut call = pin!(cx.run(pending::<Result<()>>()));
    assert!(poll!(&mut call).is_pending());
    over.cancel();
    assert_eq!(kind(poll!(&mut call)), Some(ErrorKind::Unknown));
}

#[tokio::test]
async fn a_wait_ends_in_time_or_with_the_caller() {
    let (clock, cx) = context();
    let cancel = CancellationToken::new();
    let cx = cx.cancelled_by(cancel.clone());
    let mut in_time = pin!(cx.sleep(SECOND));
    let mut given_up = pin!(cx.sleep(SECOND * 9));
    assert!(poll!(&mut in_time).is_pending() && poll!(&mut given_up).is_pending());
    clock.advance(SECOND);
    assert!(poll!(&mut in_time).is_ready());
    assert!(poll!(&mut given_up).is_pending());
    cancel.cancel();
    assert!(poll!(&mut given_up).is_ready());
}
