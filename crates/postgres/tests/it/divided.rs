//! Many changes of one transaction that the table does not take.

use std::time::Instant;

use watchkeeper_core::Transacted;
use watchkeeper_postgres::{Apply, Events, Mirror, Rows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::sink::{INSERT, Row, Stage};
use crate::support::{Base, block_on};

/// Which of these rows are told as rejected, in their order.
async fn rejected(stage: &mut Stage, seq: u64, rows: &[Row<'_>]) -> Vec<u32> {
    let answer = stage.transact(seq, rows).await.expect("the server answers");
    let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
    let mut places: Vec<u32> = faults.iter().map(|fault| fault.row).collect();
    places.sort_unstable();
    places
}

async fn all_are_told_at_once(base: &Base, table: &str, apply: impl Apply, check: &str) {
    let mut stage = Stage::new(base.client().await, apply).await;
    let sql = format!("ALTER TABLE {table} ADD CHECK ({check})");
    base.admin().await.batch_execute(&sql).await.expect("the table is there");
    // Some fit no column, some violate the constraint, beginning with the first and ending with the last.
    let value = |n: u32| if n.is_multiple_of(7) { "1000".to_owned() } else { n.to_string() };
    let bodies: Vec<(String, String)> =
        (0..92).map(|n| (n.to_string(), format!(r#"{{"id":{n},"n":{}}}"#, value(n)))).collect();
    let rows: Vec<Row<'_>> = bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
    let expected: Vec<u32> = (0..92).filter(|n| n % 7 == 0).collect();
    assert_eq!(rejected(&mut stage, 1, &rows).await, expected);
    let count = format!("SELECT count(*)::text FROM {table}");
    assert_eq!(stage.shown(&count).await, ["0"], "nothing is written");
    let good: Vec<Row<'_>> = (0..).zip(&rows).filter(|(n, _)| !expected.contains(n)).map(|(_, row)| *row).collect();
    stage.committed(1, &good).await;
    assert_eq!(stage.shown(&count).await, [good.len().to_string()]);
}

#[test]
fn all_rejected_changes_of_a_transaction_are_told_at_once() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (events, mirror, rows) = (base.table("events"), base.table("mirror"), base.table("rows"));
        let sql = format!("CREATE TABLE {rows} (id int PRIMARY KEY, n int)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let each = Base::schema(Version::V15);
        all_are_told_at_once(&base, &rows, Rows::into(&rows).expect("a name"), "n < 100").await;
        let check = "(document ->> 'n')::int < 100";
        all_are_told_at_once(&each, &mirror, Mirror::into(&mirror).expect("a name"), check).await;
        let each = Base::schema(Version::V15);
        let check = "(event ->> 'n')::int < 100";
        all_are_told_at_once(&each, &events, Events::into(&events).expect("a name"), check).await;
    });
}

#[test]
fn every_second_change_of_a_thousand_may_be_rejected_without_standing_still() {
    let base = Base::schema(Version::V18);
    let table = base.table("half");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY CHECK (id % 2 = 0))");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let mut stage = Stage::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let bodies: Vec<(String, String)> = (0..1_000).map(|n| (n.to_string(), format!(r#"{{"id":{n}}}"#))).collect();
        let rows: Vec<Row<'_>> = bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
        let begun = Instant::now();
        assert_eq!(rejected(&mut stage, 1, &rows).await.len(), 500);
        println!("{:?} to find 500 of 1,000", begun.elapsed());
    });
}
