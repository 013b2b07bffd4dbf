use std::time::Duration;

use watchkeeper_core::{Change, ErrorKind, Source, StartAt, ValueRef};
use watchkeeper_postgres::{Config, Replication, tokio_postgres};
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::bench::{Base, Watch, assert_told, block_beside, block_on, connect, cx, server};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY)";

/// A primary with a database of this name, and a standby that follows it.
fn pair() -> (Server, Server, String) {
    let primary = server(Version::V18, &["log_min_messages = 'warning'"]);
    let name = block_on(async {
        let base = Base::new(&primary, THINGS).await;
        base.run("SELECT pg_create_physical_replication_slot('standby', true)").await;
        base.name
    });
    primary.stop();
    let standby = primary.standby();
    primary.restart();
    (primary, standby, name)
}

/// Asks until the answer is yes; each question may do something for it.
async fn until_so(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    for _ in 0..1_200 {
        if ask().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it never is so: {what}");
}

async fn yes(sql: &tokio_postgres::Client, query: &str) -> bool {
    let row = sql.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    row.get::<_, Option<bool>>(0) == Some(true)
}

/// Waits until the standby has the slot as one that lasts.
async fn wait_for_slot(primary: &tokio_postgres::Client, standby: &tokio_postgres::Client, slot: &str) {
    let lasts =
        format!("SELECT bool_or(synced AND NOT temporary) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    until_so("the standby has the slot", async || {
        primary.batch_execute("SELECT pg_log_standby_snapshot()").await.expect("the superuser may");
        // It is refused while the standby has not caught up.
        let _ = standby.batch_execute("SELECT pg_sync_replication_slots()").await;
        yes(standby, &lasts).await
    })
    .await;
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
        old.batch_execute("INSERT INTO things VALUES (1)").await.unwrap();
        let shared = watch.changes(1).await[0].position();
        watch.stream.acknowledge(&cx(), &shared).await.unwrap();
        let pedigree = before.identity(&cx()).await.unwrap();
        wait_for_slot(&old, &new, &name).await;
        old.batch_execute("INSERT INTO things VALUES (2)").await.unwrap();
        until_so("the standby has the row", async || yes(&new, "SELECT count(*) = 2 FROM things").await).await;
        standby.stop();
        old.batch_execute("INSERT INTO things VALUES (3)").await.unwrap();
        let lost = watch.changes(2).await[1].position();
        primary.kill();
        standby.restart();
        let new = connect(&standby.url(&name)).await;
        assert!(yes(&new, "SELECT pg_promote(true)").await, "the standby is not promoted");
        let after = source(&standby);
        assert_ne!(after.identity(&cx()).await.unwrap(), pedigree, "the timeline is the same");
        let told = after.verify(&cx(), &lost, &pedigree).await;
        assert_told(told, ErrorKind::PositionLost, "timeline 1 at");
        after.verify(&cx(), &shared, &pedigree).await.expect("both histories share it");
        let mut again = Watch::open(&after, StartAt::After(shared)).await;
        new.batch_execute("INSERT INTO things VALUES (4)").await.unwrap();
        assert_eq!(ids(&again.changes(2).await), [2, 4].map(|id| Some(ValueRef::Int32(id))));
        again.close().await;
        watch.close().await;
    });
}
