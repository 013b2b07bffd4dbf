//! Many changes of one transaction that the table does not take.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, Operation, Position, Result, RowParts, SourceTime, Transacted,
    Version as ChangeVersion,
};
use watchkeeper_postgres::{Apply, Events, Failure, Handle, Mirror, Open, PerChange, Rows, refuse};
use watchkeeper_testkit::servers::postgres::Version;

use crate::mirror::Toasted;
use crate::sink::{INSERT, Row, SinkFixture};
use crate::support::{Base, block_on};

/// Which of these rows are told as rejected, in their order.
pub(crate) async fn rejected(fixture: &mut SinkFixture, seq: u64, rows: &[Row<'_>]) -> Vec<u32> {
    let answer = fixture.transact(seq, rows).await.expect("the server answers");
    let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
    let mut places: Vec<u32> = faults.iter().map(|fault| fault.row).collect();
    places.sort_unstable();
    places
}

async fn all_are_reported_at_once(base: &Base, table: &str, apply: impl Apply, check: &str) {
    let mut fixture = SinkFixture::new(base.client().await, apply).await;
    let sql = format!("ALTER TABLE {table} ADD CHECK ({check})");
    base.admin().await.batch_execute(&sql).await.expect("the table is there");
    // Some fit no column, some violate the constraint, beginning with the first and ending with the last.
    let value = |n: u32| if n.is_multiple_of(7) { "1000".to_owned() } else { n.to_string() };
    let bodies: Vec<(String, String)> =
        (0..92).map(|n| (n.to_string(), format!(r#"{{"id":{n},"n":{}}}"#, value(n)))).collect();
    let rows: Vec<Row<'_>> = bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
    let expected: Vec<u32> = (0..92).filter(|n| n % 7 == 0).collect();
    assert_eq!(rejected(&mut fixture, 1, &rows).await, expected);
    let count = format!("SELECT count(*)::text FROM {table}");
    assert_eq!(fixture.shown(&count).await, ["0"], "nothing is written");
    let good: Vec<Row<'_>> = (0..).zip(&rows).filter(|(n, _)| !expected.contains(n)).map(|(_, row)| *row).collect();
    fixture.committed(1, &good).await;
    assert_eq!(fixture.shown(&count).await, [good.len().to_string()]);
}

#[test]
fn all_rejected_changes_of_a_transaction_are_reported_at_once() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (events, mirror, rows) = (base.table("events"), base.table("mirror"), base.table("rows"));
        let sql = format!("CREATE TABLE {rows} (id int PRIMARY KEY, n int)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let each = Base::schema(Version::V15);
        all_are_reported_at_once(&base, &rows, Rows::into(&rows).expect("a name"), "n < 100").await;
        let check = "(document ->> 'n')::int < 100";
        all_are_reported_at_once(&each, &mirror, Mirror::into(&mirror).expect("a name"), check).await;
        let each = Base::schema(Version::V15);
        let check = "(event ->> 'n')::int < 100";
        all_are_reported_at_once(&each, &events, Events::into(&events).expect("a name"), check).await;
    });
}

#[test]
fn every_second_change_of_a_thousand_may_be_rejected_without_standing_still() {
    let base = Base::schema(Version::V18);
    let table = base.table("half");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY CHECK (id % 2 = 0))");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let bodies: Vec<(String, String)> = (0..1_000).map(|n| (n.to_string(), format!(r#"{{"id":{n}}}"#))).collect();
        let rows: Vec<Row<'_>> = bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
        let begun = Instant::now();
        assert_eq!(rejected(&mut fixture, 1, &rows).await.len(), 500);
        println!("{:?} to find 500 of 1,000", begun.elapsed());
    });
}

/// Comes and goes by statements of their own: what is there cannot come, and what is not there cannot go.
struct Steps(String);

