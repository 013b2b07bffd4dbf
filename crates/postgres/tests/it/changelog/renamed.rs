//! Tables and columns that have other names than when they were logged, and keys whose types are not the server's own.

use watchkeeper_core::{ErrorKind, Operation, Source, StartAt};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop, read, received};
use crate::support::{assert_error, block_on, cx};

#[test]
fn a_table_that_is_installed_under_its_new_name_ends_under_its_old_one() {
    block_on(async {
        let shop = Shop::new(Version::V15).await;
        let old = shop.log().await.only(&cx(), vec!["things".to_owned()]).await.unwrap();
        let mut stream = old.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1); ALTER TABLE things RENAME TO goods").await;
        read(&mut *stream, 1).await;
        let names = install(&cx(), &shop.client, &["goods"], Wake::Notify).await.unwrap();
        assert_eq!(names, ["public.goods"]);
        shop.run("INSERT INTO goods VALUES (2)").await;
        let lost = stream.next_batch(&cx(), LIMITS).await;
        assert_error(lost, ErrorKind::PositionLost, "public.things was not logged for a while");
        // Whoever names the table as it is now reads on; nobody can name it as it was.
        assert_error(shop.log().await.only(&cx(), vec!["things".to_owned()]).await, ErrorKind::Config, "is not logged");
        let new = shop.log().await.only(&cx(), vec!["goods".to_owned()]).await.unwrap();
        let mut stream = new.open(&cx(), StartAt::Oldest).await.unwrap();
        let changes = read(&mut *stream, 1).await;
        assert_eq!((changes[0].namespace(), changes[0].key()), ("public.goods", Some(&b"[2]"[..])));
        assert!(new.check(&cx()).await.unwrap().is_empty());
    });
}

/// As a log is that was written before a table could have one name only.
#[test]
fn a_table_whose_triggers_tell_another_name_is_found() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run(
            "INSERT INTO watchkeeper.log_tables SELECT 'public.former', relation, key FROM watchkeeper.log_tables",
        )
        .await;
        let found = shop.log().await.check(&cx()).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("public.former") && found[0].what.contains("another name"), "{found:?}");
        let log = shop.log().await.only(&cx(), vec!["things".to_owned()]).await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
        shop.run("INSERT INTO things VALUES (1)").await;
        assert_eq!(read(&mut *stream, 1).await[0].namespace(), "public.things");
    });
}

#[test]
fn a_key_is_reported_by_its_column_although_another_one_has_its_name_by_now() {
    for table in [
        "CREATE TABLE things (id bigint PRIMARY KEY, n bigint)",
        "CREATE TABLE things (n bigint, id bigint, PRIMARY KEY (id)) PARTITION BY RANGE (id);
         CREATE TABLE part (id bigint NOT NULL, n bigint);
         ALTER TABLE things ATTACH PARTITION part FOR VALUES FROM (0) TO (100)",
    ] {
        block_on(async {
            let shop = Shop::with(Version::V18, table, "things").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO things (id, n) VALUES (1, 5)").await;
            shop.run("ALTER TABLE things RENAME id TO nr; ALTER TABLE things ADD COLUMN id bigint DEFAULT 77").await;
            shop.run("UPDATE things SET n = 6; UPDATE things SET nr = 2; DELETE FROM things").await;
            let received = received(&read(&mut *stream, 5).await);
            let keys: Vec<_> = received.iter().map(|(operation, key, _)| (*operation, key.as_str())).collect();
            use Operation::{Delete, Insert, Update};
            assert_eq!(keys, [(Insert, "[1]"), (Update, "[1]"), (Delete, "[1]"), (Insert, "[2]"), (Delete, "[2]")]);
        });
    }
}

/// The operators of an extension are not on the search path of the triggers, and an application must not notice.
#[test]
fn keys_of_an_extension_are_looked_for_with_its_operators() {
    // What a nested statement has changed is told once more, but not with a deferrable key.
    for (key, count) in [("id ltree PRIMARY KEY", 8), ("id ltree PRIMARY KEY DEFERRABLE", 7)] {
        block_on(async {
            let table = format!(
                "CREATE EXTENSION ltree; CREATE TABLE things ({key}, v text);
                CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    UPDATE things SET v = 'nested' WHERE id = 'b' AND NEW.id = 'a' AND v <> 'nested'; RETURN NULL; END $$;
                CREATE TRIGGER again AFTER UPDATE ON things FOR EACH ROW EXECUTE FUNCTION again();
                INSERT INTO things VALUES ('a', 'x'), ('b', 'x')"
            );
            let shop = Shop::with(Version::V15, &table, "things").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("UPDATE things SET v = 'outer'; UPDATE things SET id = 'c' WHERE id = 'a'; DELETE FROM things")
                .await;
            let received = received(&read(&mut *stream, count).await);
            assert_eq!(received.last().map(|(operation, ..)| *operation), Some(Operation::Delete), "{received:?}");
            assert!(received.iter().any(|(_, key, body)| key == r#"["b"]"# && body.contains("nested")), "{received:?}");
        });
    }
}

/// Without a primary key there is nothing to look for, and the application writes on.
#[test]
fn a_key_that_is_gone_keeps_nobody_from_writing() {
    block_on(async {
        let table = "CREATE TABLE things (id int PRIMARY KEY DEFERRABLE, v text); INSERT INTO things VALUES (1, 'x')";
        let shop = Shop::with(Version::V15, table, "things").await;
        shop.run("ALTER TABLE things DROP CONSTRAINT things_pkey; UPDATE things SET id = 2; DELETE FROM things").await;
        let rows = shop.application.query("SELECT FROM watchkeeper.log", &[]).await.unwrap();
        assert_eq!(rows.len(), 2);
    });
}
