//! Transactions that end in another order than they began, or than their changes are numbered.

use watchkeeper_core::{Operation, Source, StartAt};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{Shop, is_quiet, read, received};
use crate::support::{block_on, cx};

fn keys(changes: &[watchkeeper_core::Change]) -> Vec<(Operation, String)> {
    received(changes).into_iter().map(|(operation, key, _)| (operation, key)).collect()
}

/// "All below the oldest transaction in progress, by number" would pass over the lower number for ever.
#[test]
fn a_lower_number_that_is_committed_later_is_not_lost() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            let (early, late) = (shop.session().await, shop.session().await);
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            early.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
            late.batch_execute("BEGIN; INSERT INTO things VALUES (1)").await.unwrap();
            early.batch_execute("INSERT INTO things VALUES (2); COMMIT").await.unwrap();
            let first = read(&mut *stream, 1).await;
            assert_eq!(keys(&first), [(Operation::Insert, "[2]".to_owned())]);
            late.batch_execute("COMMIT").await.unwrap();
            let second = read(&mut *stream, 1).await;
            assert_eq!(keys(&second), [(Operation::Insert, "[1]".to_owned())]);
            assert!(first[0].version() > second[0].version(), "the later one has the lower number");
            // Both positions are good to go on from.
            for (position, rest) in [(first[0].position(), 1), (second[0].position(), 0)] {
                let mut again = shop.log().await.open(&cx(), StartAt::After(position)).await.unwrap();
                assert_eq!(keys(&read(&mut *again, rest).await), keys(&second)[..rest]);
                assert!(is_quiet(&mut *again).await);
            }
        });
    }
}

/// "By transaction, then by number" would tell the newer value of the key first.
#[test]
fn an_older_transaction_that_changes_a_key_last_is_reported_last() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run("INSERT INTO things VALUES (1, 0)").await;
            let old = shop.session().await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Now).await.unwrap();
            old.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
            shop.run("UPDATE things SET n = 1 WHERE id = 1").await;
            old.batch_execute("UPDATE things SET n = 2 WHERE id = 1; COMMIT").await.unwrap();
            let changes = read(&mut *stream, 2).await;
            let n: Vec<_> = changes.iter().map(|change| change.get(&["after", "n"]).unwrap().unwrap()).collect();
            assert_eq!(n, [1, 2].map(watchkeeper_core::ValueRef::Int64));
            assert!(changes[0].version() < changes[1].version());
        });
    }
}

#[test]
fn a_transaction_that_stays_open_delays_only_itself() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let long = shop.session().await;
        let log = shop.log().await;
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        long.batch_execute("BEGIN; INSERT INTO things VALUES (0)").await.unwrap();
        for id in 1..=20 {
            shop.run(&format!("INSERT INTO things VALUES ({id})")).await;
        }
        let others = read(&mut *stream, 20).await;
        assert_eq!(keys(&others)[19].1, "[20]");
        // Also for who begins now, from a position that knows of the open transaction.
        let mut again = log.open(&cx(), StartAt::After(others[9].position())).await.unwrap();
        assert_eq!(keys(&read(&mut *again, 10).await), keys(&others)[10..]);
        long.batch_execute("COMMIT").await.unwrap();
        for stream in [&mut stream, &mut again] {
            assert_eq!(keys(&read(&mut **stream, 1).await)[0].1, "[0]");
            assert!(is_quiet(&mut **stream).await);
        }
    });
}

#[test]
fn what_is_rolled_back_is_not_reported() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("BEGIN; INSERT INTO things VALUES (1); ROLLBACK").await;
        shop.run(
            "BEGIN; INSERT INTO things VALUES (2); SAVEPOINT a; INSERT INTO things VALUES (3); ROLLBACK TO a;
            SAVEPOINT b; INSERT INTO things VALUES (4); COMMIT",
        )
        .await;
        assert_eq!(keys(&read(&mut *stream, 2).await).into_iter().map(|key| key.1).collect::<Vec<_>>(), ["[2]", "[4]"]);
        assert!(is_quiet(&mut *stream).await);
    });
}

/// An error in a window does not make its beginning read: what lies there has lower numbers than what was given out before.
#[test]
fn a_loss_is_reported_again_to_who_goes_on() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let late = shop.session().await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        let lost = "BEGIN; INSERT INTO watchkeeper.log (entity, operation) VALUES ('public.things', 'lost')";
        late.batch_execute(lost).await.unwrap();
        shop.run("INSERT INTO things VALUES (2)").await;
        read(&mut *stream, 1).await;
        late.batch_execute("COMMIT").await.unwrap();
        for _ in 0..3 {
            let answer = stream.next_batch(&cx(), super::support::LIMITS).await;
            crate::support::assert_error(answer, watchkeeper_core::ErrorKind::PositionLost, "history is lost");
        }
    });
}
