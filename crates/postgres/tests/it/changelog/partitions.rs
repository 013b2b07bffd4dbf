//! Partitioned tables.

use watchkeeper_core::{ErrorKind, Operation, Source, StartAt};
use watchkeeper_postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{Shop, is_quiet, read, received};
use crate::support::{assert_error, block_on, cx};

const ORDERS: &str =
    "CREATE TABLE orders (year int, id int, r int, k text, PRIMARY KEY (year, id)) PARTITION BY RANGE (year);
    CREATE TABLE orders_25 PARTITION OF orders FOR VALUES FROM (2025) TO (2026);
    CREATE TABLE orders_26 PARTITION OF orders FOR VALUES FROM (2026) TO (2027)";

#[test]
fn partitions_are_reported_as_their_table() {
    use Operation::{Delete, Insert, Truncate};
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::with(version, ORDERS, "orders").await;
            let log = shop.log().await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO orders VALUES (2025, 1), (2026, 2); INSERT INTO orders_26 VALUES (2026, 3)").await;
            // A partition that is truncated alone loses its rows only.
            shop.run("TRUNCATE orders_26; TRUNCATE orders").await;
            shop.run("CREATE TABLE orders_27 PARTITION OF orders FOR VALUES FROM (2027) TO (2028)").await;
            shop.run("INSERT INTO orders VALUES (2027, 4)").await;
            let changes = read(&mut *stream, 7).await;
            assert!(changes.iter().all(|change| change.namespace() == "public.orders"));
            let received: Vec<_> = received(&changes).into_iter().map(|(operation, key, _)| (operation, key)).collect();
            let is = |operation, key: &str| (operation, key.to_owned());
            assert_eq!(received[..3], [is(Insert, "[2025,1]"), is(Insert, "[2026,2]"), is(Insert, "[2026,3]")]);
            assert_eq!(received[3..5], [is(Delete, "[2026,2]"), is(Delete, "[2026,3]")]);
            assert_eq!(received[5..], [is(Truncate, ""), is(Insert, "[2027,4]")]);
            assert!(is_quiet(&mut *stream).await);
            // What a new partition lacks is found, and mended by installing again.
            let findings = log.check(&cx()).await.unwrap();
            assert!(findings.iter().any(|finding| finding.what.contains("orders_27")), "{findings:?}");
            install(&cx(), &shop.client, &["orders"], Wake::Notify).await.unwrap();
            assert_eq!(log.check(&cx()).await.unwrap(), []);
            shop.run("TRUNCATE orders_27").await;
            let last = read(&mut *stream, 1).await;
            assert_eq!((last[0].operation(), last[0].key()), (Delete, Some(&b"[2027,4]"[..])));
            // What was detached is a table for itself.
            shop.run("INSERT INTO orders VALUES (2027, 5); ALTER TABLE orders DETACH PARTITION orders_27").await;
            shop.run("TRUNCATE orders_27").await;
            assert_eq!(read(&mut *stream, 1).await[0].operation(), Insert);
            assert!(is_quiet(&mut *stream).await);
        });
    }
}

/// What is told of the whole is told for as long as the whole is truncated, not for the rest of the transaction.
#[test]
fn a_part_that_is_truncated_after_the_whole_is_reported() {
    use Operation::{Delete, Insert, Truncate};
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::with(version, ORDERS, "orders").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run(
                "BEGIN; INSERT INTO orders VALUES (2025, 1); TRUNCATE orders; INSERT INTO orders VALUES (2026, 2);
                TRUNCATE orders_26; COMMIT",
            )
            .await;
            let received: Vec<_> =
                read(&mut *stream, 4).await.iter().map(watchkeeper_core::Change::operation).collect();
            assert_eq!(received, [Insert, Truncate, Insert, Delete]);
        });
    }
}

/// A table that becomes a part is logged as one, also where triggers of the application are off.
#[test]
fn a_part_that_is_attached_is_logged_from_then_on() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::with(version, ORDERS, "orders").await;
            let log = shop.log().await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run(
                "CREATE TABLE later (LIKE orders INCLUDING ALL); INSERT INTO later VALUES (2027, 1);
                ALTER TABLE orders ATTACH PARTITION later FOR VALUES FROM (2027) TO (2028);
                SET session_replication_role = replica; INSERT INTO orders VALUES (2027, 2); UPDATE later SET r = 1 WHERE id = 1",
            )
            .await;
            let received: Vec<_> = received(&read(&mut *stream, 2).await)
                .into_iter()
                .map(|(operation, key, _)| (operation, key))
                .collect();
            let expected = [(Operation::Insert, "[2027,2]"), (Operation::Update, "[2027,1]")];
            assert_eq!(received, expected.map(|(operation, key)| (operation, key.to_owned())));
            let found = log.check(&cx()).await.unwrap();
            assert!(found.iter().any(|finding| finding.what.contains("later")), "{found:?}");
        });
    }
}

#[test]
fn a_partition_and_its_whole_are_not_both_logged() {
    block_on(async {
        let table = "CREATE TABLE things (id int PRIMARY KEY) PARTITION BY RANGE (id);
            CREATE TABLE part PARTITION OF things FOR VALUES FROM (0) TO (100)";
        let shop = Shop::with(Version::V15, table, "part").await;
        let refused = install(&cx(), &shop.client, &["things"], Wake::Notify).await;
        assert_error(refused, ErrorKind::Config, "public.part is logged already");
        let shop = Shop::with(Version::V18, table, "things").await;
        let refused = install(&cx(), &shop.client, &["part"], Wake::Notify).await;
        assert_error(refused, ErrorKind::Config, "public.things is logged already");
    });
}

#[test]
fn what_was_a_partition_is_uninstalled_with_its_table() {
    block_on(async {
        let shop = Shop::with(Version::V15, ORDERS, "orders").await;
        shop.run("ALTER TABLE orders DETACH PARTITION orders_25").await;
        uninstall(&cx(), &shop.client, &["orders"], Unread::Discard).await.expect("nothing is left of it");
        let left = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal";
        assert_eq!(shop.application.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
    });
}

#[test]
fn partitions_that_are_gone_are_warned_of_until_the_table_is_installed_again() {
    for gone in ["DROP TABLE orders_25", "ALTER TABLE orders DETACH PARTITION orders_25"] {
        block_on(async {
            let shop = Shop::with(Version::V18, ORDERS, "orders").await;
            let log = shop.log().await;
            assert_eq!(log.check(&cx()).await.unwrap(), []);
            shop.run(gone).await;
            let found = log.check(&cx()).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].what.contains("partitions of public.orders were dropped or detached"), "{found:?}");
            install(&cx(), &shop.client, &["orders"], Wake::Notify).await.expect("it can be repeated");
            assert_eq!(log.check(&cx()).await.unwrap(), []);
        });
    }
}
