//! By what the rows of a logged table are told apart.

use watchkeeper_core::{Change, Operation, Source, StartAt};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{Shop, is_quiet, read, received};
use crate::support::{block_on, cx};

fn keys(changes: &[Change]) -> Vec<String> {
    received(changes).into_iter().map(|(operation, key, _)| format!("{operation} {key}")).collect()
}

#[test]
fn columns_that_an_index_only_includes_are_no_part_of_a_key() {
    for version in Version::ALL {
        block_on(async {
            // What is only included may hold different texts to be equal.
            let table = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                CREATE TABLE things (k text, id int, v text COLLATE loose, PRIMARY KEY (id, k) INCLUDE (v))";
            let shop = Shop::with(version, table, "things").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO things VALUES ('a', 1, 'x'); UPDATE things SET v = 'y'").await;
            // Their names may change, and those of the others.
            shop.run("ALTER TABLE things RENAME id TO nr; ALTER TABLE things RENAME v TO w; UPDATE things SET w = 'z'")
                .await;
            shop.run("UPDATE things SET k = 'b'; DELETE FROM things").await;
            let changes = read(&mut *stream, 6).await;
            let (a, b) = (r#"[1,"a"]"#, r#"[1,"b"]"#);
            let expected = ["insert", "update", "update", "delete", "insert", "delete"];
            let expected: Vec<_> =
                expected.iter().zip([a, a, a, a, b, b]).map(|(operation, key)| format!("{operation} {key}")).collect();
            assert_eq!(keys(&changes), expected, "{version:?}");
            assert!(is_quiet(&mut *stream).await, "a name is no loss of history");
        });
    }
}

/// Statements that the triggers put together name the columns that are there, and no others.
#[test]
fn columns_that_were_dropped_are_in_nobody_s_way() {
    for version in Version::ALL {
        block_on(async {
            let table = "CREATE TABLE things (gone text, id int PRIMARY KEY DEFERRABLE, doc json, other text, n int)";
            let shop = Shop::with(version, table, "things").await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("ALTER TABLE things DROP COLUMN gone, DROP COLUMN other").await;
            // Escapes that cannot be taken apart again, and a key of which another row may be left.
            shop.run(r#"INSERT INTO things VALUES (1, '"\u0000"', 1); UPDATE things SET n = 2; DELETE FROM things"#)
                .await;
            let received = received(&read(&mut *stream, 3).await);
            let (one, two) = (r#"{"id":1,"doc":"\u0000","n":1}"#, r#"{"id":1,"doc":"\u0000","n":2}"#);
            assert_eq!(received[0].2, format!(r#"{{"before":null,"after":{one}}}"#));
            assert_eq!(received[1].2, format!(r#"{{"before":{one},"after":{two},"changed":["n"]}}"#));
            assert_eq!(
                (received[2].0, received[2].2.as_str()),
                (Operation::Delete, &*format!(r#"{{"before":{two},"after":null}}"#))
            );
        });
    }
}
