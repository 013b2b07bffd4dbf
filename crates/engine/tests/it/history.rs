//! The history of checkpoints: what is kept, what it costs, what a damaged block takes with it.

use std::sync::Arc;

use bytes::Bytes;
use watchkeeper_core::memory::{RecordStore, TransactionalTable};
use watchkeeper_core::{
    Checkpoint, CheckpointWrite, Cx, Entropy, Epoch, ErrorKind, Facts, Grant, LeaseKey, Operation, Pedigree, Position,
    Reason, Records, SourceTime,
};
use watchkeeper_engine::checkpoint::history::{BLOCK_ENTRIES, CAPACITY, History, HistoryEntry};

use watchkeeper_engine::stream::key_of;

use crate::group::{Hand, block_on};
use crate::support::{Harness, SECOND};

const LOG: &str = "shop/history/orders";

fn store() -> (RecordStore, Cx) {
    let clock = Arc::new(Hand::default());
    (RecordStore::new(Arc::<Hand>::clone(&clock)), Cx::new(clock))
}

fn history(notes: &RecordStore) -> History {
    History::new(Arc::new(notes.clone()), "shop", &LeaseKey::new("orders"), CAPACITY)
}

fn checkpoint(epoch: u64, seq: u64, position: impl Into<Bytes>) -> Checkpoint {
    let tenure = Entropy::seeded(epoch).tenure();
    let write = CheckpointWrite {
        grant: Grant { key: LeaseKey::new("orders"), epoch: Epoch(epoch), tenure },
        seq,
        position: Some(Position::new(position, None)),
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts { processed_by: "a".into(), changes: seq, ..Facts::default() },
        ledger: Vec::new(),
        resolve: Vec::new(),
    };
    write.to_checkpoint()
}

fn entries(checkpoints: &[Checkpoint]) -> Vec<HistoryEntry> {
    checkpoints.iter().rev().filter_map(HistoryEntry::of).collect()
}

/// A pseudo-random checkpoint with every field at odds with the one before.
fn random(entropy: &Entropy, seq: u64) -> Checkpoint {
    let coin = || entropy.below(2) == 0;
    let bytes = |limit| (0..entropy.below(limit)).map(|_| entropy.next().to_le_bytes()[0] & 3).collect::<Vec<u8>>();
    let operations = [Operation::Insert, Operation::Delete, Operation::CreateIndexes, Operation::Other];
    let pick = usize::try_from(entropy.below(4)).unwrap();
    let number = || entropy.next() >> entropy.below(64);
    let mut checkpoint = checkpoint(7, seq, bytes(40));
    checkpoint.position = Some(Position::new(bytes(40), coin().then(|| SourceTime(number()))));
    checkpoint.pedigree = coin().then(|| Pedigree(bytes(3).into()));
    checkpoint.facts = Facts {
        last_operation: coin().then(|| operations[pick]),
        last_event_time: coin().then(|| SourceTime(number())),
        updated_at_millis: number(),
        processed_by: format!("instance-{}", entropy.below(3)),
        changes: number(),
        ..Facts::default()
    };
    checkpoint
}

#[test]
fn whatever_is_noted_is_read_back() {
    for seed in 0..100 {
        block_on(async {
            let (notes, cx) = store();
            let entropy = Entropy::seeded(seed);
            let noted: Vec<_> = (1..=entropy.below(250)).map(|seq| random(&entropy, seq)).collect();
            let mut history = history(&notes);
            for checkpoint in &noted {
                history.note(checkpoint);
                if history.due() || entropy.below(20) == 0 {
                    history.flush(&cx).await.unwrap();
                }
            }
            // Also what is still open is read, by this holder.
            assert_eq!(history.read(&cx, CAPACITY).await.unwrap(), entries(&noted), "seed {seed}");
            history.close(&cx).await.unwrap();
            let other = crate::history::history(&notes);
            assert_eq!(other.read(&cx, CAPACITY).await.unwrap(), entries(&noted), "seed {seed}");
            let newest = entries(&noted).into_iter().take(7).collect::<Vec<_>>();
            assert_eq!(other.read(&cx, 7).await.unwrap(), newest);
        });
    }
}

