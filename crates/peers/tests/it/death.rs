use std::time::{Duration, Instant};

use rustix::process::Signal;
use watchkeeper_core::{Peers, Verdict};

use crate::support::{A_WHILE, Holder, Watching, cx, listen, peers, tenure};

/// Waits until the holder answers, so that what follows happens to a watch that stands.
async fn stands(watching: &mut Watching) {
    assert!(watching.is_open_after(A_WHILE).await, "there is a verdict on a living holder");
}

#[tokio::test]
async fn a_killed_holder_is_proved_dead_at_once() {
    let mut times = Vec::new();
    for _ in 0..3 {
        let mut holder = Holder::start();
        let mut watching = Watching::start(&holder.address, holder.tenure);
        stands(&mut watching).await;
        holder.kill();
        let killed = Instant::now();
        assert_eq!(watching.verdict().await, Verdict::Dead);
        times.push(killed.elapsed());
    }
    times.sort_unstable();
    assert!(times[1] < Duration::from_millis(50), "{times:?}");
}

#[tokio::test]
async fn a_stopped_holder_proves_nothing_until_it_is_killed() {
    let mut holder = Holder::start();
    let mut watching = Watching::start(&holder.address, holder.tenure);
    stands(&mut watching).await;
    holder.signal(Signal::STOP);
    assert!(watching.is_open_after(A_WHILE).await, "a stopped process keeps its connections");
    // Its kernel still takes connections, but nobody answers.
    let late = Watching::start(&holder.address, holder.tenure);
    assert_eq!(late.verdict().await, Verdict::Unproven);
    holder.signal(Signal::CONT);
    let mut later = Watching::start(&holder.address, holder.tenure);
    stands(&mut later).await;
    holder.signal(Signal::STOP);
    holder.kill();
    assert_eq!(watching.verdict().await, Verdict::Dead);
    assert_eq!(later.verdict().await, Verdict::Dead);
}

#[tokio::test]
async fn a_tenure_that_was_struck_is_not_answered_for_and_its_release_is_no_death() {
    let tenure = tenure();
    let (listening, address, held_tenures) = listen(tenure).await;
    let mut watching = Watching::start(&address, tenure);
    stands(&mut watching).await;
    held_tenures.remove(tenure);
    assert!(watching.is_open_after(A_WHILE).await, "the process lives, and may hold other tenures");
    assert_eq!(Watching::start(&address, tenure).verdict().await, Verdict::Unproven);
    drop(listening);
    assert_eq!(watching.verdict().await, Verdict::Unproven, "it was closed in order");
    let refused = tokio::net::TcpStream::connect(&*address.0).await.expect_err("the port was given back");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(Watching::start(&address, tenure).verdict().await, Verdict::Unproven, "it never answered here");
}

#[tokio::test]
async fn another_tenure_or_no_listener_at_all_proves_nothing() {
    let (_listening, address, _roll) = listen(tenure()).await;
    assert_eq!(Watching::start(&address, tenure()).verdict().await, Verdict::Unproven);
    for nowhere in ["127.0.0.1:1", "no such host", "256.0.0.1:80"] {
        let nowhere = watchkeeper_core::Address(nowhere.into());
        assert_eq!(Watching::start(&nowhere, tenure()).verdict().await, Verdict::Unproven);
    }
}

#[tokio::test]
async fn a_watch_ends_when_its_caller_gives_up() {
    let tenure = tenure();
    let (_listening, address, _roll) = listen(tenure).await;
    let cx = cx().within(Duration::from_millis(50));
    let error = peers().watch(&cx, &address, tenure).await.expect_err("there was no verdict in time");
    assert_eq!(error.kind(), watchkeeper_core::ErrorKind::Unknown);
}

#[test]
fn handlers_that_block_the_runtime_do_not_keep_it_from_answering() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime can be made");
    let tenure = tenure();
    let (_listening, address, _roll) = runtime.block_on(listen(tenure));
    // That runtime is not turned any more, and it has no network either.
    let watching = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let mut watching = Watching::start(&address, tenure);
            watching.is_open_after(A_WHILE).await
        })
    });
    assert!(watching.join().expect("no panic"), "it was not answered");
}
