//! Constraints of a target that are looked at only when a transaction ends.

use async_trait::async_trait;
use watchkeeper_core::{Change, Operation, Result};
use watchkeeper_postgres::{Failure, Handle, Open, PerChange, Rows, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::divided::rejected;
use crate::following::opened;
use crate::sink::{INSERT, Row, SinkFixture, batch};
use crate::support::{Base, block_on, cx};

/// A table of which parents, codes and a trigger are looked at only when a transaction ends.
async fn create(base: &Base, table: &str) {
    let sql = "CREATE TABLE $t (id int PRIMARY KEY, parent int REFERENCES $t DEFERRABLE INITIALLY DEFERRED,
            code int UNIQUE DEFERRABLE INITIALLY DEFERRED);
        CREATE FUNCTION $t_refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN IF NEW.code = 13 THEN RAISE ''not this code''; END IF; RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON $t DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION $t_refuse()";
    base.admin().await.batch_execute(&sql.replace("$t", table)).await.expect("it is new");
}

/// Rows by id, parent and code.
fn bodies(rows: &[(u32, Option<u32>, u32)]) -> Vec<(String, String)> {
    let body = |(id, parent, code): &(u32, Option<u32>, u32)| {
        let parent = parent.map_or("null".to_owned(), |parent| parent.to_string());
        (id.to_string(), format!(r#"{{"id":{id},"parent":{parent},"code":{code}}}"#))
    };
    rows.iter().map(body).collect()
}

fn inserts(bodies: &[(String, String)]) -> Vec<Row<'_>> {
    bodies.iter().map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect()
}

#[test]
fn a_row_that_is_refused_only_by_the_commit_is_rejected_and_no_other() {
    for version in [Version::V15, Version::V18] {
        let base = Base::schema(version);
        let table = base.table("late");
        block_on(async {
            create(&base, &table).await;
            let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
            let count = format!("SELECT count(*)::text FROM {table}");
            for alone in [(1, Some(99), 1), (1, None, 13)] {
                let bodies = bodies(&[alone]);
                assert_eq!(rejected(&mut fixture, 1, &inserts(&bodies)).await, [0], "{alone:?}");
            }
            // Orphans, a code that is there twice, and one that a trigger refuses, among many whose parents come after them.
            let good = |id: u32| (id, (id + 1 < 60).then_some(id + 1), 1_000 + id);
            let rows: Vec<_> = (0..60)
                .map(|id| match id {
                    0 | 31 => (100 + id, Some(99), 2_000 + id),
                    17 => (100, None, 1_016),
                    59 => (101, None, 13),
                    16 | 30 | 58 => (id, None, 1_000 + id),
                    _ => good(id),
                })
                .collect();
            let bodies = bodies(&rows);
            let rows = inserts(&bodies);
            assert_eq!(rejected(&mut fixture, 1, &rows).await, [0, 17, 31, 59]);
            assert_eq!(fixture.shown(&count).await, ["0"], "nothing is written");
            let rest: Vec<Row<'_>> =
                (0..).zip(&rows).filter(|(at, _)| ![0, 17, 31, 59].contains(at)).map(|(_, row)| *row).collect();
            fixture.committed(1, &rest).await;
            assert_eq!(fixture.shown(&count).await, ["56"]);
        });
    }
}

#[test]
fn what_is_wrong_only_in_between_passes_also_beside_what_is_refused() {
    let base = Base::schema(Version::V18);
    let table = base.table("between");
    block_on(async {
        create(&base, &table).await;
        let mut fixture = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let first = bodies(&[(1, None, 1), (2, None, 2)]);
        fixture.committed(1, &inserts(&first)).await;
        let swapped = bodies(&[(1, None, 2), (2, None, 1), (3, Some(99), 3)]);
        let rows: Vec<Row<'_>> =
            inserts(&swapped).into_iter().map(|(_, key, body)| (Operation::Update, key, body)).collect();
        assert_eq!(rejected(&mut fixture, 2, &rows).await, [2]);
        fixture.committed(2, &rows[..2]).await;
        let held = format!("SELECT t::text FROM {table} t ORDER BY id");
        assert_eq!(fixture.shown(&held).await, ["(1,,2)", "(2,,1)"]);
    });
}

/// Writes every row by a statement of its own.
struct Nodes(String);

#[async_trait]
impl Handle for Nodes {
    async fn handle(&self, open: &Open<'_>, change: &Change) -> Result<(), Failure> {
        let body = std::str::from_utf8(change.body()).expect("JSON is text");
        let sql = format!("INSERT INTO {0} SELECT * FROM json_populate_record(NULL::{0}, '{body}')", self.0);
        open.execute(&sql, &[]).await?;
        Ok(())
    }
}

#[test]
fn a_child_before_its_parent_is_not_blamed_for_an_orphan_between_them() {
    let base = Base::schema(Version::V15);
    let table = base.table("nodes");
    block_on(async {
        create(&base, &table).await;
        let mut fixture = SinkFixture::new(base.client().await, PerChange(Nodes(table.clone()))).await;
        // The last one is refused at once.
        let bodies = bodies(&[(2, Some(1), 2), (3, Some(99), 3), (1, None, 1), (1, None, 4)]);
        let rows = inserts(&bodies);
        assert_eq!(rejected(&mut fixture, 1, &rows).await, [1, 3]);
        fixture.committed(1, &[rows[0], rows[2]]).await;
        assert_eq!(fixture.shown(&format!("SELECT t::text FROM {table} t ORDER BY id")).await, ["(1,,1)", "(2,1,2)"]);
    });
}

#[test]
fn versioned_rows_are_rejected_by_the_commit_too() {
    let base = Base::schema(Version::V15);
    let table = base.table("elsewhere");
    block_on(async {
        create(&base, &table).await;
        let client = base.client().await;
        let target = Rows::into(&table).expect("a name");
        let fixture = SinkFixture::new(client.clone(), target.clone()).await;
        let writer = opened(&VersionedRows::new(client, target).expect("a name"), &fixture).await;
        let bodies = bodies(&[(1, None, 1), (2, Some(99), 2), (3, Some(1), 3)]);
        let written = writer.write(&cx(), 0, &batch(&inserts(&bodies)), &[0, 1, 2]).await.expect("the server answers");
        let places: Vec<u32> = written.rejected.iter().map(|fault| fault.row).collect();
        assert_eq!((written.done, places), (3, vec![1]));
        assert_eq!(fixture.shown(&format!("SELECT t::text FROM {table} t ORDER BY id")).await, ["(1,,1)", "(3,1,3)"]);
    });
}
