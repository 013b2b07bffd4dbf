//! Sinks that would feed their own stream.

use watchkeeper_core::{Backend, ErrorKind, Options, Origin, Purpose, Result, Setting, WrittenSetting};
use watchkeeper_postgres::Postgres;

use super::bench::{Base, assert_error, block_on, cx, on_both, shared};

fn options(url: &str, settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("shop.toml:1");
    let mut options = Options::new("", origin.clone());
    for (name, value) in [("url", url)].iter().chain(settings) {
        options.insert(*name, WrittenSetting::text(*value, origin.clone()));
    }
    options
}

/// A stream that reads what a publication tells of these tables, or of all.
fn stream(url: &str, publication: &str, tables: &[&str]) -> Purpose {
    let origin = Origin::new("shop.toml:1");
    let mut source = options(url, &[("mode", "replication"), ("publication", publication)]);
    if !tables.is_empty() {
        let list = tables.iter().map(|table| WrittenSetting::text(*table, origin.clone())).collect();
        source.insert("tables", WrittenSetting { setting: Setting::List(list), origin });
    }
    Purpose::new("shop", "fed").reading(&Postgres, &source)
}

/// What `check` says of a sink.
async fn inspected(stream: &Purpose, url: &str, mode: &str, table: &str) -> Result<()> {
    let mut sink = options(url, &[("mode", mode), ("table", table)]);
    Postgres.check_sink(&cx(), stream, &mut sink).await.map(drop)
}

/// Expects that `check` and a run refuse a sink, since the stream watches `watched`.
async fn assert_fed(stream: &Purpose, url: &str, mode: &str, table: &str, watched: &str) {
    let cause = format!("watches {watched}, which this sink writes to");
    assert_error(inspected(stream, url, mode, table).await, ErrorKind::Config, &cause);
    let mut sink = options(url, &[("mode", mode), ("table", table)]);
    assert_error(Postgres.sink(&cx(), stream, &mut sink).await.map(drop), ErrorKind::Config, &cause);
}

const TABLES: &str = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE SCHEMA apart;
    CREATE TABLE apart.a (id int PRIMARY KEY); CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)";

#[test]
fn a_sink_does_not_write_into_what_its_publication_tells_of() {
    on_both(TABLES, async |base| {
        let url = base.url();
        base.run(
            "CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION one FOR TABLE a;
            CREATE PUBLICATION of_schema FOR TABLES IN SCHEMA apart",
        )
        .await;
        let all = stream(&url, "everything", &[]);
        assert_fed(&all, &url, "rows", "a", "public.a").await;
        // A table that the sink would make is published as soon as it is there.
        assert_fed(&all, &url, "events", "made", "public.made").await;
        assert_fed(&all, &url, "versioned", "apart.made", "apart.made").await;
        inspected(&all, &url, "rows", "unlogged").await.expect("it is not in the log");
        // Who names the tables to watch is told of those alone.
        let named = stream(&url, "everything", &["a"]);
        assert_fed(&named, &url, "rows", "public.a", "public.a").await;
        for (mode, table) in [("rows", "b"), ("rows", "apart.a"), ("events", "made"), ("mirror", "made")] {
            inspected(&named, &url, mode, table).await.expect("nobody watches it");
        }
        let one = stream(&url, "one", &[]);
        assert_fed(&one, &url, "rows", "a", "public.a").await;
        for (mode, table) in [("rows", "b"), ("rows", "apart.a"), ("events", "made")] {
            inspected(&one, &url, mode, table).await.expect("it is not published");
        }
        let apart = stream(&url, "of_schema", &[]);
        assert_fed(&apart, &url, "mirror", "apart.made", "apart.made").await;
        assert_fed(&apart, &url, "versioned_rows", "apart.a", "apart.a").await;
        inspected(&apart, &url, "mirror", "made").await.expect("its schema is not published");
        // A publication that is not there will be made for the tables that are named.
        let made = stream(&url, "to_be_made", &["a"]);
        assert_fed(&made, &url, "rows", "a", "public.a").await;
        inspected(&made, &url, "rows", "b").await.expect("nobody names it");
    });
}

