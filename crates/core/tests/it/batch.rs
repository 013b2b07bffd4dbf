//! Batches: ranges in shared buffers, ids that do not depend on where a batch ends.

use std::sync::Arc;

use bytes::Bytes;
use watchkeeper_core::change::{Span, key_hash_v1};
use watchkeeper_core::{Change, Operation, Position, RowParts, SourceTime, Version};

use crate::support::{batch, builder, change, end, parts};

#[test]
fn every_row_gives_back_what_it_was_built_from() {
    let batch = batch(&[
        RowParts { key: Some(b"one"), position: &[1], body: b"{\"n\":1}", ..parts() },
        RowParts { key: None, position: &[2, 2], body: b"", operation: Operation::Drop, ..parts() },
        RowParts { key: Some(b"three"), position: &[3], body: b"{}", time: SourceTime(33), ..parts() },
    ]);
    assert_eq!(batch.len(), 3);
    assert_eq!([0, 1, 2].map(|row| batch.key(row)), [Some(&b"one"[..]), None, Some(&b"three"[..])]);
    assert_eq!([0, 1, 2].map(|row| batch.body(row)), [&b"{\"n\":1}"[..], b"", b"{}"]);
    assert_eq!(batch.position(1), Position::new(vec![2, 2], Some(SourceTime(1_700_000_000_007))));
    assert_eq!(batch.position(2), Position::new(vec![3], Some(SourceTime(33))));
    assert_eq!(batch.rows()[2].key_hash, key_hash_v1(b"three"));
    assert_eq!(batch.end, end());
}

#[test]
fn a_change_shows_its_row() {
    let row = RowParts { operation: Operation::Update, ..parts() };
    let change = change(row);
    assert_eq!(change.operation(), Operation::Update);
    assert_eq!(change.namespace(), "shop.orders");
    assert_eq!(change.key(), Some(&b"k"[..]));
    assert_eq!(change.time(), SourceTime(1_700_000_000_007));
    assert_eq!(change.version(), Version { time: 3, ordinal: 4 });
    assert_eq!(change.position().to_string(), "07");
    assert_eq!((change.body(), change.row()), (&b"{}"[..], 0));
}

#[test]
fn only_a_row_without_a_key_is_a_barrier() {
    let rows = [Some(&b""[..]), None, Some(b"k")].map(|key| RowParts { key, ..parts() });
    let batch = batch(&rows);
    let barriers: Vec<bool> = batch.rows().iter().map(|row| row.is_barrier()).collect();
    assert_eq!(barriers, [false, true, false], "an empty key is a key, also that of the first row");
    assert_eq!([0, 1].map(|row| batch.key(row)), [Some(&b""[..]), None]);
}

#[test]
fn an_empty_batch_moves_only_the_position() {
    let batch = batch(&[]);
    assert!(batch.is_empty());
    assert_eq!(batch.end, end());
}

#[test]
fn bodies_in_place_are_not_copied() {
    let received = Bytes::from_static(b"..{\"n\":1}..{\"n\":2}");
    let mut builder = builder();
    builder.push_in_place(parts(), 2..9);
    builder.push_in_place(parts(), 11..18);
    let batch = builder.finish_over(received.clone(), end());
    assert_eq!([batch.body(0), batch.body(1)], [&b"{\"n\":1}"[..], b"{\"n\":2}"]);
    assert_eq!(batch.body_bytes(1).as_ptr(), received[11..].as_ptr(), "the body shares the source's buffer");
}

#[test]
fn a_namespace_has_one_number_per_batch() {
    let mut builder = builder();
    let users = builder.namespace("shop.users");
    assert_eq!((users, builder.namespace("shop.orders"), builder.namespace("shop.users")), (1, 0, 1));
    builder.push(RowParts { namespace: users, ..parts() });
    builder.push(parts());
    let batch = builder.finish(end());
    assert_eq!([batch.namespace(0), batch.namespace(1)].map(|name| &**name), ["shop.users", "shop.orders"]);
}

#[test]
fn ids_do_not_depend_on_where_a_batch_ends() {
    let positions: Vec<[u8; 2]> = (0..6).map(|number| [1, number]).collect();
    let rows: Vec<RowParts<'_>> = positions.iter().map(|position| RowParts { position, ..parts() }).collect();
    let ids_in_batches_of = |size: usize| -> Vec<String> {
        let batches: Vec<_> = rows.chunks(size).map(|rows| Arc::new(batch(rows))).collect();
        let changes =
            batches.iter().flat_map(|batch| (0..batch.len()).map(|row| Change::new(batch.clone(), row as u32)));
        changes.map(|change| change.id().to_string()).collect()
    };
    let expected = ["log:0100", "log:0101", "log:0102", "log:0103", "log:0104", "log:0105"];
    for size in 1..=6 {
        assert_eq!(ids_in_batches_of(size), expected, "in batches of {size}");
    }
}

#[test]
fn the_builder_counts_what_the_batch_will_hold() {
    let mut builder = builder();
    assert!(builder.is_empty());
    let before = builder.size();
    builder.push(parts());
    assert_eq!((builder.len(), builder.size() - before), (1, 4), "a key of 1, a position of 1 and a body of 2 bytes");
    let built = builder.size();
    assert!(builder.finish(end()).size() > built, "the batch counts its rows too");
}

/// Partitions of two program versions must agree, so these numbers may never change. The first is the
/// published value of XXH3-64 for no input.
#[test]
fn the_key_hash_is_fixed_for_ever() {
    let long: Vec<u8> = (0..=255).chain(0..=255).collect();
    for (key, hash) in [
        (&b""[..], 0x2d06_8005_38d3_94c2_u64),
        (b"1", 0x65cd_2502_8f98_f158),
        (b"order-1", 0x5fc4_6503_368e_2876),
        (&long, 0x1059_105a_d19b_fa09),
    ] {
        assert_eq!(key_hash_v1(key), hash, "{:#018x} for {} bytes", key_hash_v1(key), key.len());
    }
}

#[test]
#[should_panic(expected = "a batch is limited far below 4 GiB")]
fn a_range_beyond_4_gib_is_refused() {
    let _ = Span::new(0..usize::try_from(u64::from(u32::MAX) + 1).expect("64 bits"));
}
