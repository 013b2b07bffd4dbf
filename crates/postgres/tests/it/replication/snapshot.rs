use std::collections::BTreeMap;
use std::time::Duration;

use watchkeeper_core::{Change, Operation, Position, StartAt, ValueRef};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, LIMITS, Watch, block_on, cx, on_both, operations, shared};

const TABLES: [&str; 3] = ["a", "b", "c"];
const ROWS: usize = 700;

/// A position that has nothing to remember of a snapshot.
const PLAIN_BYTES: usize = 16;

fn schema() -> String {
    let table = |name: &str| {
        format!(
            "CREATE TABLE {name}(id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED);
            INSERT INTO {name} SELECT g, 'old' FROM generate_series(1, {ROWS}) g;"
        )
    };
    TABLES.map(table).concat()
}

fn settings(base: &Base<'_>) -> Settings {
    let mut settings = base.settings();
    settings.tables = TABLES.map(str::to_owned).to_vec();
    settings
}

/// What a target would hold that is told these changes: by table and key, with the change's version.
#[derive(Default)]
struct Target(BTreeMap<(String, i32), String>);

impl Target {
    fn apply(&mut self, change: &Change) {
        let side = if change.operation() == Operation::Delete { "before" } else { "after" };
        let Ok(Some(ValueRef::Int32(id))) = change.get(&[side, "id"]) else { panic!("a change without a key") };
        let key = (change.namespace().to_owned(), id);
        match change.get(&["after", "v"]).expect("a body can be read") {
            Some(ValueRef::Str(text)) => drop(self.0.insert(key, text.into_owned())),
            _ => drop(self.0.remove(&key)),
        }
    }

    async fn assert_like(&self, base: &Base<'_>) {
        for table in TABLES {
            let mine = self.0.iter().filter(|((namespace, _), _)| *namespace == format!("public.{table}"));
            let mine: Vec<_> = mine.map(|((_, id), v)| format!("{id}:{v}")).collect();
            let query = format!("SELECT coalesce(string_agg(id || ':' || v, ',' ORDER BY id), '') FROM {table}");
            assert_eq!(mine.join(","), base.ask(&query).await, "table {table}");
        }
    }
}

/// Reads until a change with this text has come, applying all; the position after it.
async fn read_until(watch: &mut Watch, target: &mut Target, text: &str) -> Position {
    for _ in 0..600 {
        let batch = std::sync::Arc::new(watch.stream.next_batch(&cx(), LIMITS).await.unwrap());
        let mut found = false;
        for row in 0..batch.len() as u32 {
            let change = Change::new(batch.clone(), row);
            found |= change.get(&["after", "v"]).unwrap() == Some(ValueRef::Str(text.into()));
            target.apply(&change);
        }
        if found {
            return batch.end.clone();
        }
    }
    panic!("{text} does not come");
}

#[test]
fn everything_that_exists_comes_first_and_then_what_changed_since() {
    on_both(&schema(), async |base| {
        let source = base.source_with(settings(base));
        let mut watch = Watch::open(&source, StartAt::Snapshot).await;
        base.run(
            "UPDATE b SET v = 'new' WHERE id < 10; DELETE FROM c WHERE id = 5; INSERT INTO a VALUES (9999, 'last')",
        )
        .await;
        let reads = watch.changes(TABLES.len() * ROWS).await;
        assert!(operations(&reads).iter().all(|operation| *operation == Operation::Read));
        assert_eq!(reads[0].get(&["after", "v"]).unwrap(), Some(ValueRef::Str("old".into())));
        assert_eq!(reads[0].get(&["after", "twice"]).unwrap(), None, "the log does not tell generated columns either");
        let mut ids: Vec<_> = reads.iter().map(|read| read.id().to_string()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), reads.len(), "ids are unique");
        let changes = watch.changes(11).await;
        assert!(changes.iter().all(|change| change.version() > reads[0].version()));
        // The key of a row is the same whoever tells of it.
        assert_eq!(reads[ROWS].key(), changes[0].key());
        let mut target = Target::default();
        reads.iter().chain(&changes).for_each(|change| target.apply(change));
        target.assert_like(base).await;
        watch.close().await;
    });
}

