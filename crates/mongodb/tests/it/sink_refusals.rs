//! What the collections of a sink refuse, and what must not be refused.

use watchkeeper_core::{ErrorKind, Fault, Operation, Transacted};
use watchkeeper_mongodb::mongodb::bson::{DateTime, Document, Timestamp, doc};
use watchkeeper_mongodb::{Audit, Client, Mirror, Shown, View};

use crate::errors::in_turn;
use crate::sink::{INSERT, Row, SinkFixture, batch, versioned};
use crate::source::{Shop, read};
use crate::support::{Base, block_on, cx, fail, in_order};

async fn mirror(base: &Base) -> SinkFixture {
    SinkFixture::new(base, Mirror::into("copy").expect("a name")).await
}

/// Lets no two documents of a collection have the same `mail`.
async fn make_unique(client: &Client, collection: &str) {
    let index = doc! { "key": { "mail": 1 }, "name": "mail", "unique": true, "sparse": true };
    let database = client.database(&cx()).await.expect("it is open");
    let made = database.run_command(doc! { "createIndexes": collection, "indexes": [index] }).await;
    made.expect("an index can be made");
}

fn mails(copies: &[Document]) -> Vec<&str> {
    copies.iter().filter_map(|copy| copy.get_str("mail").ok()).collect()
}

