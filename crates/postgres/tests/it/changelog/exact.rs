//! Values that JSON does not tell exactly: its own null, and the bounds of arrays.

use watchkeeper_core::{Change, Source, StartAt, ValueRef};
use watchkeeper_postgres::changelog::{Unread, Wake, install, uninstall};
use watchkeeper_testkit::servers::postgres::Version;

use super::statements::logs_statements;
use super::support::{Shop, read};
use crate::sink::shown;
use crate::support::{block_on, cx};

const MORE: &str = "CREATE TABLE more (id int PRIMARY KEY, doc jsonb, raw json, numbers int[], words text)";

fn after<'a>(change: &'a Change, column: &str) -> Option<ValueRef<'a>> {
    change.batch().payload().get(change.body(), &["after", column]).expect("a body is JSON")
}

fn json_null() -> Option<ValueRef<'static>> {
    Some(ValueRef::Json("null".into()))
}

/// With triggers of statements and of rows.
async fn on_both_kinds(shop: &Shop, test: impl AsyncFn(&Shop)) {
    shop.run(MORE).await;
    for by_statement in [true, false] {
        if !by_statement {
            shop.run(
                "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
                CREATE TRIGGER after AFTER INSERT ON more FOR EACH ROW EXECUTE FUNCTION nothing()",
            )
            .await;
        }
        install(&cx(), &shop.client, &["more"], Wake::Silent).await.unwrap();
        assert_eq!(logs_statements(shop, "more").await, by_statement);
        test(shop).await;
        shop.run("TRUNCATE more").await;
    }
}

#[test]
fn the_null_of_json_and_the_bounds_of_arrays_are_reported() {
    for version in Version::ALL {
        block_on(async {
            let shop = Shop::new(version).await;
            on_both_kinds(&shop, async |shop| {
                let mut stream = shop.log().await.open(&cx(), StartAt::Now).await.unwrap();
                shop.run(
                    r#"INSERT INTO more VALUES (1, 'null', ' null ', '[2:3]={4,5}', 'null'), (2, NULL, NULL, '{4,5}', NULL),
                        (3, '{"a": null}', '[null]', '[1:1][2:2]={{7}}', ',null,');
                    UPDATE more SET doc = 'null' WHERE id = 2; UPDATE more SET doc = NULL WHERE id = 2"#,
                )
                .await;
                let changes = read(&mut *stream, 5).await;
                assert_eq!((after(&changes[0], "doc"), after(&changes[0], "raw")), (json_null(), json_null()));
                assert_eq!(after(&changes[0], "numbers"), Some(ValueRef::Str("[2:3]={4,5}".into())));
                assert_eq!(after(&changes[0], "words"), Some(ValueRef::Str("null".into())));
                assert_eq!(after(&changes[1], "doc"), Some(ValueRef::Null));
                assert_eq!(after(&changes[1], "numbers"), Some(ValueRef::Array));
                assert_eq!(after(&changes[2], "numbers"), Some(ValueRef::Str("[1:1][2:2]={{7}}".into())));
                assert_eq!(after(&changes[2], "doc"), Some(ValueRef::Document));
                let update = |change: &Change| [("before", "doc"), ("after", "doc")].map(|(image, column)| {
                    let found = change.batch().payload().get(change.body(), &[image, column]).expect("a body is JSON");
                    found == json_null()
                });
                assert_eq!(update(&changes[3]), [false, true]);
                assert_eq!(update(&changes[4]), [true, false]);
            })
            .await;
            uninstall(&cx(), &shop.client, &["things", "more"], Unread::Discard).await.unwrap();
            let left = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'watchkeeper'::regnamespace";
            assert_eq!(shown(&shop.client, left).await, [""; 0]);
        });
    }
}

/// What the triggers look at may have another name or type by then, or be gone: writers must not notice.
#[test]
fn columns_that_change_are_in_nobodys_way() {
    block_on(async {
        let shop = Shop::new(Version::V18).await;
        on_both_kinds(&shop, async |shop| {
            let mut stream = shop.log().await.open(&cx(), StartAt::Now).await.unwrap();
            shop.run(
                "ALTER TABLE more RENAME COLUMN doc TO document; INSERT INTO more VALUES (1, 'null', NULL, '[0:0]={1}', NULL);
                ALTER TABLE more ADD COLUMN late jsonb; UPDATE more SET late = 'null';
                ALTER TABLE more ALTER COLUMN numbers TYPE text USING numbers::text; UPDATE more SET late = NULL;
                ALTER TABLE more RENAME TO others; UPDATE others SET words = 'x';
                ALTER TABLE others DROP COLUMN document; UPDATE others SET late = 'null';
                ALTER TABLE others RENAME TO more",
            )
            .await;
            let changes = read(&mut *stream, 5).await;
            assert_eq!(after(&changes[0], "document"), json_null());
            assert_eq!(after(&changes[0], "numbers"), Some(ValueRef::Str("[0:0]={1}".into())));
            assert_eq!((after(&changes[1], "late"), after(&changes[1], "document")), (json_null(), json_null()));
            assert_eq!(after(&changes[2], "late"), Some(ValueRef::Null));
            assert_eq!((after(&changes[4], "late"), after(&changes[4], "document")), (json_null(), None));
            shop.run("DROP TABLE more; CREATE TABLE more (id int PRIMARY KEY, doc jsonb, raw json, numbers int[], words text)").await;
            install(&cx(), &shop.client, &["more"], Wake::Silent).await.unwrap();
        })
        .await;
    });
}