#[test]
fn a_snapshot_is_resumed_by_table() {
    on_both(&schema(), async |base| {
        let source = base.source_with(settings(base));
        let mut target = Target::default();
        let mut watch = Watch::open(&source, StartAt::Snapshot).await;
        let mut position = None;
        while target.0.len() <= ROWS {
            let batch = std::sync::Arc::new(watch.stream.next_batch(&cx(), LIMITS).await.unwrap());
            (0..batch.len() as u32).for_each(|row| target.apply(&Change::new(batch.clone(), row)));
            position = Some(batch.end.clone());
        }
        watch.close().await;
        // One table is told, one was begun, one is not.
        for (round, table) in TABLES.iter().enumerate() {
            let update = format!(
                "UPDATE {table} SET v = 'new {round}' WHERE id < 50; DELETE FROM {table} WHERE id BETWEEN 100 AND 120"
            );
            base.run(&update).await;
        }
        let mut watch = Watch::open(&source, StartAt::After(position.unwrap())).await;
        base.run("INSERT INTO b VALUES (100, 'again'); UPDATE a SET v = 'newer' WHERE id = 1; INSERT INTO c VALUES (9999, 'last')").await;
        // First what happened to the table that was told, and what is gone of the others.
        let caught_up = watch.changes(49 + 3 * 21).await;
        let is_right = |change: &Change| match change.operation() {
            Operation::Update => change.namespace() == "public.a",
            operation => operation == Operation::Delete,
        };
        assert!(caught_up.iter().all(is_right));
        caught_up.iter().for_each(|change| target.apply(change));
        let reads = watch.changes(2 * (ROWS - 21)).await;
        assert!(reads.iter().all(|read| read.operation() == Operation::Read && read.namespace() != "public.a"));
        reads.iter().for_each(|read| target.apply(read));
        let end = read_until(&mut watch, &mut target, "last").await;
        target.assert_like(base).await;
        watch.close().await;
        // From here on it is a stream like any other.
        let mut watch = Watch::open(&source, StartAt::After(end)).await;
        base.run("UPDATE c SET v = 'after all' WHERE id = 1").await;
        read_until(&mut watch, &mut target, "after all").await;
        target.assert_like(base).await;
        watch.close().await;
    });
}

/// Rows of a snapshot carry the snapshot's time. A checkpoint in the middle of a batch must not store that as the commit time of
/// the transaction that was read last.
#[test]
fn a_snapshot_is_resumed_from_the_middle_of_a_batch() {
    on_both(&schema(), async |base| {
        let source = base.source_with(settings(base));
        let mut target = Target::default();
        let mut start = StartAt::Snapshot;
        for round in 0..4 {
            let mut watch = Watch::open(&source, start).await;
            let batch = loop {
                let batch = std::sync::Arc::new(watch.stream.next_batch(&cx(), LIMITS).await.unwrap());
                let rows = (0..batch.len() as u32).map(|row| Change::new(batch.clone(), row));
                if rows.clone().any(|change| change.operation() == Operation::Read) {
                    break batch;
                }
                rows.for_each(|change| target.apply(&change));
            };
            assert!(batch.len() > 10, "there is a middle");
            let delivered: Vec<_> = (0..10).map(|row| Change::new(batch.clone(), row)).collect();
            delivered.iter().for_each(|change| target.apply(change));
            start = StartAt::After(delivered[9].position());
            watch.close().await;
            base.run(&format!("DELETE FROM a WHERE id = {}", round + 1)).await;
        }
        let mut watch = Watch::open(&source, start).await;
        base.run("INSERT INTO c VALUES (9999, 'last')").await;
        read_until(&mut watch, &mut target, "last").await;
        target.assert_like(base).await;
        watch.close().await;
    });
}

/// The position after a row of a snapshot has the time of the snapshot. The transaction that the position lies in, which was read before
/// the rows, is recognised by its own time when the snapshot is over.
#[test]
fn a_transaction_before_the_rows_of_a_snapshot_is_recognised_when_the_snapshot_is_over() {
    on_both(&schema(), async |base| {
        let source = base.source_with(settings(base));
        let mut target = Target::default();
        let mut start = StartAt::Snapshot;
        for round in 0..2 {
            let mut watch = Watch::open(&source, start).await;
            let row = loop {
                let batch = std::sync::Arc::new(watch.stream.next_batch(&cx(), LIMITS).await.unwrap());
                let change = Change::new(batch.clone(), 0);
                if !batch.is_empty() && change.operation() == Operation::Read {
                    break change;
                }
            };
            start = StartAt::After(row.position());
            watch.close().await;
            if round == 0 {
                // Read before the rows that are left.
                base.run("DELETE FROM a WHERE id = 1").await;
            }
        }
        let mut watch = Watch::open(&source, start).await;
        let over = loop {
            let end = watch.stream.next_batch(&cx(), LIMITS).await.unwrap().end.clone();
            if end.bytes.len() == PLAIN_BYTES {
                break end;
            }
        };
        watch.close().await;
        let mut watch = Watch::open(&source, StartAt::After(over)).await;
        base.run("INSERT INTO c VALUES (9999, 'last')").await;
        read_until(&mut watch, &mut target, "last").await;
        watch.close().await;
    });
}

#[test]
fn a_snapshot_outlives_the_patience_of_the_server() {
    on_both(&schema(), async |base| {
        let impatient = "ALTER DATABASE {} SET idle_in_transaction_session_timeout = '100ms'";
        base.run(&impatient.replace("{}", &base.name)).await;
        let mut watch = Watch::open(&base.source_with(settings(base)), StartAt::Snapshot).await;
        let mut reads = watch.changes(100).await;
        // A slow target.
        tokio::time::sleep(Duration::from_millis(300)).await;
        reads.extend(watch.changes(TABLES.len() * ROWS - 100).await);
        assert!(operations(&reads).iter().all(|operation| *operation == Operation::Read));
        watch.close().await;
    });
}

