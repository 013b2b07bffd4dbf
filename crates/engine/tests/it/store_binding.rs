//! A stream whose sinks bring another store for its checkpoint.

use watchkeeper_core::StoreIdentity;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_engine::checkpoint::operator::Move;

use crate::support::*;

#[test]
fn a_stream_that_is_given_another_store_does_not_begin_anew() {
    let harness = Harness::new();
    harness.append_many(3);
    let a = harness.start("a");
    harness.until("everything is committed", || harness.committed() == 3);
    a.stop(&harness);
    harness.append_many(2);

    let elsewhere = Checkpoints::new(StoreIdentity(harness.world.entropy().uuid()));
    let moved = Harness { checkpoints: elsewhere, ..harness.clone() };
    let b = moved.instance("b").stream(|settings| settings.start = watchkeeper_core::StartAt::Now).start();
    harness.until("it is refused", || b.status().last_error.is_some());
    let reported = b.status().last_error.unwrap_or_default();
    assert!(reported.contains("began in another one"), "{reported}");
    harness.run_for(60 * SECOND);
    assert_eq!((harness.delivered(), moved.checkpoint().and_then(|it| it.position)), (vec![1, 2, 3], None));

    // Somebody who knows where it stood says so.
    let position = harness.checkpoint().and_then(|checkpoint| checkpoint.position).expect("it stood somewhere");
    moved.perform(Move::Set(position));
    harness.until("it goes on there", || moved.committed() == 5);
    assert_eq!(harness.delivered(), [1, 2, 3, 4, 5]);
}