#[test]
fn what_a_sink_writes_beside_its_table_does_not_feed_it_either() {
    on_both(TABLES, async |base| {
        let url = base.url();
        base.run("CREATE TABLE b_versions (); CREATE PUBLICATION one FOR TABLE a, b_versions").await;
        assert_fed(&stream(&url, "one", &[]), &url, "versioned_rows", "b", "public.b_versions").await;
        // The checkpoint in another schema than the one that the source knows as Watchkeeper's own.
        base.run("CREATE PUBLICATION everything FOR ALL TABLES; CREATE SCHEMA keeper").await;
        let all = stream(&url, "everything", &[]);
        let settings = [("schema", "keeper"), ("mode", "rows"), ("table", "unlogged")];
        let kept_apart = Postgres.check_sink(&cx(), &all, &mut options(&url, &settings)).await.map(drop);
        assert_error(kept_apart, ErrorKind::Config, "watches keeper.checkpoints");
    });
}

#[test]
fn tables_in_parts_are_reported_as_the_whole_or_as_parts() {
    let parts = "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10);
        CREATE TABLE high PARTITION OF whole FOR VALUES FROM (10) TO (20);
        CREATE PUBLICATION as_whole FOR TABLE whole WITH (publish_via_partition_root = true);
        CREATE PUBLICATION as_parts FOR TABLE whole; CREATE PUBLICATION as_part FOR TABLE high";
    on_both(parts, async |base| {
        let url = base.url();
        for (publication, table, watched) in [
            ("as_whole", "whole", "public.whole"),
            ("as_whole", "low", "public.whole"),
            ("as_parts", "whole", "public.high"),
            ("as_parts", "low", "public.low"),
            ("as_part", "whole", "public.high"),
        ] {
            assert_fed(&stream(&url, publication, &[]), &url, "rows", table, watched).await;
        }
        inspected(&stream(&url, "as_part", &[]), &url, "rows", "low").await.expect("it is not published");
        assert_fed(&stream(&url, "to_be_made", &["whole"]), &url, "rows", "low", "public.whole").await;
    });
}

#[test]
fn a_table_of_the_same_name_in_another_database_is_another_table() {
    block_on(async {
        let [old, new] = watchkeeper_testkit::servers::postgres::Version::ALL;
        let here = Base::new(shared(old), TABLES).await;
        let beside = Base::new(shared(old), TABLES).await;
        let there = Base::new(shared(new), TABLES).await;
        for base in [&here, &beside, &there] {
            base.run("CREATE PUBLICATION everything FOR ALL TABLES").await;
        }
        let all = stream(&here.url(), "everything", &[]);
        for elsewhere in [&beside, &there] {
            inspected(&all, &elsewhere.url(), "rows", "a").await.expect("nobody watches it");
            inspected(&all, &elsewhere.url(), "events", "made").await.expect("nobody watches it");
        }
        assert_fed(&all, &here.url(), "rows", "a", "public.a").await;
    });
}

#[test]
fn rows_need_the_key_by_which_the_log_tells_them_apart() {
    let tables =
        "CREATE TABLE things (id int PRIMARY KEY, code text NOT NULL); CREATE UNIQUE INDEX by_code ON things (code);
        CREATE TABLE by_id (id int PRIMARY KEY, code text); CREATE TABLE by_code_alone (id int, code text PRIMARY KEY)";
    on_both(tables, async |base| {
        let url = base.url();
        let watched = stream(&url, "to_be_made", &["things"]);
        inspected(&watched, &url, "rows", "by_id").await.expect("it has the same key");
        let wrong = inspected(&watched, &url, "rows", "by_code_alone").await;
        let cause = "the primary key of \"by_code_alone\" is taken from (code), but that of public.things is (id)";
        assert_error(wrong, ErrorKind::Config, cause);
        // An identity that is not the primary key is all that a delete tells.
        base.run("ALTER TABLE things REPLICA IDENTITY USING INDEX by_code").await;
        inspected(&watched, &url, "versioned_rows", "by_code_alone").await.expect("it has the same key");
        let wrong = inspected(&watched, &url, "rows", "by_id").await;
        assert_error(wrong, ErrorKind::Config, "but that of public.things is (code)");
        // Of many tables few are named.
        base.run(
            "CREATE TABLE c (c int PRIMARY KEY); CREATE TABLE d (d int PRIMARY KEY); CREATE TABLE e (e int PRIMARY KEY);
            CREATE TABLE f (f int PRIMARY KEY); CREATE PUBLICATION many FOR TABLE c, d, e, f",
        )
        .await;
        let wrong = inspected(&stream(&url, "many", &[]), &url, "rows", "by_id").await;
        assert_error(wrong, ErrorKind::Config, "and 1 more have other keys");
    });
}