#[test]
fn a_commit_costs_no_record_of_its_own() {
    block_on(async {
        let (notes, cx) = store();
        let mut history = history(&notes);
        for seq in 1..BLOCK_ENTRIES as u64 {
            history.note(&checkpoint(1, seq, vec![1]));
            assert!(!history.due());
        }
        history.note(&checkpoint(1, BLOCK_ENTRIES as u64, vec![1]));
        assert!(history.due());
        history.flush(&cx).await.unwrap();
        assert!(!history.due());
        history.flush(&cx).await.unwrap();
        assert_eq!(notes.tail(&cx, LOG, 10).await.unwrap().len(), 1);
        // A checkpoint without a position, such as an early halt, is no place to go back to.
        let mut early = checkpoint(1, 101, vec![1]);
        early.position = None;
        history.note(&early);
        history.close(&cx).await.unwrap();
        assert_eq!(notes.tail(&cx, LOG, 10).await.unwrap().len(), 1);
    });
}

#[test]
fn at_least_the_capacity_and_at_most_one_block_more_is_kept() {
    block_on(async {
        let (notes, cx) = store();
        let entropy = Entropy::seeded(5);
        let mut noted = 0;
        // Tenures of any length, so blocks of any size.
        for epoch in 1..=120 {
            let mut history = history(&notes);
            for seq in 1..=entropy.below(150) + 1 {
                history.note(&checkpoint(epoch, seq, vec![1]));
                noted += 1;
                if history.due() {
                    history.flush(&cx).await.unwrap();
                }
            }
            history.close(&cx).await.unwrap();
            let kept = self::history(&notes).read(&cx, usize::MAX).await.unwrap().len();
            assert!(kept >= CAPACITY.min(noted), "epoch {epoch}: {kept} of {noted}");
            assert!(kept < CAPACITY + BLOCK_ENTRIES, "epoch {epoch}: {kept} of {noted}");
        }
        assert!(noted > 5 * CAPACITY);
    });
}

#[test]
fn a_store_that_is_down_costs_bounded_memory_and_the_newest_survive() {
    block_on(async {
        let (notes, cx) = store();
        let mut history = history(&notes);
        let noted: Vec<_> = (1..=2_500).map(|seq| checkpoint(1, seq, seq.to_be_bytes().to_vec())).collect();
        noted.iter().for_each(|checkpoint| history.note(checkpoint));
        assert_eq!(history.read(&cx, usize::MAX).await.unwrap().len(), CAPACITY);
        history.flush(&cx).await.unwrap();
        let kept = self::history(&notes).read(&cx, usize::MAX).await.unwrap();
        assert_eq!(kept, entries(&noted[1_500..]));
    });
}

#[test]
fn huge_positions_are_split_over_blocks_and_one_beyond_all_bounds_is_left_out() {
    block_on(async {
        let (notes, cx) = store();
        let entropy = Entropy::seeded(9);
        let noise = |length| (0..length).map(|_| entropy.next().to_le_bytes()[0]).collect::<Vec<u8>>();
        let mut noted: Vec<_> = (1..=60).map(|seq| checkpoint(1, seq, noise(10_000))).collect();
        noted[30] = checkpoint(1, 31, noise(100_000));
        let mut history = history(&notes);
        noted.iter().for_each(|checkpoint| history.note(checkpoint));
        history.close(&cx).await.unwrap();
        noted.remove(30);
        assert_eq!(self::history(&notes).read(&cx, CAPACITY).await.unwrap(), entries(&noted));
    });
}

#[test]
fn a_block_that_was_appended_twice_or_late_changes_nothing() {
    block_on(async {
        let (notes, cx) = store();
        let old: Vec<_> = (1..=10).map(|seq| checkpoint(1, seq, vec![1])).collect();
        let new: Vec<_> = (1..=10).map(|seq| checkpoint(2, seq, vec![2])).collect();
        let (mut slow, mut fast) = (history(&notes), history(&notes));
        old.iter().for_each(|checkpoint| slow.note(checkpoint));
        new.iter().for_each(|checkpoint| fast.note(checkpoint));
        fast.close(&cx).await.unwrap();
        slow.close(&cx).await.unwrap();
        let late = notes.tail(&cx, LOG, 1).await.unwrap().remove(0);
        notes.append(&cx, LOG, late.bytes, 100).await.unwrap();
        let expected = [entries(&new), entries(&old)].concat();
        assert_eq!(history(&notes).read(&cx, CAPACITY).await.unwrap(), expected);
    });
}

