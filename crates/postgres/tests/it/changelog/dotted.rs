//! Tables with a dot or a quote in their names.

use watchkeeper_core::{Backend, ErrorKind, Origin, Purpose, StartAt, WrittenSetting};
use watchkeeper_postgres::Postgres;
use watchkeeper_testkit::servers::postgres::Version;

use super::configured::{flagged, listed, options_at, run};
use super::support::read;
use crate::support::{Base, assert_error, block_on, cx};

#[test]
fn a_table_with_a_dot_in_its_name_is_named_in_quotes() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let application = base.admin().await;
        let sql = r#"CREATE TABLE "a.b" (id int PRIMARY KEY); CREATE TABLE "say ""x""" (id int PRIMARY KEY)"#;
        application.batch_execute(sql).await.unwrap();
        let names = [r#"public."a.b""#, r#""say ""x""""#];
        let settings = || options_at(&base.url());
        let received = run("install", flagged(listed(settings(), "table", &names), "silent")).await.unwrap();
        assert_eq!(received[0], "public.a.b: changes are logged from now on");
        let purpose = Purpose::new("shop", "orders");
        for named in [r#"public."a.b""#, r#""a.b""#, r#""public"."a.b""#, "public.a.b"] {
            let mut options = listed(settings(), "tables", &[named]);
            let source = Postgres.source(&cx(), &purpose, &mut options).await.unwrap();
            let mut stream = source.open(&cx(), StartAt::Now).await.unwrap();
            application.batch_execute(r#"DELETE FROM "a.b"; INSERT INTO "a.b" VALUES (1)"#).await.unwrap();
            let first = read(&mut *stream, if named == names[0] { 1 } else { 2 }).await;
            assert_eq!(first[0].namespace(), "public.a.b");
            let names = vec![named.to_owned()];
            let mut options = listed(settings(), "tables", &[named]);
            let resolved = Postgres.namespaces(&cx(), &purpose, &mut options, names).await.unwrap();
            assert_eq!(resolved, ["public.a.b"]);
        }
        // A stream that reads the write-ahead log names tables in the same way.
        for named in [r#"public."a.b""#, r#""a.b""#, "public.a.b"] {
            let mut options = listed(settings(), "tables", &[named]);
            options.insert("mode", WrittenSetting::text("replication", Origin::new("shop.toml:1")));
            let resolved = Postgres.namespaces(&cx(), &purpose, &mut options, vec![named.to_owned()]).await.unwrap();
            assert_eq!(resolved, ["public.a.b"]);
        }
        for wrong in [r#"public."a.b"#, r#""a.b"x"#, r#""""#, "a..b", "."] {
            let refused = run("install", listed(settings(), "table", &[wrong])).await;
            assert_error(refused, ErrorKind::Config, "does not name a table");
        }
        run("uninstall", flagged(listed(settings(), "table", &names), "yes")).await.unwrap();
    });
}

/// A change names its table `schema.table`, which has one meaning only as long as no schema has a dot in its name.
#[test]
fn a_schema_with_a_dot_in_its_name_is_refused() {
    block_on(async {
        let base = Base::new(Version::V15).await;
        let sql = r#"CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int PRIMARY KEY)"#;
        base.admin().await.batch_execute(sql).await.unwrap();
        let refused = run("install", listed(options_at(&base.url()), "table", &[r#""a.b".c"#])).await;
        assert_error(refused, ErrorKind::Config, "the schema \"a.b\" has a dot in its name");
    });
}