impl Steps {
    async fn step(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure> {
        let (table, key) = (&self.0, String::from_utf8_lossy(change.key().expect("it has one")));
        if change.operation() == Operation::Insert {
            open.execute(&format!("INSERT INTO {table} VALUES ('{key}')"), &[]).await?;
            return Ok(());
        }
        let gone = open.execute(&format!("DELETE FROM {table} WHERE key = '{key}'"), &[]).await?;
        if gone == 1 { Ok(()) } else { Err(refuse("there is nothing to delete")) }
    }
}

#[async_trait]
impl Apply for Steps {
    async fn apply(&self, open: &Open<'_>, changes: &[Change]) -> Result<(), Failure> {
        for change in changes {
            self.step(open, change).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Handle for Steps {
    async fn handle(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure> {
        self.step(open, change).await
    }
}

#[test]
fn what_is_not_rejected_is_tried_in_its_order_whether_the_place_of_the_rest_is_reported_or_not() {
    let (come, go) = (Operation::Insert, Operation::Delete);
    let rows: Vec<Row<'_>> = [
        (come, "a"),
        (go, "a"),
        (go, "nobody"),
        (come, "a"),
        (come, "b"),
        (come, "b"),
        (go, "a"),
        (come, "a"),
        (go, "nothing"),
        (go, "b"),
    ]
    .map(|(operation, key)| (operation, Some(key), "{}"))
    .to_vec();
    for reported in [false, true] {
        let base = Base::schema(Version::V15);
        let table = base.table("steps");
        block_on(async {
            let sql = format!("CREATE TABLE {table} (key text PRIMARY KEY)");
            base.admin().await.batch_execute(&sql).await.expect("it is new");
            let mut fixture = match reported {
                false => SinkFixture::new(base.client().await, Steps(table.clone())).await,
                true => SinkFixture::new(base.client().await, PerChange(Steps(table.clone()))).await,
            };
            assert_eq!(rejected(&mut fixture, 1, &rows).await, [2, 5, 8], "places are told: {reported}");
            let good: Vec<Row<'_>> =
                (0..).zip(&rows).filter(|(at, _)| ![2, 5, 8].contains(at)).map(|(_, row)| *row).collect();
            fixture.committed(1, &good).await;
            assert_eq!(fixture.shown(&format!("SELECT key FROM {table}")).await, ["a"]);
        });
    }
}

/// A row `a` that becomes `b` with this body, which leaves out what is `"~"`, and a new row with that body.
fn rekeyed(body: &str, other: &str) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("test".into(), Arc::new(Toasted));
    let namespace = builder.namespace("shop.orders");
    let rows = [(Operation::Delete, 0, "a", ""), (INSERT, 1, "b", body), (INSERT, 0, "c", other)];
    for (at, (operation, half, key, body)) in (10_u64..).zip(rows) {
        builder.push(RowParts {
            operation,
            namespace,
            half,
            committable: operation == INSERT,
            key: Some(key.as_bytes()),
            position: &at.to_be_bytes(),
            body: body.as_bytes(),
            time: SourceTime(1_700_000_000_000 + at),
            version: ChangeVersion { time: at, ordinal: 0 },
        });
    }
    Arc::new(builder.finish(Position::new(vec![1], None)))
}

#[test]
fn the_halves_of_a_key_update_are_tried_together_and_the_second_stands_for_both() {
    let base = Base::schema(Version::V18);
    let table = base.table("rekeyed");
    block_on(async {
        let mut fixture = SinkFixture::new(base.client().await, Mirror::into(&table).expect("a name")).await;
        let sql = format!("ALTER TABLE {table} ADD CHECK ((document ->> 'n')::int < 100)");
        base.admin().await.batch_execute(&sql).await.expect("the table is there");
        fixture.committed(1, &[(INSERT, Some("a"), r#"{"n":1,"large":"x"}"#)]).await;
        let (good, bad) = (r#"{"n":2,"large":"~"}"#, r#"{"n":1000,"large":"~"}"#);
        for (update, other, expected) in [(good, r#"{"n":1000}"#, [2]), (bad, r#"{"n":3}"#, [1])] {
            let answer = fixture.deliver(2, &rekeyed(update, other)).await.expect("the server answers");
            let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
            assert_eq!(faults.iter().map(|fault| fault.row).collect::<Vec<_>>(), expected);
        }
    });
}
