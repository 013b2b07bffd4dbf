//! The newest document of every key.

use std::sync::Arc;

use watchkeeper_core::payload::{JsonPayload, ValueRef, Visit};
use watchkeeper_core::{OpenedSink, Operation, Payload, Result, Sink, SinkContext, Transacted};
use watchkeeper_postgres::{Mirror, PerChange, Rows, Versioned, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::sink::{INSERT, Row, Scripted, SinkFixture, batch, batch_of, context, shown};
use crate::support::{Base, block_on, cx};

#[test]
fn a_mirror_keeps_the_newest_document_of_every_key() {
    let base = Base::schema(Version::V18);
    let table = base.table("copy");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        let first: [Row<'_>; 4] = [
            (INSERT, Some("a"), r#"{"n":1,"tags":["x",{"y":"\u0000"}]}"#),
            (INSERT, Some("b"), r#"{"n":1}"#),
            (Operation::Update, Some("a"), r#"{"n":2,"tags":["x",{"y":null}]}"#),
            (Operation::Delete, Some("b"), r#"{"n":1}"#),
        ];
        fixture.committed(1, &first).await;
        let sql = format!("SELECT convert_from(key, 'UTF8') || document FROM {table} ORDER BY key");
        assert_eq!(fixture.shown(&sql).await, [r#"a{"n":2,"tags":["x",{"y":null}]}"#]);
        fixture.committed(2, &[(INSERT, Some("b"), r#"{"n":3}"#), (Operation::Delete, Some("a"), "")]).await;
        assert_eq!(fixture.shown(&sql).await, [r#"b{"n":3}"#]);
        fixture
            .committed(
                3,
                &[(INSERT, Some("c"), r#"{}"#), (Operation::Truncate, None, ""), (INSERT, Some("d"), r#"{}"#)],
            )
            .await;
        assert_eq!(fixture.shown(&sql).await, ["d{}"]);
    });
}

#[test]
fn no_mirror_passes_over_a_rename() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let renamed: [Row<'_>; 1] = [(Operation::Rename, None, "{}")];
        let reported = |error: &watchkeeper_core::Error| error.to_string().contains("which a mirror cannot follow");
        let table = base.table("typed");
        let admin = base.admin().await;
        admin.batch_execute(&format!("CREATE TABLE {table} (n bigint PRIMARY KEY)")).await.expect("it can be made");
        let mirror = Mirror::into(&base.table("copy")).expect("a name");
        let mut fixture = SinkFixture::new(base.client().await, mirror.clone()).await;
        let mirrored = fixture.transact(1, &renamed).await;
        let mut fixture = SinkFixture::newer(base.client().await, Rows::into(&table).expect("a name"), 2).await;
        for answer in [mirrored, fixture.transact(1, &renamed).await] {
            let Ok(Transacted::Rejected(faults)) = answer else { panic!("{answer:?}") };
            assert!(reported(&faults[0].error), "{faults:?}");
        }
        let versioned = Versioned::new(base.client().await, mirror);
        let versioned_rows = VersionedRows::new(base.client().await, Rows::into(&table).expect("a name"));
        let sinks: [Box<dyn Sink>; 2] = [Box::new(versioned), Box::new(versioned_rows.expect("a name"))];
        for sink in sinks {
            assert!(sink.profile().mirrors);
            let opened = sink.open(&cx(), &context(&fixture.sink, &fixture.grant)).await.expect("it can be opened");
            let OpenedSink::Plain(writer) = opened else { panic!("{opened:?}") };
            let written = writer.write(&cx(), 0, &batch(&renamed), &[0]).await.expect("the server answers");
            assert!(written.rejected.iter().any(|fault| reported(&fault.error)), "{written:?}");
        }
    });
}

/// JSON in which the text "~" stands for a value that the source did not send, since it did not change.
#[derive(Debug)]
pub(crate) struct Toasted;

/// Passes everything on, but for those texts.
struct Hidden<'a>(&'a mut dyn Visit);

impl Visit for Hidden<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        let unreported = value == ValueRef::Str("~".into());
        self.0.value(if unreported { ValueRef::Unchanged } else { value });
    }

    fn begin_document(&mut self) {
        self.0.begin_document();
    }

    fn key(&mut self, key: &str) {
        self.0.key(key);
    }

    fn end_document(&mut self) {
        self.0.end_document();
    }

    fn begin_array(&mut self) {
        self.0.begin_array();
    }

    fn end_array(&mut self) {
        self.0.end_array();
    }
}

impl Payload for Toasted {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        JsonPayload.get(body, path)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        JsonPayload.walk(body, &mut Hidden(visit))
    }
}

#[test]
fn what_did_not_change_stays_as_it_is() {
    let base = Base::schema(Version::V15);
    let table = base.table("copy");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        let sql = format!("SELECT document ->> 'n' || (document ->> 'large') FROM {table} ORDER BY key");
        let first = [
            (INSERT, Some("a"), r#"{"n":1,"large":"x"}"#),
            (Operation::Update, Some("a"), r#"{"n":2,"large":"~"}"#),
            (INSERT, Some("b"), r#"{"n":1,"large":"y"}"#),
        ];
        let second = [(Operation::Update, Some("b"), r#"{"large":"~","n":2}"#)];
        for (seq, rows) in [(1, &first[..]), (2, &second[..])] {
            let answer = fixture.deliver(seq, &batch_of(rows, Arc::new(Toasted))).await.expect("the server answers");
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        }
        assert_eq!(fixture.shown(&sql).await, ["2x", "2y"]);
    });
}

/// Only what did not change is taken from what is there: columns may have been dropped or renamed since that was written.
#[test]
fn what_is_no_more_does_not_stay_beside_what_did_not_change() {
    let base = Base::schema(Version::V15);
    let table = base.table("copy");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        let first =
            [(INSERT, Some("a"), r#"{"n":1,"gone":1,"large":"x"}"#), (INSERT, Some("b"), r#"{"n":1,"large":"y"}"#)];
        let second = [(Operation::Update, Some("a"), r#"{"n":2,"large":"~"}"#)];
        for (seq, rows) in [(1, &first[..]), (2, &second[..])] {
            let answer = fixture.deliver(seq, &batch_of(rows, Arc::new(Toasted))).await.expect("the server answers");
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
        }
        let sql = format!("SELECT document::jsonb::text FROM {table} WHERE convert_from(key, 'UTF8') = 'a'");
        assert_eq!(fixture.shown(&sql).await, [r#"{"n": 2, "large": "x"}"#]);
        let renamed = [(Operation::Update, Some("b"), r#"{"n":2,"body":"~"}"#)];
        let answer = fixture.deliver(3, &batch_of(&renamed, Arc::new(Toasted))).await.expect("the server answers");
        assert!(matches!(&answer, Transacted::Rejected(faults) if faults.len() == 1), "{answer:?}");
    });
}

#[test]
fn a_row_without_a_key_is_rejected_and_not_passed_over() {
    let base = Base::schema(Version::V15);
    let table = base.table("copy");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        for operation in [INSERT, Operation::Update, Operation::Delete] {
            let answer =
                fixture.deliver(1, &batch(&[(operation, None, r#"{"n":1}"#)])).await.expect("the server answers");
            assert!(matches!(&answer, Transacted::Rejected(faults) if faults.len() == 1), "{answer:?}");
        }
    });
}

#[test]
fn a_mirror_elsewhere_lets_no_older_version_win() {
    let base = Base::schema(Version::V15);
    let table = base.table("copy");
    block_on(async {
        let client = base.client().await;
        let sink = Versioned::new(client.clone(), Mirror::into(&table).expect("a name"));
        let fixture = SinkFixture::new(base.client().await, PerChange(Scripted("", String::new()))).await;
        let context = SinkContext {
            grant: fixture.grant.clone(),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store: fixture.sink.checkpoints().store_identity(),
        };
        let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else { panic!("plain") };
        let newer =
            batch(&[(INSERT, Some("x"), "{}"), (INSERT, Some("a"), r#"{"n":2}"#), (Operation::Delete, Some("b"), "")]);
        let older = batch(&[(INSERT, Some("a"), r#"{"n":1}"#), (INSERT, Some("b"), r#"{"n":1}"#)]);
        // The same versions as the newer ones have, as when a change is delivered again.
        let equal =
            batch(&[(INSERT, Some("x"), r#"{"n":9}"#), (INSERT, Some("a"), r#"{"n":9}"#), (INSERT, Some("b"), "{}")]);
        for batch in [&newer, &older, &equal] {
            let rows: Vec<u32> = (0..).take(batch.len()).collect();
            let written = writer.write(&cx(), 0, batch, &rows).await.expect("the server answers");
            assert_eq!((written.done, written.rejected.len()), (rows.len(), 0));
        }
        let sql =
            format!("SELECT convert_from(key, 'UTF8') || document FROM {table} WHERE deleted IS NULL ORDER BY key");
        assert_eq!(shown(&client, &sql).await, [r#"a{"n":2}"#, "x{}"]);
    });
}
