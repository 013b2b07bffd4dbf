use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use watchkeeper_drill::{Children, Event, Order, ProcessReport, ProcessReportKind};

const SOON: Duration = Duration::from_secs(10);

/// Says a state, then repeats every order as a line, until it is told to stop.
const OBEDIENT: &str = r#"
echo '{"event":"state","stream":"orders","state":"running","epoch":7}'
while read -r order; do
  echo "heard $order"
done
exit 5
"#;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn obedient() -> Children {
    let mut children = Children::new().expect("a thread can be started");
    children.start("first", shell(OBEDIENT)).expect("there is a shell");
    children
}

fn heard(children: &mut Children) -> ProcessReport {
    children.next(SOON).expect("something is told")
}

#[test]
fn events_are_heard_and_tell_who_is_on_watch() {
    let mut children = obedient();
    assert_eq!(children.on_watch(), None, "nothing was heard yet");
    let reported = heard(&mut children);
    assert!(matches!(reported.what, ProcessReportKind::Event(Event::State { epoch: Some(7), .. })), "{reported:?}");
    assert_eq!((reported.child.as_str(), Some(reported.pid)), ("first", children.pid("first")));
    assert_eq!(children.on_watch(), Some(("first", 7)));
}

#[test]
fn orders_arrive_as_lines() {
    let mut children = obedient();
    heard(&mut children);
    children.order("first", Order::Hold { inside: true }).expect("it listens");
    let reported = heard(&mut children);
    assert_eq!(reported.what, ProcessReportKind::Line(r#"heard {"order":"hold","inside":true}"#.to_owned()));
    assert!(children.order("second", Order::Go).is_err(), "there is no second");
}

#[test]
fn a_killed_process_is_reaped_and_no_longer_on_watch() {
    let mut children = obedient();
    heard(&mut children);
    children.kill("first").expect("it is there");
    assert_eq!(children.reap("first", SOON).expect("it ends").signal(), Some(9));
    assert_eq!(heard(&mut children).what, ProcessReportKind::Ended);
    assert_eq!(children.on_watch(), None);
    assert!(children.kill("first").is_err(), "its number may belong to another by now");
}

#[test]
fn a_stopped_process_says_nothing_until_it_is_woken() {
    let mut children = obedient();
    heard(&mut children);
    children.pause("first").expect("it stops");
    children.order("first", Order::Go).expect("the pipe has room");
    assert_eq!(children.next(Duration::from_millis(50)), None, "it is stopped");
    children.wake("first").expect("it is there");
    assert!(matches!(heard(&mut children).what, ProcessReportKind::Line(_)));
}

#[test]
fn what_an_earlier_process_of_a_name_said_last_is_not_taken_for_the_new_one() {
    let mut children = obedient();
    let old = children.pid("first");
    children.start("first", shell("read -r order")).expect("there is a shell");
    let reported = heard(&mut children);
    assert_eq!(Some(reported.pid), old);
    assert_eq!(children.on_watch(), None, "the new one has said nothing");
}

#[test]
fn processes_end_with_their_owner() {
    let mut children = obedient();
    heard(&mut children);
    let pid = children.pid("first").expect("it runs");
    children.pause("first").expect("it stops");
    drop(children);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "a stopped process was left behind");
}
