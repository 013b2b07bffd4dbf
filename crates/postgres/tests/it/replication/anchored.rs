use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use watchkeeper_core::StartAt;
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, Watch, block_on, cx, server};

/// The server notes by itself every 15 seconds which transactions are open, so that it moves the place at which it begins again at
/// most twice in this time.
const LESS_THAN_TWO_NOTES: Duration = Duration::from_secs(28);

#[test]
fn what_is_decoded_again_is_kept_short_where_the_server_can_be_asked() {
    // Of its own: whoever makes a slot has the server note it, too.
    let server = server(Version::V18, &[]);
    block_on(async {
        let base = Base::new(&server, "CREATE TABLE things(id int PRIMARY KEY, v text)").await;
        let slot =
            |column: &str| format!("SELECT {column}::text FROM pg_replication_slots WHERE slot_name = '{}'", base.name);
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        let (mut begins, began) = (BTreeSet::new(), Instant::now());
        for id in 0.. {
            let row = format!("SELECT {id}, string_agg(md5(g::text), '') FROM generate_series(1, 9000) g");
            let before = base.ask(&slot("confirmed_flush_lsn")).await;
            base.run(&format!("INSERT INTO things {row}")).await;
            let change = watch.changes(1).await.remove(0);
            watch.stream.acknowledge(&cx(), &change.position()).await.unwrap();
            while base.ask(&slot("confirmed_flush_lsn")).await == before {
                assert!(began.elapsed() < LESS_THAN_TWO_NOTES, "nothing is confirmed");
            }
            begins.insert(base.ask(&slot("restart_lsn")).await);
            if begins.len() == 4 {
                break;
            }
            assert!(began.elapsed() < LESS_THAN_TWO_NOTES, "the server would begin again at one of {begins:?}");
        }
        watch.close().await;
        base.done().await;
    });
}
