//! A table that is no longer logged is a matter of the streams that read it, and of no others.

use watchkeeper_core::source::Severity;
use watchkeeper_core::{Backend, ErrorKind, Purpose, Source, StartAt};
use watchkeeper_postgres::Postgres;
use watchkeeper_testkit::servers::postgres::Version;

use super::configured::{flagged, listed, options_at, run};
use super::support::{LIMITS, read};
use crate::support::{Base, assert_error, block_on, cx};

const TABLES: &str = "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE swapped (id int PRIMARY KEY)";

async fn installed() -> Base {
    let base = Base::new(Version::V15).await;
    base.admin().await.batch_execute(TABLES).await.unwrap();
    run("install", flagged(listed(options_at(&base.url()), "table", &["good", "swapped"]), "silent")).await.unwrap();
    base
}

async fn source(base: &Base, tables: &[&str]) -> std::sync::Arc<dyn Source> {
    let purpose = Purpose::new("shop", "orders");
    let mut options = listed(options_at(&base.url()), "tables", tables);
    Postgres.source(&cx(), &purpose, &mut options).await.expect("a source is made whatever its tables are like")
}

#[test]
fn a_table_that_was_swapped_or_dropped_stops_its_own_stream_only() {
    for (sql, why) in [
        (
            "ALTER TABLE swapped RENAME TO former; CREATE TABLE swapped (id int PRIMARY KEY)",
            "another table has its name",
        ),
        ("DROP TABLE swapped; CREATE TABLE swapped (id int PRIMARY KEY)", "dropped and made again"),
        ("DROP TABLE swapped", "it was dropped"),
        ("ALTER TABLE swapped DISABLE TRIGGER ALL", "trigger is gone or disabled"),
    ] {
        block_on(async {
            let base = installed().await;
            let application = base.admin().await;
            application.batch_execute(sql).await.unwrap();
            for named in ["swapped", "public.swapped"] {
                let swapped = source(&base, &[named]).await;
                let found = swapped.check(&cx()).await.unwrap();
                let received = found.iter().find(|finding| finding.severity == Severity::Error).expect("it is told");
                assert!(
                    received.what.contains("public.swapped is not logged any more") && received.what.contains(why),
                    "{received:?}"
                );
                let remedy = received.remedy.as_deref().unwrap_or_default();
                assert!(
                    remedy.contains("postgres install --url postgres://USER@")
                        && remedy.contains(" --table public.swapped`"),
                    "{remedy}"
                );
                let mut stream = swapped.open(&cx(), StartAt::Oldest).await.unwrap();
                assert_error(stream.next_batch(&cx(), LIMITS).await, ErrorKind::PositionLost, why);
            }
            let mut good = source(&base, &["good"]).await.open(&cx(), StartAt::Oldest).await.unwrap();
            application.batch_execute("INSERT INTO good VALUES (1)").await.unwrap();
            assert_eq!(read(&mut *good, 1).await.len(), 1);
        });
    }
}

/// What was never logged is a mistake in the settings, which the stream's own opening tells.
#[test]
fn a_table_that_was_never_logged_is_reported_by_the_opening() {
    block_on(async {
        let base = installed().await;
        base.admin().await.batch_execute("CREATE TABLE other (id int PRIMARY KEY)").await.unwrap();
        for named in ["other", "nowhere"] {
            let log = source(&base, &[named]).await;
            let cause = format!("the table {named} is not logged; those that are: public.good, public.swapped");
            assert_error(log.open(&cx(), StartAt::Oldest).await.map(drop), ErrorKind::Config, &cause);
            assert_error(log.check(&cx()).await, ErrorKind::Config, &cause);
        }
        run("install", flagged(listed(options_at(&base.url()), "table", &["other"]), "silent")).await.unwrap();
        source(&base, &["other"]).await.open(&cx(), StartAt::Oldest).await.unwrap();
    });
}
