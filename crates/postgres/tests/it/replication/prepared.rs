//! Transactions in two phases.

use watchkeeper_core::StartAt;
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, Watch, block_on, connect, server, shown};

#[test]
fn a_prepared_transaction_is_reported_when_it_is_committed_and_not_when_it_is_undone() {
    for version in Version::ALL {
        let server = server(version, &["max_prepared_transactions = 4"]);
        block_on(async {
            let base = Base::new(&server, "CREATE TABLE things(id int PRIMARY KEY)").await;
            for streaming in [false, true] {
                let mut settings = base.settings();
                settings.streaming = streaming;
                let source = base.source_with(settings);
                let mut watch = Watch::open(&source, StartAt::Now).await;
                for (id, name) in [(1, "kept"), (2, "undone")] {
                    let other = connect(&base.url()).await;
                    let sql = format!("BEGIN; INSERT INTO things VALUES ({id}); PREPARE TRANSACTION '{name}'");
                    other.batch_execute(&sql).await.unwrap();
                }
                base.run("INSERT INTO things VALUES (3)").await;
                let between = watch.changes(1).await.remove(0);
                assert_eq!(shown(&between), r#"insert {"before":null,"after":{"id":3}}"#);
                watch.close().await;
                // Whoever takes over between the two phases gets the second.
                base.run("ROLLBACK PREPARED 'undone'").await;
                base.run("COMMIT PREPARED 'kept'").await;
                base.run("INSERT INTO things VALUES (4)").await;
                let mut watch = Watch::open(&source, StartAt::After(between.position())).await;
                let reported: Vec<_> = watch.changes(2).await.iter().map(shown).collect();
                assert_eq!(reported, [1, 4].map(|id| format!(r#"insert {{"before":null,"after":{{"id":{id}}}}}"#)));
                watch.close().await;
                base.run("TRUNCATE things").await;
            }
            base.done().await;
        });
    }
}
