//! Checkpoints in MongoDB that are removed or damaged.

use futures_util::TryStreamExt;
use watchkeeper::mongodb::mongodb::bson::{Document, doc};

use super::SourceFixture;
use crate::losing::Case;

/// A stream of which numbers can be ordered, and what is done to its checkpoint.
struct Place(SourceFixture);

impl Place {
    fn new() -> Self {
        let fixture = SourceFixture::new();
        fixture.configure(&fixture.orders(""));
        Self(fixture)
    }

    /// With a mirror in the database of the store, which commits the checkpoint with its documents.
    fn with_copies() -> Self {
        let fixture = SourceFixture::new();
        fixture.workspace.write(
            "watchkeeper.toml",
            &format!(
                "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"30s\"\n\n[[stream]]\nname = \"orders\"\n\
                 checkpoint = {{ every = \"50ms\" }}\n{source}\n[[stream.sink]]\ntype = \"mongodb\"\nurl = \"{url}\"\n\
                 collection = \"copies\"\nmode = \"mirror\"\n",
                url = fixture.url,
                source = fixture.orders(", full_document = \"updateLookup\"")
            ),
        );
        Self(fixture)
    }

    /// The numbers of the orders that are copied.
    fn copies(&self) -> Vec<u64> {
        let copies = self.0.database.collection::<Document>("copies");
        let items = self.0.block_on(async {
            let found = copies.find(doc! {}).await.expect("it can be read");
            found.try_collect::<Vec<_>>().await.expect("it can be read")
        });
        let number = |copy: &Document| copy.get_str("item").expect("it is copied").parse().expect("a number");
        let mut numbers: Vec<u64> = items.iter().map(number).collect();
        numbers.sort_unstable();
        numbers
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
    for (change, reported) in [
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
        let case = Case { workspace: &place.0.workspace, damage: &|| place.damage(change.as_ref()), reported };
        case.halts_until_a_person_decides(|ids| place.order(ids), || place.delivered());
    }
}

#[test]
fn a_checkpoint_in_mongodb_that_is_removed_under_a_running_stream_is_reported_as_that() {
    let place = Place::new();
    let case = Case { workspace: &place.0.workspace, damage: &|| place.damage(None), reported: "was removed" };
    case.halts_a_running_stream(|ids| place.order(ids), || place.delivered());
}

#[test]
fn a_checkpoint_that_is_removed_under_a_running_transactional_sink_of_mongodb_is_reported_as_that() {
    // Changes and checkpoint in one transaction.
    let place = Place::with_copies();
    let case = Case { workspace: &place.0.workspace, damage: &|| place.damage(None), reported: "was removed" };
    case.halts_a_running_stream(|ids| place.order(ids), || place.copies());
    assert_eq!(place.copies(), [0, 1, 2, 3, 4, 5], "each once");
}
