//! Tasks: joined, aborted, panicking, apart.

use std::any::Any;
use std::future::pending;

use futures_util::poll;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{ErrorKind, Task, TokioSpawn};

#[tokio::test]
async fn a_task_answers_once() {
    let mut task = Task::spawn(&TokioSpawn::current(), "sum", async { 3 + 4 });
    assert!(!task.is_joined());
    assert_eq!(task.join().await.ok(), Some(7));
    assert!(task.is_joined());
    let again = task.join().await.expect_err("the answer was taken");
    assert_eq!((again.kind(), again.message()), (ErrorKind::Internal, "the task was joined before"));
}

#[tokio::test]
async fn dropping_a_task_aborts_it() {
    let (guard, mut dropped) = oneshot::channel::<()>();
    let (begin, begun) = oneshot::channel();
    let task = Task::spawn(&TokioSpawn::current(), "endless", async move {
        let _guard = guard;
        begin.send(()).expect("the test waits");
        pending::<()>().await;
    });
    begun.await.expect("the task begins");
    drop(task);
    // The runtime has one thread: after a turn of it the abort has been seen.
    tokio::task::yield_now().await;
    assert_eq!(dropped.try_recv(), Err(TryRecvError::Closed), "the job and all it held are gone");
}

#[tokio::test]
async fn dropping_the_wait_leaves_the_task_running() {
    let (go, gate) = oneshot::channel();
    let mut task = Task::spawn(&TokioSpawn::current(), "patient", gate);
    {
        let wait = task.join();
        assert!(poll!(Box::pin(wait)).is_pending());
    }
    go.send(5).expect("the task is still there");
    assert_eq!(task.join().await.ok(), Some(Ok(5)));
}

async fn failure(mut task: Task<()>) -> (ErrorKind, String) {
    let error = task.join().await.expect_err("it panicked");
    (error.kind(), error.message().to_owned())
}

#[tokio::test]
async fn a_panic_becomes_an_error_with_its_text() {
    let spawn = TokioSpawn::current();
    let literal = Task::spawn(&spawn, "lane", async { panic!("no such row") });
    assert_eq!(failure(literal).await, (ErrorKind::Internal, "lane panicked: no such row".to_owned()));

    let row = 7;
    let formatted = Task::spawn(&spawn, "lane", async move { panic!("no row {row}") });
    assert_eq!(failure(formatted).await, (ErrorKind::Internal, "lane panicked: no row 7".to_owned()));

    let silent = Task::spawn(&spawn, "lane", async { std::panic::panic_any(7) });
    assert_eq!(failure(silent).await, (ErrorKind::Internal, "lane panicked: without a message".to_owned()));
}

#[test]
fn the_text_of_a_panic_is_found_through_its_box() {
    let panic: Box<dyn Any + Send> = Box::new("at sea");
    assert_eq!([panic_text(&panic), panic_text(&*panic)], ["at sea", "at sea"]);
}

#[tokio::test]
async fn a_task_apart_has_a_thread_and_a_runtime_of_its_own() {
    let here = std::thread::current().id();
    let mut task = Task::spawn_apart(&TokioSpawn::current(), "keeper", move || async move {
        // Needs the timer of a runtime.
        tokio::time::sleep(std::time::Duration::ZERO).await;
        let thread = std::thread::current();
        (thread.name().map(str::to_owned), thread.id() != here)
    })
    .expect("a thread can be started");
    assert_eq!(task.join().await.ok(), Some((Some("keeper".to_owned()), true)));
}

#[tokio::test]
async fn a_task_apart_panics_alone() {
    let task = Task::spawn_apart(&TokioSpawn::current(), "keeper", || async { panic!("at sea") });
    let (kind, message) = failure(task.expect("a thread can be started")).await;
    assert_eq!((kind, message.as_str()), (ErrorKind::Internal, "keeper panicked: at sea"));
}
