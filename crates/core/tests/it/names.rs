//! Names that are stored: a database written by one version is read by the next.

use serde::Serialize;
use serde::de::DeserializeOwned;
use watchkeeper_core::{Ending, Epoch, LeaseKey, LedgerKind, Operation, Reason, Resolution};

fn stored_as<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: T, name: &str) {
    let text = serde_json::to_string(&value).expect("it can be written");
    assert_eq!(text, format!("\"{name}\""));
    assert_eq!(serde_json::from_str::<T>(&text).expect("it can be read"), value);
}

#[test]
fn stored_names_are_fixed() {
    stored_as(LedgerKind::DeadLetter, "dead-letter");
    stored_as(LedgerKind::Parked, "parked");
    stored_as(LedgerKind::Skipped, "skipped");
    stored_as(LedgerKind::Gap, "gap");
    stored_as(Resolution::Replayed, "replayed");
    stored_as(Resolution::Purged, "purged");
    stored_as(Reason::Progress, "progress");
    stored_as(Reason::Final, "final");
    stored_as(Reason::Operator, "operator");
    stored_as(Reason::Moved, "moved");
    stored_as(Ending::Released, "released");
    stored_as(Ending::Expired, "expired");
    stored_as(Ending::Broken, "broken");
}

#[test]
fn an_operation_is_stored_under_the_name_that_events_carry() {
    use Operation::*;
    let all = [
        Insert,
        Update,
        Replace,
        Delete,
        Read,
        Truncate,
        Drop,
        Rename,
        DropDatabase,
        Invalidate,
        Create,
        CreateIndexes,
        DropIndexes,
        Modify,
        ShardCollection,
        Gap,
        Other,
    ];
    for operation in all {
        stored_as(operation, operation.as_str());
        assert_eq!(operation.to_string(), operation.as_str());
    }
}

#[test]
fn a_key_is_stored_as_its_text() {
    stored_as(LeaseKey::new("orders/1/0"), "orders/1/0");
}

#[test]
fn epochs_only_grow() {
    assert_eq!(Epoch::ZERO.next(), Epoch(1));
    assert!(Epoch(7).next() > Epoch(7));
}