const BEFORE: [Row<'_>; 2] = [(INSERT, Some("a"), r#"{"mail":"x"}"#), (INSERT, Some("b"), r#"{"mail":"y"}"#)];

/// A value that is freed is taken by a document that is written first in the order of keys, and two change their values by way of
/// a third.
const MOVES: [&[Row<'_>]; 2] = [
    &[
        (Operation::Delete, Some("b"), "{}"),
        (Operation::Update, Some("a"), r#"{"mail":"y"}"#),
        (INSERT, Some("b"), r#"{"mail":"x"}"#),
    ],
    &[
        (Operation::Update, Some("a"), r#"{"mail":"free"}"#),
        (Operation::Update, Some("b"), r#"{"mail":"y"}"#),
        (Operation::Update, Some("a"), r#"{"mail":"x"}"#),
    ],
];

#[test]
fn values_of_a_unique_index_may_move_between_documents() {
    let base = Base::new();
    block_on(async {
        let mut fixture = mirror(&base).await;
        make_unique(&fixture.client, "copy").await;
        fixture.committed(1, &BEFORE).await;
        fixture.committed(2, &[(Operation::Delete, Some("b"), "{}"), (INSERT, Some("aa"), r#"{"mail":"y"}"#)]).await;
        fixture.committed(3, &[(Operation::Delete, Some("aa"), "{}"), (INSERT, Some("b"), r#"{"mail":"y"}"#)]).await;
        for (seq, moves) in (4..).zip(MOVES) {
            fixture.committed(seq, moves).await;
        }
        assert_eq!(mails(&in_order(&fixture.client, "copy").await), ["x", "y"]);
        let taken = fixture.transact(6, &[(INSERT, Some("c"), r#"{"mail":"x"}"#)]).await.expect("the server answers");
        let Transacted::Rejected(faults) = taken else { panic!("{taken:?}") };
        assert_unique(&faults);
    });
}

fn assert_unique(faults: &[Fault]) {
    let reported = faults.first().map(|fault| fault.error.to_string()).expect("one was refused");
    assert!(reported.contains("a unique index of the target") && !reported.contains("wrote it first"), "{reported}");
}

#[test]
fn values_of_a_unique_index_may_move_between_versioned_documents() {
    let base = Base::new();
    block_on(async {
        let (client, writer) = (base.client().await, versioned(&base, "copy").await);
        make_unique(&client, "copy").await;
        let rows = [&BEFORE[..], MOVES[0], MOVES[1], &[(INSERT, Some("c"), r#"{"mail":"x"}"#)]].concat();
        let batch = batch(&rows);
        for places in [&[0, 1][..], &[2, 3, 4], &[5, 6, 7]] {
            let written = writer.write(&cx(), 0, &batch, places).await.expect("the server answers");
            assert!(written.rejected.is_empty(), "{places:?}: {written:?}");
        }
        assert_eq!(mails(&in_order(&client, "copy").await), ["x", "y"]);
        let written = writer.write(&cx(), 0, &batch, &[8]).await.expect("the server answers");
        assert_unique(&written.rejected);
    });
}

/// JSON of a document of about so many bytes.
fn large(bytes: usize) -> String {
    format!(r#"{{"x":"{}"}}"#, "a".repeat(bytes))
}

#[test]
fn only_what_is_written_has_to_fit_into_a_document() {
    let base = Base::new();
    block_on(async {
        let mut fixture = mirror(&base).await;
        let spacious = format!(r#"{{"n":1{}}}"#, " ".repeat(17 << 20));
        fixture.committed(1, &[(INSERT, Some("a"), &spacious)]).await;
        assert_eq!(in_order(&fixture.client, "copy").await.len(), 1);
        let refused = fixture.transact(2, &[(INSERT, Some("b"), &large(16 << 20))]).await.expect("the server answers");
        let Transacted::Rejected(faults) = refused else { panic!("{refused:?}") };
        assert!(faults[0].error.to_string().contains("the server takes 16 MiB"), "{faults:?}");

        let writer = versioned(&base, "other").await;
        // It would fit without its version.
        let (small, nearly) = (r#"{"n":1}"#, large((16 << 20) - 40));
        let rows =
            batch(&[(INSERT, Some("a"), &nearly), (INSERT, Some("b"), small), (Operation::Update, Some("b"), &nearly)]);
        for (place, places) in [(0, &[0, 1][..]), (2, &[2])] {
            let written = writer.write(&cx(), 0, &rows, places).await.expect("the server answers");
            assert_eq!(written.rejected.iter().map(|fault| fault.row).collect::<Vec<_>>(), [place], "{written:?}");
            let reported = written.rejected[0].error.to_string();
            assert!(
                reported.contains("larger than the 16 MiB") && reported.contains("; leave fields out"),
                "{reported}"
            );
        }
    });
}

#[test]
fn a_validator_is_reported_as_such() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let create = doc! { "create": "copy", "validator": { "n": { "$type": "string" } } };
        let database = client.database(&cx()).await.expect("it is open");
        database.run_command(create).await.expect("it is taken");
        let mut fixture = mirror(&base).await;
        let refused = fixture.transact(1, &[(INSERT, Some("a"), r#"{"n":1}"#)]).await.expect("the server answers");
        let Transacted::Rejected(faults) = refused else { panic!("{refused:?}") };
        let reported = faults[0].error.to_string();
        assert!(
            reported.contains("a validator of the target refuses") && reported.contains("; mend the validator"),
            "{reported}"
        );
    });
}

#[test]
fn a_collection_that_takes_no_transactions_is_reported_as_such() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let database = client.database(&cx()).await.expect("it is open");
        let capped = doc! { "create": "copy", "capped": true, "size": 1_000_000 };
        database.run_command(capped).await.expect("it is taken");
        let mut fixture = mirror(&base).await;
        let refused = fixture.transact(1, &[(INSERT, Some("a"), r#"{"n":1}"#)]).await.expect("the server answers");
        let Transacted::Rejected(faults) = refused else { panic!("{refused:?}") };
        let reported = faults[0].error.to_string();
        assert!(
            reported.contains("takes no writes in a transaction") && reported.contains("that is not capped"),
            "{reported}"
        );
    });
}

#[test]
fn a_transaction_that_is_too_large_counts_as_one_that_takes_too_long() {
    in_turn(|set| {
        let base = Base::on(set);
        block_on(async {
            let client = base.client().await;
            let mut fixture =
                SinkFixture::of(base.named_client("large").await, Mirror::into("copy").expect("a name")).await;
            let rows: [Row<'_>; 1] = [(INSERT, Some("a"), r#"{"n":1}"#)];
            fail(&client, "large", "update", 1, doc! { "errorCode": 257 }).await;
            let error = fixture.transact(1, &rows).await.expect_err("the server was told to fail");
            assert!(error.is_late() && error.kind() == ErrorKind::Unavailable, "{error:?}");
            fixture.committed(1, &rows).await;
        });
    });
}

#[test]
fn a_record_of_a_gap_tells_its_cause() {
    let base = Base::new();
    block_on(async {
        let mut fixture = SinkFixture::new(&base, Audit::into("audit").expect("a name")).await;
        fixture.committed(1, &[(Operation::Gap, None, r#"{"cause":"history is lost"}"#)]).await;
        let records = in_order(&fixture.client, "audit").await;
        assert_eq!(records[0].get_str("cause").ok(), Some("history is lost"), "{records:?}");
    });
}

fn whole() -> View {
    View { full_document: Shown::UpdateLookup, ..View::collection("orders") }
}

#[test]
fn an_empty_timestamp_is_mirrored_as_it_is() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        shop.insert(doc! { "_id": 1, "n": 1 }).await;
        let empty = Timestamp { time: 0, increment: 0 };
        let set = vec![doc! { "$set": { "at": { "$literal": empty }, "within": { "at": { "$literal": empty } } } }];
        shop.orders().update_one(doc! {}, set).await.expect("it is taken");
        let changes = read(&mut *stream, 2).await;
        let now = in_order(&shop.client, "orders").await;
        assert_eq!(now[0].get_timestamp("at").ok(), Some(empty));
        // Both are told as the document is now: one is inserted, the other replaces it.
        mirror(&shop.base).await.deliver(&changes).await;
        assert_eq!(in_order(&shop.client, "copy").await, now);
    });
}

#[test]
fn a_copy_of_a_versioned_copy_knows_its_tombstones() {
    block_on(async {
        let shop = Shop::open().await;
        let mut stream = shop.watch(whole()).await;
        shop.insert(doc! { "_id": 1, "n": 1, "_watchkeeper": { "time": 7_i64, "ordinal": 0_i64 } }).await;
        let deleted = doc! { "time": 8_i64, "ordinal": 0_i64, "deleted": DateTime::from_millis(9) };
        shop.orders().replace_one(doc! {}, doc! { "_watchkeeper": deleted }).await.expect("it is taken");
        shop.insert(doc! { "_id": 2, "_watchkeeper": { "time": 7_i64 } }).await;
        let changes = read(&mut *stream, 3).await;
        let writer = versioned(&shop.base, "copy").await;
        let mut rejected = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            let written = writer.write(&cx(), 0, change.batch(), &[change.row()]).await.expect("the server answers");
            rejected.extend(written.rejected.iter().map(|fault| (at, fault.error.to_string())));
            let copies = in_order(&shop.client, "copy").await;
            let mark = copies[0].get_document("_watchkeeper").expect("a version");
            assert_eq!(mark.contains_key("deleted"), at > 0, "{copies:?}");
            assert_ne!(
                mark.get_i64("time").ok(),
                Some(7 + i64::try_from(at).expect("few")),
                "it has a version of its own"
            );
        }
        assert_eq!(rejected.len(), 1, "{rejected:?}");
        let (at, reported) = &rejected[0];
        assert!(
            *at == 2 && reported.contains("a field _watchkeeper of its own") && reported.contains("; rename it"),
            "{reported}"
        );
    });
}
