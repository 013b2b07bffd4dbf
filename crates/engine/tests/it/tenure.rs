//! One period of holding, on its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use watchkeeper_core::{Epoch, ErrorKind, Grant, LeaseKey, Moment};
use watchkeeper_engine::tenure::{Loss, Tenure};
use watchkeeper_testkit::World;

use crate::support::*;

const ACTING_TIME: Duration = Duration::from_secs(4);

fn tenure(world: &World, sent: Moment) -> Tenure {
    let grant = Grant { key: LeaseKey::new("k"), tenure: world.entropy().tenure(), epoch: Epoch(1) };
    Tenure::new(grant, world.clock(), sent, ACTING_TIME)
}

#[test]
fn it_is_over_at_its_deadline_although_nobody_said_so() {
    let world = World::new(1);
    let tenure = tenure(&world, world.now());
    world.run_for(ACTING_TIME - MILLI).unwrap();
    assert_eq!(tenure.loss(), None);
    world.run_for(MILLI).unwrap();
    assert_eq!(tenure.loss(), Some(Loss::Deadline));
    assert_eq!(tenure.over().now_or_never(), Some(Loss::Deadline), "and whoever waits is told");
}

#[test]
fn a_renewal_counts_from_when_it_was_sent_and_never_shortens() {
    let world = World::new(1);
    let start = world.now();
    let tenure = tenure(&world, start);
    world.run_for(3 * SECOND).unwrap();
    tenure.extend(start + SECOND, ACTING_TIME);
    assert_eq!(tenure.deadline(), start + SECOND + ACTING_TIME);
    tenure.extend(start, ACTING_TIME);
    assert_eq!(tenure.deadline(), start + SECOND + ACTING_TIME, "an answer that was overtaken by a later one");
}

#[test]
fn a_renewal_after_the_deadline_does_not_revive() {
    let world = World::new(1);
    let tenure = tenure(&world, world.now());
    world.run_for(ACTING_TIME).unwrap();
    tenure.extend(world.now(), ACTING_TIME);
    assert_eq!(tenure.loss(), Some(Loss::Deadline));
    world.run_for(SECOND).unwrap();
    tenure.extend(world.now(), 100 * ACTING_TIME);
    assert!(tenure.cx().check().is_err(), "no call is begun on its behalf");
}

#[test]
fn the_first_reason_stays() {
    let world = World::new(1);
    let tenure = tenure(&world, world.now());
    tenure.end(Loss::Fenced);
    tenure.end(Loss::Released);
    world.run_for(2 * ACTING_TIME).unwrap();
    assert_eq!(tenure.loss(), Some(Loss::Fenced));
}

#[test]
fn a_call_is_not_begun_after_the_deadline_and_abandoned_at_the_end() {
    let world = World::new(1);
    let tenure = Arc::new(tenure(&world, world.now()));
    let call_progress = tenure.progress().call_progress("test");
    let call = tenure.call(&call_progress, 60 * SECOND);
    let end = Arc::clone(&tenure);
    let clock = world.clock();
    world.spawn("keeper", async move {
        clock.sleep_until(clock.now() + SECOND).await;
        end.end(Loss::Taken);
    });
    let began = world.now();
    let abandoned = world
        .block_on(
            call.run(&watchkeeper_core::Component::Source, std::future::pending::<watchkeeper_core::Result<()>>()),
        )
        .unwrap();
    assert_eq!(abandoned.unwrap_err().kind(), ErrorKind::Unknown, "it may still take effect");
    assert_eq!(world.now(), began + SECOND);
    let mut begun = false;
    let answer = world.block_on(call.run(&watchkeeper_core::Component::Source, async {
        begun = true;
        Ok(())
    }));
    assert_eq!((answer.unwrap().unwrap_err().kind(), begun), (ErrorKind::Unavailable, false));
}

#[test]
fn a_call_is_bounded_by_its_own_time_out_too() {
    let world = World::new(1);
    let tenure = tenure(&world, world.now());
    let call_progress = tenure.progress().call_progress("test");
    let call = tenure.call(&call_progress, SECOND);
    let began = world.now();
    let answer = world
        .block_on(
            call.run(&watchkeeper_core::Component::Source, std::future::pending::<watchkeeper_core::Result<()>>()),
        )
        .unwrap();
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(world.now(), began + SECOND);
    assert_eq!(tenure.loss(), None);
}

#[test]
fn waiting_ends_with_the_tenure() {
    let world = World::new(1);
    let tenure = tenure(&world, world.now());
    tenure.end(Loss::Stalled);
    let began = world.now();
    world.block_on(tenure.sleep(3600 * SECOND)).unwrap();
    assert_eq!(world.now(), began);
    assert_eq!(world.block_on(tenure.until_over(std::future::pending::<()>())).unwrap(), None);
}