#[test]
fn a_damaged_block_is_named_and_the_others_are_read() {
    block_on(async {
        let (notes, cx) = store();
        let noted: Vec<_> = (1..=20).map(|seq| checkpoint(1, seq, seq.to_be_bytes().to_vec())).collect();
        let mut history = history(&notes);
        noted.iter().for_each(|checkpoint| history.note(checkpoint));
        history.flush(&cx).await.unwrap();
        let whole = notes.tail(&cx, LOG, 1).await.unwrap().remove(0).bytes;
        for length in 0..whole.len() {
            notes.append(&cx, LOG, whole.slice(..length), 1).await.unwrap();
            let block = notes.tail(&cx, LOG, 1).await.unwrap().remove(0).revision.0;
            notes.append(&cx, LOG, whole.clone(), 2).await.unwrap();
            let reading = self::history(&notes).inspect(&cx, CAPACITY).await.unwrap();
            assert_eq!((reading.entries, reading.damaged.len()), (entries(&noted), 1), "torn at {length}");
            assert_eq!(reading.damaged[0].kind(), ErrorKind::Corrupt);
            let reported = reading.damaged[0].to_string();
            assert!(reported.contains(&format!("block {block} of {LOG}")), "{reported}");
        }
    });
}

#[test]
fn a_flipped_byte_never_gives_wrong_entries() {
    block_on(async {
        let (notes, cx) = store();
        let noted: Vec<_> = (1..=20).map(|seq| checkpoint(1, seq, seq.to_be_bytes().to_vec())).collect();
        let mut history = history(&notes);
        noted.iter().for_each(|checkpoint| history.note(checkpoint));
        history.flush(&cx).await.unwrap();
        let whole = notes.tail(&cx, LOG, 1).await.unwrap().remove(0).bytes.to_vec();
        // The epoch and number in the header only tell doubled blocks apart.
        for at in (0..5).chain(7..whole.len()) {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x21;
            notes.append(&cx, LOG, flipped.into(), 1).await.unwrap();
            let reading = self::history(&notes).inspect(&cx, CAPACITY).await.unwrap();
            assert_eq!((reading.entries, reading.damaged.len()), (vec![], 1), "byte {at}");
        }
    });
}

/// A checkpoint as a busy collection of MongoDB gives one: 84 hexadecimal digits with the cluster
/// time, a counter, the collection and an object id.
fn mongodb(entropy: &Entropy, seq: u64) -> Checkpoint {
    let time = 1_769_076_672 + seq;
    let counter = entropy.below(400);
    let makers = ["9E2D45A1B3", "0C8F77D2E4", "5A1004D5F9", "B4C8F9E2D4"];
    let maker = makers[usize::try_from(entropy.below(4)).unwrap()];
    let id = format!("{:08X}{maker}{:06X}", time - entropy.below(3_600), entropy.below(1 << 24));
    let token = format!("82{time:08X}{counter:08X}2B022C0100296E5A1004D5F9E8B4C8F946645F{id}0004");
    assert_eq!(token.len(), 84);
    let mut checkpoint = checkpoint(12, seq, token.into_bytes());
    let millis = time * 1_000 + entropy.below(1_000);
    checkpoint.position.as_mut().unwrap().time = Some(SourceTime(time * 1_000));
    checkpoint.pedigree = Some(Pedigree(Bytes::from_static(b"rs0:65b0c0ffee65b0c0ffee65b0:shop.orders:d5f9e8b4")));
    let operations = [Operation::Insert, Operation::Update, Operation::Update, Operation::Delete];
    checkpoint.facts = Facts {
        last_operation: Some(operations[usize::try_from(entropy.below(4)).unwrap()]),
        last_event_time: Some(SourceTime(time * 1_000)),
        updated_at_millis: millis,
        processed_by: "orders-7d9c5b-x2x4z".into(),
        changes: seq * 350 + entropy.below(300),
        ..Facts::default()
    };
    checkpoint
}

