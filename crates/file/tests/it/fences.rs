//! Who may write: a stale writer is refused, whatever made it stale.

use std::fs::File;
use std::time::Duration;

use watchkeeper_core::{ErrorKind, LeaseKey, SinkContext, TenureId};

use crate::support::{Folder, block_on, context, cx, open, open_as, put, sink, write};

#[test]
fn a_stale_epoch_can_neither_open_nor_write() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        let old = open(&sink, 4).await;
        put(&*old, &[1]).await.expect("it is written");
        write(&*old, &cx(), 0, &[2]).await.expect("it is accepted");
        let new = open(&sink, 5).await;
        let refused = old.flush(&cx()).await.expect_err("a newer epoch has opened");
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        let write_after = write(&*old, &cx(), 0, &[3]).await.expect_err("it is known to be fenced");
        assert_eq!(write_after.kind(), ErrorKind::Fenced);
        let late = open_as(&sink, &cx(), &context(4)).await.expect_err("a newer epoch has opened");
        assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
        put(&*new, &[4]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [1, 4]);
}

#[test]
fn a_second_tenure_of_one_epoch_is_refused() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        open(&sink, 1).await;
        let mut other = context(1);
        other.grant.tenure = TenureId(uuid::Uuid::from_u128(99));
        let refused = open_as(&sink, &cx(), &other).await.expect_err("an epoch has one tenure");
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert!(refused.to_string().contains("out.mark"), "{refused}");
    });
}

#[test]
fn a_writer_that_its_own_tenure_replaced_writes_nothing_more() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        let first = open(&sink, 1).await;
        write(&*first, &cx(), 0, &[1]).await.expect("it is accepted");
        let second = open(&sink, 1).await;
        assert_eq!(first.flush(&cx()).await.expect_err("it was replaced").kind(), ErrorKind::Fenced);
        put(&*second, &[2]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [2]);
}

#[test]
fn a_new_layout_begins_its_epochs_anew_and_the_old_keys_never_come_back() {
    let folder = Folder::new();
    let of_layout = |layout: u32, epoch| {
        let mut context = context(epoch);
        context.grant.key = LeaseKey::new(format!("shop/orders/{layout}/0"));
        context
    };
    block_on(async {
        let sink = sink(folder.settings());
        let old = open_as(&sink, &cx(), &of_layout(0, 7)).await.expect("the sink opens");
        let new = open_as(&sink, &cx(), &of_layout(1, 1)).await.expect("a new key opens");
        assert_eq!(put(&*old, &[1]).await.expect_err("it was replaced").kind(), ErrorKind::Fenced);
        let back = open_as(&sink, &cx(), &of_layout(0, 8)).await.expect_err("its layout is past");
        assert_eq!(back.kind(), ErrorKind::Fenced);
        put(&*new, &[2]).await.expect("it is written");
    });
    assert_eq!(folder.numbers(), [2]);
}

#[test]
fn two_sinks_cannot_share_files_but_two_partitions_have_their_own() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        put(&*open(&sink, 1).await, &[1]).await.expect("it is written");
        let other = SinkContext { stream: "customers".to_owned(), ..context(9) };
        let refused = open_as(&sink, &cx(), &other).await.expect_err("the files are another stream's");
        assert_eq!(refused.kind(), ErrorKind::Config);
        assert!(refused.to_string().contains("belong to stream \"orders\""), "{refused}");
        let second = SinkContext { partition: 1, ..context(1) };
        put(&*open_as(&sink, &cx(), &second).await.expect("it has its own"), &[2]).await.expect("it is written");
    });
    assert_eq!(folder.names(), ["out-000001.ndjson", "out.p1-000001.ndjson"]);
    assert_eq!(folder.read("out-000001.ndjson").lines().count(), 1);
}

#[test]
fn a_lock_that_is_not_given_back_is_reported_with_its_holder() {
    let folder = Folder::new();
    block_on(async {
        let sink = sink(folder.settings());
        let writer = open(&sink, 1).await;
        let held = File::open(folder.file("out.lock")).expect("the lock is there");
        held.lock().expect("nobody has it");
        let soon = cx().within(Duration::from_millis(100));
        let refused = open_as(&sink, &soon, &context(2)).await.expect_err("the lock is held");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains(&format!("by process {}", std::process::id())), "{refused}");
        held.unlock().expect("it is ours");
        put(&*writer, &[1]).await.expect("nobody newer has opened");
    });
    assert_eq!(folder.numbers(), [1]);
}

#[test]
fn a_mark_that_is_none_asks_for_a_person() {
    let folder = Folder::new();
    folder.put("out.mark", "{\"epoch\":");
    let refused = block_on(async { open_as(&sink(folder.settings()), &cx(), &context(1)).await });
    assert_eq!(refused.expect_err("it is torn").kind(), ErrorKind::Corrupt);
}
