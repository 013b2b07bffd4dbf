//! A stream whose sinks bring another store for its checkpoint.

use watchkeeper_core::StoreIdentity;
use watchkeeper_core::memory::Checkpoints;
use watchkeeper_engine::checkpoint::operator::Move;

use crate::support::*;

#[test]
fn a_stream_that_is_given_another_store_does_not_begin_anew() {
    let rig = Rig::new();
    rig.append_many(3);
    let a = rig.start("a");
    rig.until("everything is committed", || rig.committed() == 3);
    a.stop(&rig);
    rig.append_many(2);

    let elsewhere = Checkpoints::new(StoreIdentity(rig.world.entropy().uuid()));
    let moved = Rig { checkpoints: elsewhere, ..rig.clone() };
    let b = moved.instance("b").stream(|settings| settings.start = watchkeeper_core::StartAt::Now).start();
    rig.until("it is refused", || b.status().last_error.is_some());
    let told = b.status().last_error.unwrap_or_default();
    assert!(told.contains("began in another one"), "{told}");
    rig.run_for(60 * SECOND);
    assert_eq!((rig.delivered(), moved.checkpoint().and_then(|it| it.position)), (vec![1, 2, 3], None));

    // Somebody who knows where it stood says so.
    let position = rig.checkpoint().and_then(|checkpoint| checkpoint.position).expect("it stood somewhere");
    moved.perform(Move::Set(position));
    rig.until("it goes on there", || moved.committed() == 5);
    assert_eq!(rig.delivered(), [1, 2, 3, 4, 5]);
}
