//! Checkpoints in MongoDB that are removed or damaged.

use watchkeeper::mongodb::mongodb::bson::{Document, doc};

use super::Harbour;
use crate::losing::Case;

/// A stream of which numbers can be ordered, and what is done to its checkpoint.
struct Place(Harbour);

impl Place {
    fn new() -> Self {
        let harbour = Harbour::new();
        harbour.configure(&harbour.orders(""));
        Self(harbour)
    }

    fn order(&self, ids: std::ops::Range<u64>) {
        let items: Vec<String> = ids.map(|id| id.to_string()).collect();
        self.0.order(&items.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn delivered(&self) -> Vec<u64> {
        self.0.delivered().iter().map(|item| item.parse().expect("a number")).collect()
    }

    /// Changes the document of the checkpoint; removes it without a change.
    fn damage(&self, change: Option<&Document>) {
        let checkpoints = self.0.database.collection::<Document>("watchkeeper_checkpoints");
        self.0.block_on(async {
            match change {
                Some(change) => drop(checkpoints.update_many(doc! {}, change.clone()).await.expect("it is changed")),
                None => drop(checkpoints.delete_many(doc! {}).await.expect("it is removed")),
            }
        });
    }
}

#[test]
fn a_checkpoint_in_mongodb_that_is_missing_or_damaged_halts_its_stream() {
    for (change, told) in [
        (None, "is missing"),
        (Some(doc! { "$unset": { "checkpoint": "" } }), "is missing"),
        (Some(doc! { "$set": { "checkpoint": "garbage" } }), "cannot be read"),
        (Some(doc! { "$set": { "checkpoint.epoch": "garbage" } }), "cannot be read"),
        (Some(doc! { "$set": { "epoch": "garbage" } }), "cannot be read"),
        (Some(doc! { "$set": { "tenure": 7 } }), "cannot be read"),
        (Some(doc! { "$set": { "checkpoint.position": null } }), "has no position"),
        (Some(doc! { "$unset": { "checkpoint.position": "" } }), "has no position"),
    ] {
        let place = Place::new();
        let case = Case { desk: &place.0.desk, damage: &|| place.damage(change.as_ref()), told };
        case.halts_until_a_person_decides(|ids| place.order(ids), || place.delivered());
    }
}

#[test]
fn a_checkpoint_in_mongodb_that_is_removed_under_a_running_stream_is_told_as_that() {
    let place = Place::new();
    let case = Case { desk: &place.0.desk, damage: &|| place.damage(None), told: "was removed" };
    case.halts_a_running_stream(|ids| place.order(ids), || place.delivered());
}
