use futures_util::future::join_all;

use super::{RecordsBench, bytes};
use crate::laws::lawful::{Broken, Law, ensure, insist};

async fn entries(bench: &RecordsBench, log: &str, limit: usize) -> Result<Vec<String>, Broken> {
    let found = bench.b.tail(&bench.cx, log, limit).await?;
    Ok(found.iter().map(|record| String::from_utf8_lossy(&record.bytes).into_owned()).collect())
}

/// R5: entries keep their order; the newest `keep` remain.
pub async fn r5_newest_entries_are_kept_in_order(bench: &RecordsBench) -> Law {
    let log = bench.name();
    // More than nine, so that an order by text would show.
    for n in 1..=13 {
        bench.a.append(&bench.cx, &log, bytes(&n.to_string()), 11).await?;
        let found = entries(bench, &log, 100).await?;
        let first = if n > 11 { n - 10 } else { 1 };
        let expected: Vec<_> = (first..=n).map(|n| n.to_string()).collect();
        ensure!(found == expected, "after entry {n} there should be {expected:?}, but there is {found:?}");
    }
    bench.a.append(&bench.cx, &log, bytes("last"), 2).await?;
    let found = entries(bench, &log, 100).await?;
    ensure!(found == ["13", "last"], "kept to 2, there is {found:?}");
    Ok(())
}

/// R5: of entries that are appended at once none is lost.
pub async fn r5_appends_at_once_are_all_kept(bench: &RecordsBench) -> Law {
    let log = bench.name();
    let runs = (0..12).map(|n| {
        let (store, log) = (if n % 2 == 0 { &bench.a } else { &bench.b }, &log);
        insist(&bench.cx, move || store.append(&bench.cx, log, bytes(&format!("{n:02}")), 100))
    });
    for answer in join_all(runs).await {
        answer?;
    }
    let mut found = entries(bench, &log, 100).await?;
    // Repeated after an unknown answer, an entry may be there twice.
    found.sort();
    found.dedup();
    ensure!(found.len() == 12, "of twelve entries at once there are {found:?}");
    Ok(())
}

/// R5: logs do not see each other, nor the documents of their name.
pub async fn r5_logs_are_independent(bench: &RecordsBench) -> Law {
    let log = bench.name();
    let other = format!("{log}/2");
    bench.put(&log, None, "a document").await?;
    bench.a.append(&bench.cx, &log, bytes("one"), 1).await?;
    bench.a.append(&bench.cx, &other, bytes("two"), 1).await?;
    let found = (entries(bench, &log, 9).await?, entries(bench, &other, 9).await?);
    ensure!(found.0 == ["one"] && found.1 == ["two"], "the logs have mixed: {found:?}");
    let document = bench.seen(&log).await?.map(|record| record.bytes);
    ensure!(document == Some(bytes("a document")), "the log of its name changed a document: {document:?}");
    Ok(())
}

/// `tail` gives the newest entries, the oldest of them first.
pub async fn tail_is_the_newest_with_the_oldest_first(bench: &RecordsBench) -> Law {
    let log = bench.name();
    let none = entries(bench, &log, 9).await?;
    ensure!(none.is_empty(), "a log that nobody wrote has {none:?}");
    for name in ["a", "b", "c", "d"] {
        bench.a.append(&bench.cx, &log, bytes(name), 10).await?;
    }
    let cases: [(usize, &[&str]); 3] = [(2, &["c", "d"]), (4, &["a", "b", "c", "d"]), (0, &[])];
    for (limit, expected) in cases {
        let found = entries(bench, &log, limit).await?;
        ensure!(found == expected, "the newest {limit} are {expected:?}, but there is {found:?}");
    }
    Ok(())
}
