//! Triggers that are missing, of an older version, or in somebody's way.

use watchkeeper_core::{ErrorKind, Source, StartAt};
use watchkeeper_postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper_testkit::servers::postgres::Version;

use super::statements::{keyed, logs_statements};
use super::support::{LIMITS, Shop, is_quiet, read, received};
use crate::sink::shown;
use crate::support::{Base, assert_error, block_on, connect, cx, fresh_name};

/// Somebody disables one of the triggers.
#[test]
fn a_single_trigger_that_is_missing_is_found() {
    for name in ["row", "open", "insert", "update", "delete", "partition"] {
        block_on(async {
            let shop = Shop::new(Version::V15).await;
            shop.run(&format!(r#"ALTER TABLE things DISABLE TRIGGER "!watchkeeper_log_{name}""#)).await;
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, "is not logged any more");
        });
    }
}

/// As the log was before: row-level triggers, nothing of what those of statements need, and no guard of the log itself.
const EARLIER_VERSION: &str = r#"
    DROP TRIGGER "!watchkeeper_log_open" ON things; DROP TRIGGER "!watchkeeper_log_insert" ON things;
    DROP TRIGGER "!watchkeeper_log_update" ON things; DROP TRIGGER "!watchkeeper_log_delete" ON things;
    DROP TRIGGER "!watchkeeper_log_partition" ON things;
    ALTER TABLE things ENABLE ALWAYS TRIGGER "!watchkeeper_log_row";
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'watchkeeper'::regnamespace
            AND (proname ~ '^log_(of|open)_' OR proname IN ('log_open', 'log_make', 'log_move', 'log_doubts_sql', 'log_statement_sql', 'log_key_names',
                'log_key_sql', 'log_key_part')) LOOP EXECUTE 'DROP FUNCTION ' || name; END LOOP; END $$;
    DROP TRIGGER watchkeeper_deleted ON watchkeeper.log; DROP TRIGGER watchkeeper_emptied ON watchkeeper.log;
    DROP FUNCTION watchkeeper.log_deleted(), watchkeeper.log_emptied(), watchkeeper.log_note_deletion(xid8, bigint);
    ALTER TABLE watchkeeper.log DROP COLUMN oldest_open;
    ALTER TABLE watchkeeper.log_tables DROP COLUMN lost;
    CREATE INDEX log_losses ON watchkeeper.log (id) WHERE operation = 'lost';
    UPDATE watchkeeper.meta SET value = '1' WHERE name = 'schema/log'"#;

#[test]
fn a_log_of_an_earlier_version_is_read_and_brought_up_to_date() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            shop.run(EARLIER_VERSION).await;
            let log = shop.log().await;
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            shop.run("INSERT INTO things VALUES (1); UPDATE things SET n = 2").await;
            let first = read(&mut *stream, 2).await;
            assert_eq!(
                received(&first)[1].2,
                r#"{"before":{"id":1,"n":0,"name":null},"after":{"id":1,"n":2,"name":null},"changed":["n"]}"#
            );
            let found = log.check(&cx()).await.unwrap();
            assert!(found.iter().all(|finding| finding.what.contains("would be skipped without notice")), "{found:?}");
            install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
            assert!(logs_statements(&shop, "things").await);
            shop.run("UPDATE things SET n = 3").await;
            assert_eq!(keyed(&read(&mut *stream, 1).await), ["update [1]"]);
            let mut again = log.open(&cx(), StartAt::After(first[1].position())).await.unwrap();
            assert_eq!(keyed(&read(&mut *again, 1).await), ["update [1]"], "no history is lost");
            assert!(is_quiet(&mut *again).await);
            shop.run(EARLIER_VERSION).await;
            uninstall(&cx(), &shop.client, &["things"], Unread::Discard).await.unwrap();
            let left = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'watchkeeper'::regnamespace";
            assert_eq!(shown(&shop.client, left).await, [""; 0]);
        });
    }
}

/// As the log was when an index of the losses told where it begins.
const WITH_AN_INDEX_OF_LOSSES: &str = "
    ALTER TABLE watchkeeper.log_tables DROP COLUMN lost;
    CREATE INDEX log_losses ON watchkeeper.log (id) WHERE operation = 'lost';
    UPDATE watchkeeper.meta SET value = '4' WHERE name = 'schema/log'";

/// The oldest place from which a log can be read is behind its newest loss, whichever version of the log noted that.
#[test]
fn a_log_begins_behind_its_newest_loss() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        let lose = async |id: i32| {
            shop.run(&format!(
                r#"ALTER TABLE things DISABLE TRIGGER "!watchkeeper_log_insert"; INSERT INTO things VALUES ({id})"#
            ))
            .await;
            install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        };
        let expect = async |keys: &[&str]| {
            let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
            assert_eq!(keyed(&read(&mut *stream, keys.len()).await), keys);
            assert!(is_quiet(&mut *stream).await);
        };
        shop.run("INSERT INTO things VALUES (1)").await;
        lose(2).await;
        shop.run("INSERT INTO things VALUES (3)").await;
        expect(&["insert [3]"]).await;
        shop.run(WITH_AN_INDEX_OF_LOSSES).await;
        expect(&["insert [3]"]).await;
        install(&cx(), &shop.client, &["things"], Wake::Notify).await.unwrap();
        expect(&["insert [3]"]).await;
        lose(4).await;
        shop.run("INSERT INTO things VALUES (5)").await;
        expect(&["insert [5]"]).await;
    });
}

/// A table that is logged can be dropped, renamed and moved as before, and leaves nothing behind when it is uninstalled.
#[test]
fn nothing_of_a_table_is_in_the_way_of_its_owner() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        shop.run("CREATE TABLE others (id int PRIMARY KEY); CREATE SCHEMA away").await;
        install(&cx(), &shop.client, &["others"], Wake::Silent).await.unwrap();
        shop.run("DROP TABLE others; ALTER TABLE things SET SCHEMA away; ALTER TABLE away.things RENAME TO more; INSERT INTO away.more VALUES (1)")
            .await;
        let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
        assert_eq!(keyed(&read(&mut *stream, 1).await), ["insert [1]"]);
        uninstall(&cx(), &shop.client, &["public.others", "away.more"], Unread::Discard).await.unwrap();
        let left = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'watchkeeper'::regnamespace";
        assert_eq!(shown(&shop.client, left).await, [""; 0]);
        shop.run("INSERT INTO away.more VALUES (2)").await;
    });
}

/// Whoever hardens a server takes the right to call functions from everybody.
#[test]
fn a_user_who_may_call_no_function_is_logged() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let (client, admin, user) = (base.client().await, base.admin().await, fresh_name());
        admin
            .batch_execute(&format!(
                "{}; CREATE ROLE {user} LOGIN; GRANT ALL ON things TO {user}; ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
                super::support::THINGS
            ))
            .await
            .unwrap();
        install(&cx(), &client, &["things"], Wake::Silent).await.unwrap();
        let session = connect(&base.url_of(&user)).await;
        session
            .batch_execute(
                "SET search_path = pg_temp; INSERT INTO public.things VALUES (1); UPDATE public.things SET n = 1",
            )
            .await
            .unwrap();
        let logged = "SELECT operation FROM watchkeeper.log ORDER BY id";
        assert_eq!(shown(&client, logged).await, ["insert", "update"]);
    });
}