fn plain_json(entry: &HistoryEntry) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    serde_json::json!({
        "position": text(&entry.position.bytes), "pedigree": entry.pedigree.as_ref().map(|pedigree| text(&pedigree.0)),
        "epoch": entry.epoch, "seq": entry.seq, "time": entry.time, "operation": entry.operation,
        "updated_at_millis": entry.updated_at_millis, "changes": entry.changes, "by": entry.by,
    })
    .to_string()
}

#[test]
fn blocks_save_at_least_seventy_percent() {
    block_on(async {
        let (notes, cx) = store();
        let entropy = Entropy::seeded(3);
        let noted: Vec<_> = (1..=1_000).map(|seq| mongodb(&entropy, seq)).collect();
        let mut history = history(&notes);
        noted.iter().for_each(|checkpoint| history.note(checkpoint));
        history.close(&cx).await.unwrap();
        let stored: usize = notes.tail(&cx, LOG, 100).await.unwrap().iter().map(|record| record.bytes.len()).sum();
        let plain: usize = entries(&noted).iter().map(|entry| plain_json(entry).len()).sum();
        let tokens: usize = noted.iter().map(|one| one.position.as_ref().unwrap().bytes.len()).sum();
        let saved = (plain - stored) * 100 / plain;
        println!(
            "1,000 checkpoints: {plain} bytes of JSON, {tokens} of tokens alone, {stored} stored: {saved} % saved"
        );
        assert!(saved >= 70, "{saved} % saved");
        assert!(stored * 100 <= tokens * 30, "not even the tokens alone shrink to 30 %: {stored} of {tokens}");
    });
}

/// The history of the stream of a harness, oldest first, as a program reads it that does not run the stream: how many changes were
/// committed, and by whom.
fn stored(harness: &Harness) -> Vec<(u64, String)> {
    let history = History::new(Arc::new(harness.notes.clone()), "shop", &key_of("shop", "orders"), CAPACITY);
    let entries = harness.block_on(history.read(&harness.cx(), usize::MAX)).unwrap();
    entries.into_iter().rev().map(|entry| (entry.changes, entry.by)).collect()
}

#[test]
fn commits_are_in_the_stored_history_after_minutes_although_no_block_is_full() {
    for (is_transactional, commits, within) in
        [(false, 12, 61 * SECOND), (true, 12, 61 * SECOND), (false, 3, 601 * SECOND), (true, 3, 601 * SECOND)]
    {
        let harness = Harness::new();
        let plan = harness.instance("a");
        let table = Arc::new(TransactionalTable::new(harness.checkpoints.clone()));
        let a = if is_transactional { plan.into_sink(table).start() } else { plan.start() };
        for changes in 1..=commits {
            harness.append(&["x"]);
            harness.until("it is committed", || harness.committed() == changes);
        }
        harness.run_for(within);
        let changes: Vec<_> = stored(&harness).into_iter().map(|(changes, _)| changes).collect();
        assert_eq!(changes, Vec::from_iter(1..=commits), "transactional: {is_transactional}");
        a.stop(&harness);
    }
}

#[test]
fn the_last_commit_of_a_holder_that_died_is_in_the_history_once() {
    let harness = Harness::new();
    let a = harness.start("a");
    for changes in 1..=3 {
        harness.append(&["x"]);
        harness.until("it is committed", || harness.committed() == changes);
    }
    a.node.kill();
    let b = harness.start("b");
    harness.append(&["y"]);
    harness.until("b goes on", || harness.committed() == 4);
    b.stop(&harness);
    assert_eq!(stored(&harness), [(3, "a".to_owned()), (4, "b".to_owned())]);
    let c = harness.start("c");
    harness.append(&["z"]);
    harness.until("c goes on", || harness.committed() == 5);
    c.stop(&harness);
    let by = [(3, "a"), (4, "b"), (5, "c")].map(|(changes, by)| (changes, by.to_owned()));
    assert_eq!(stored(&harness), by);
    // What was inherited, and is stored already, is not stored again.
    let log = "shop/history/shop/orders/0/0";
    let blocks = harness.block_on(harness.notes.tail(&harness.cx(), log, 10)).unwrap();
    assert_eq!(blocks.len(), 2);
}