#[test]
fn a_snapshot_of_which_nothing_was_committed_begins_anew() {
    on_both(&schema(), async |base| {
        let (first, second) = (base.source_with(settings(base)), base.source_with(settings(base)));
        let mut stuck = Watch::open(&first, StartAt::Snapshot).await;
        stuck.stream.next_batch(&cx(), LIMITS).await.unwrap();
        base.run("DELETE FROM a WHERE id = 1; INSERT INTO a VALUES (9999, 'last')").await;
        let mut target = Target::default();
        let mut watch = Watch::open(&second, StartAt::Snapshot).await;
        let reads = watch.changes(TABLES.len() * ROWS).await;
        reads.iter().for_each(|read| target.apply(read));
        target.assert_like(base).await;
        stuck.close().await;
        watch.close().await;
    });
}

/// The rows of the snapshot and what the log tells of them afterwards, first by its own keys.
async fn read_and_changed(base: &Base<'_>) -> (Vec<Change>, Vec<Change>) {
    let mut watch = Watch::open(&base.source(), StartAt::Snapshot).await;
    base.run("UPDATE things SET v = 'new'; DELETE FROM things").await;
    let all = watch.changes(3).await;
    watch.close().await;
    let (reads, changes) = all.split_at(1);
    (reads.to_vec(), changes.to_vec())
}

#[test]
fn columns_that_an_index_only_includes_are_no_part_of_a_key() {
    let table = "CREATE TABLE things(id int, k int NOT NULL, v text, PRIMARY KEY (id) INCLUDE (v)); INSERT INTO things VALUES (1, 7, 'old')";
    for identity in ["DEFAULT", "FULL", "USING INDEX by_k"] {
        let index = "CREATE UNIQUE INDEX by_k ON things (k) INCLUDE (id)";
        on_both(&format!("{table}; {index}; ALTER TABLE things REPLICA IDENTITY {identity}"), async |base| {
            let (reads, changes) = read_and_changed(base).await;
            assert_eq!(operations(&changes), [Operation::Update, Operation::Delete], "{identity}");
            assert!(changes.iter().all(|change| change.key() == reads[0].key()), "{identity}");
        });
    }
}

#[test]
fn generated_columns_are_read_where_the_log_tells_them() {
    let table = "CREATE TABLE things(id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED,
        thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL); INSERT INTO things VALUES (1, 'old')";
    for (publication, names) in [
        ("things", "id v"),
        ("things WITH (publish_generated_columns = stored)", "id v twice"),
        ("things (id, v, twice)", "id v twice"),
        ("things (id, v) WITH (publish_generated_columns = stored)", "id v"),
    ] {
        block_on(async {
            let schema = format!("{table}; CREATE PUBLICATION changes FOR TABLE {publication}");
            let base = Base::new(shared(Version::V18), &schema).await;
            let (reads, changes) = read_and_changed(&base).await;
            for reported in [&reads[0], &changes[0]] {
                let is_reported = |name: &&str| reported.get(&["after", name]).unwrap().is_some();
                let reported: Vec<_> = ["id", "v", "twice", "thrice"].into_iter().filter(is_reported).collect();
                assert_eq!(reported.join(" "), names, "{publication}");
            }
            base.done().await;
        });
    }
}

#[test]
fn a_row_has_one_key_in_the_snapshot_and_in_the_log_whatever_its_type_is() {
    let schema = "CREATE EXTENSION citext;
        CREATE DOMAIN amount AS numeric; CREATE DOMAIN code AS char(8); CREATE DOMAIN name AS citext;
        CREATE TABLE a(id numeric PRIMARY KEY, v text); INSERT INTO a VALUES (1.50, 'old');
        CREATE TABLE b(id amount, v text, c code, PRIMARY KEY (id, c)); INSERT INTO b VALUES (1.50, 'old', 'x');
        CREATE TABLE c(id citext, v text, n public.name, PRIMARY KEY (id, n)); INSERT INTO c VALUES ('Anna', 'old', 'Bo')";
    on_both(schema, async |base| {
        let source = base.source_with(settings(base));
        let mut watch = Watch::open(&source, StartAt::Snapshot).await;
        let reads = watch.changes(TABLES.len()).await;
        base.run("UPDATE a SET v = 'new'; UPDATE b SET v = 'new'; UPDATE c SET v = 'new'").await;
        let updates = watch.changes(TABLES.len()).await;
        for (read, update) in reads.iter().zip(&updates) {
            assert_eq!(read.namespace(), update.namespace());
            assert_eq!(read.key(), update.key(), "{}", read.namespace());
        }
    });
}
