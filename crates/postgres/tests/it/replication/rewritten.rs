use std::collections::BTreeMap;

use watchkeeper_core::{Change, ErrorKind, Position, StartAt};
use watchkeeper_postgres::Replication;

use super::bench::{Base, LIMITS, Watch, cx, on_both};

/// So many rows of the first table that those of the second wait for their turn: they are fetched as they are read.
const MANY: usize = 40_000;

fn schema() -> String {
    format!(
        "CREATE TABLE first(id int PRIMARY KEY, v text); INSERT INTO first SELECT g, repeat('x', 200) FROM generate_series(1, {MANY}) g;
        CREATE TABLE second(id int PRIMARY KEY, v text); INSERT INTO second SELECT g, 'old' FROM generate_series(1, 300) g"
    )
}

fn chosen(base: &Base<'_>) -> Replication {
    let mut settings = base.settings();
    settings.tables = vec!["first".to_owned(), "second".to_owned()];
    base.source_with(settings)
}

/// How many rows of each table are told from here on, until reading fails or nothing more comes; and the place behind them.
async fn reported(
    source: &Replication,
    start: StartAt,
    during: &str,
    base: &Base<'_>,
) -> (BTreeMap<String, usize>, Position) {
    let mut watch = Watch::open(source, start).await;
    let (mut reported, mut end, mut is_done) = (BTreeMap::new(), None, false);
    loop {
        let batch = match watch.stream.next_batch(&cx(), LIMITS).await {
            Ok(batch) => std::sync::Arc::new(batch),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                break;
            }
        };
        end = Some(batch.end.clone());
        for row in 0..batch.len() as u32 {
            *reported.entry(Change::new(batch.clone(), row).namespace().to_owned()).or_default() += 1;
        }
        if batch.is_empty() {
            break;
        }
        if !std::mem::replace(&mut is_done, true) && !during.is_empty() {
            base.run(during).await;
        }
    }
    watch.close().await;
    (reported, end.expect("something was told"))
}

/// A table is read whole although this happens to it before its turn.
fn assert_read_whole(during: &str, rows: usize) {
    on_both(&schema(), async |base| {
        let source = chosen(base);
        let (first, position) = reported(&source, StartAt::Snapshot, during, base).await;
        assert_eq!(first.get("public.first"), Some(&MANY));
        assert_eq!(first.get("public.second"), None, "what looks empty is not read");
        let (rest, _) = reported(&source, StartAt::After(position), "", base).await;
        assert_eq!(rest.get("public.first"), None, "it is not read again");
        assert_eq!(rest.get("public.second").copied().unwrap_or_default(), rows);
    });
}

#[test]
fn a_table_that_is_rewritten_before_its_turn_is_read_with_a_new_snapshot() {
    assert_read_whole("ALTER TABLE second ALTER id TYPE bigint", 300);
}

#[test]
fn a_table_that_is_truncated_before_its_turn_is_read_as_it_is_then() {
    // What truncates it is told as well.
    assert_read_whole("UPDATE second SET v = 'new'; TRUNCATE second; INSERT INTO second VALUES (1, 'again')", 2);
}

#[test]
fn a_table_that_is_renamed_before_its_turn_is_not_forgotten() {
    on_both(&schema(), async |base| {
        let mut settings = base.settings();
        settings.publication = format!("{}_all", base.name);
        settings.tables.clear();
        base.run(&format!("CREATE PUBLICATION {} FOR ALL TABLES", settings.publication)).await;
        let source = base.source_with(settings);
        let (first, position) =
            reported(&source, StartAt::Snapshot, "ALTER TABLE second RENAME TO a_second", base).await;
        assert_eq!(first, BTreeMap::from([("public.first".to_owned(), MANY)]));
        let (rest, _) = reported(&source, StartAt::After(position), "", base).await;
        assert_eq!(rest, BTreeMap::from([("public.a_second".to_owned(), 300)]));
    });
}
