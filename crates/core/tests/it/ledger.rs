//! Changes as the ledger keeps them: everything that is needed to deliver them again.

use std::sync::Arc;

use watchkeeper_core::ledger::BODY_BYTES_MAX;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{Change, LedgerEntry, LedgerKind, Operation, RowParts, StoredChange};

use crate::support::{builder, change, end, parts};

fn through_serde(stored: &StoredChange) -> StoredChange {
    let text = serde_json::to_string(stored).expect("a stored change can be written");
    serde_json::from_str(&text).expect("and read")
}

fn again(stored: &StoredChange) -> Change {
    Change::new(Arc::new(stored.to_batch(Arc::new(JsonPayload)).expect("the body was kept")), 0)
}

#[test]
fn a_kept_change_is_delivered_again_as_it_was() {
    let rows = [
        RowParts { body: br#"{"a":"\u00e9"}"#, ..parts() },
        RowParts { operation: Operation::Truncate, key: None, body: b"", ..parts() },
        RowParts { operation: Operation::Delete, key: Some(&[0, 255]), half: 1, position: &[0, 1, 255], ..parts() },
    ];
    for original in rows.map(change) {
        let stored = StoredChange::keep(&original);
        assert_eq!(through_serde(&stored), stored);
        let again = again(&through_serde(&stored));
        assert_eq!(again.id().to_string(), original.id().to_string());
        assert_eq!(again.operation(), original.operation());
        assert_eq!(again.namespace(), original.namespace());
        assert_eq!(again.key(), original.key());
        assert_eq!(again.body(), original.body());
        assert_eq!((again.time(), again.version()), (original.time(), original.version()));
        assert_eq!(again.position(), original.position());
        assert_eq!(again.batch().end, original.position());
        assert_eq!(again.batch().rows()[0].key_hash, original.batch().rows()[0].key_hash);
    }
}

#[test]
fn what_positions_share_is_kept_and_is_no_part_of_the_id() {
    let mut builder = builder().share(vec![5, 6].into());
    builder.push(RowParts { position: &[7, 8], ..parts() });
    let original = Change::new(Arc::new(builder.finish(end())), 0);
    assert_eq!(original.position().to_string(), "05060708");
    assert_eq!(original.id().to_string(), "log:0708");
    let again = again(&through_serde(&StoredChange::keep(&original)));
    assert_eq!(again.position(), original.position());
    assert_eq!(again.id().to_string(), original.id().to_string());
}

#[test]
fn a_body_over_one_mebibyte_is_read_again_instead_of_kept() {
    let body = vec![b' '; BODY_BYTES_MAX + 1];
    let (largest, too_large) = (&body[..BODY_BYTES_MAX], &body[..]);
    let kept = StoredChange::keep(&change(RowParts { body: largest, ..parts() }));
    assert_eq!(kept.body.as_deref(), Some(largest));

    let stored = StoredChange::keep(&change(RowParts { body: too_large, ..parts() }));
    assert_eq!(stored.body, None);
    assert!(stored.to_batch(Arc::new(JsonPayload)).is_none());
    assert_eq!(stored.position.to_string(), "07", "the position tells where to read it again");
}

#[test]
fn an_entry_survives_serde() {
    let stored = StoredChange::keep(&change(parts()));
    let letter = LedgerEntry {
        kind: LedgerKind::DeadLetter,
        sink: "search".to_owned(),
        change_id: "log:07".to_owned(),
        cause: "mapping".to_owned(),
        before: Some(end()),
        change: Some(stored),
    };
    let text = serde_json::to_string(&letter).expect("an entry can be written");
    assert!(text.starts_with(r#"{"kind":"dead-letter","sink":"search","change_id":"log:07""#), "{text}");
    assert_eq!(serde_json::from_str::<LedgerEntry>(&text).expect("and read"), letter);
}

#[test]
fn only_letters_park_their_key() {
    let kinds = [LedgerKind::DeadLetter, LedgerKind::Parked, LedgerKind::Skipped, LedgerKind::Gap];
    assert_eq!(kinds.map(LedgerKind::is_letter), [true, true, false, false]);
}
