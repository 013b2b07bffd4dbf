use std::time::Duration;

use watchkeeper_core::{Change, ErrorKind, Position, Source, StartAt, ValueRef};
use watchkeeper_postgres::{Config, Replication, tokio_postgres};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::bench::{Base, Watch, assert_error, block_beside, block_on, connect, cx, server};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY)";

/// A primary with a database of this name, and a standby that follows it.
fn pair() -> (Server, Server, String) {
    let primary = server(Version::V18, &[]);
    let name = block_on(async {
        let base = Base::new(&primary, THINGS).await;
        base.run("SELECT pg_create_physical_replication_slot('standby', true)").await;
        base.name
    });
    primary.stop();
    let standby = primary.standby();
    primary.restart();
    // What follows the slots of a primary that is not there tries again only much later.
    standby.restart();
    (primary, standby, name)
}

async fn yes(sql: &tokio_postgres::Client, query: &str) -> bool {
    let row = sql.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    row.get::<_, Option<bool>>(0) == Some(true)
}

/// Waits until the standby has so many rows.
async fn wait_for_rows(standby: &tokio_postgres::Client, rows: i32) {
    for _ in 0..1_200 {
        if yes(standby, &format!("SELECT count(*) = {rows} FROM things")).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the standby does not follow");
}

/// Writes and reads rows until the standby has the slot as one that lasts, for which the slot has to move; how many rows there
/// are, and the position after the last of them.
async fn share_slot(
    primary: &tokio_postgres::Client,
    standby: &tokio_postgres::Client,
    watch: &mut Watch,
    slot: &str,
) -> (i32, Position) {
    let lasts =
        format!("SELECT bool_or(synced AND NOT temporary) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    for rows in 1..=1_000 {
        let insert = format!("SELECT pg_log_standby_snapshot(); INSERT INTO things VALUES ({rows})");
        primary.batch_execute(&insert).await.expect("the superuser may");
        let position = watch.changes(1).await[0].position();
        watch.stream.acknowledge(&cx(), &position).await.expect("it is told soon");
        wait_for_rows(standby, rows).await;
        if yes(standby, &lasts).await {
            return (rows, position);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the standby does not get the slot");
}

fn ids(changes: &[Change]) -> Vec<Option<ValueRef<'_>>> {
    changes.iter().map(|change| change.get(&["after", "id"]).expect("a body can be read")).collect()
}

#[test]
fn a_promoted_standby_goes_on_from_what_it_had_and_from_nothing_else() {
    let (primary, standby, name) = pair();
    block_beside(async {
        let (old, new) = (connect(&primary.url(&name)).await, connect(&standby.url(&name)).await);
        let mut settings = watchkeeper_postgres::replication::Settings::new(name.clone(), "changes");
        settings.tables = vec!["things".to_owned()];
        let source = |server: &Server| Replication::new(Config::new(&server.url(&name)).unwrap(), settings.clone());
        let before = source(&primary);
        let mut watch = Watch::open(&before, StartAt::Now).await;
        let (rows, shared) = share_slot(&old, &new, &mut watch, &name).await;
        let pedigree = before.identity(&cx()).await.unwrap();
        let insert = async |sql: &tokio_postgres::Client, id: i32| {
            sql.batch_execute(&format!("INSERT INTO things VALUES ({id})")).await.expect("the row can be written");
        };
        insert(&old, rows + 1).await;
        wait_for_rows(&new, rows + 1).await;
        standby.stop();
        insert(&old, rows + 2).await;
        let lost = watch.changes(2).await[1].position();
        primary.kill();
        standby.restart();
        let new = connect(&standby.url(&name)).await;
        assert!(yes(&new, "SELECT pg_promote(true)").await, "the standby is not promoted");
        let after = source(&standby);
        assert_ne!(after.identity(&cx()).await.unwrap(), pedigree, "the timeline is the same");
        let reported = after.verify(&cx(), &lost, &pedigree).await;
        assert_error(reported, ErrorKind::PositionLost, "timeline 1 at");
        after.verify(&cx(), &shared, &pedigree).await.expect("both histories share it");
        let mut again = Watch::open(&after, StartAt::After(shared)).await;
        insert(&new, rows + 3).await;
        assert_eq!(ids(&again.changes(2).await), [rows + 1, rows + 3].map(|id| Some(ValueRef::Int32(id))));
        again.close().await;
        watch.close().await;
    });
}
