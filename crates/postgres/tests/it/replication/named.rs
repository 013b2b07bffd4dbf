use std::path::Path;
use std::sync::Arc;

use watchkeeper_core::{
    Backend, ErrorKind, Options, Origin, Purpose, Result, Setting, Source, StartAt, WrittenSetting,
};
use watchkeeper_postgres::Postgres;
use watchkeeper_postgres::replication::Settings;

use super::bench::{Base, Watch, assert_error, cx, on_both};

fn written(settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("watchkeeper.toml:7");
    let mut options = Options::new("stream.source", origin.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting { setting: Setting::Text((*value).to_owned()), origin: origin.clone() });
    }
    options
}

fn options(base: &Base<'_>, more: &[(&str, &str)]) -> Options {
    let url = base.url();
    let fixed = [("url", url.as_str()), ("mode", "replication")];
    written(&[&fixed, more].concat())
}

async fn source(base: &Base<'_>, more: &[(&str, &str)]) -> Result<Arc<dyn Source>> {
    let purpose = Purpose::new("shop", base.name.clone());
    let mut options = options(base, more);
    let source = Postgres.source(&cx(), &purpose, &mut options).await?;
    options.finish()?;
    Ok(source)
}

#[test]
fn a_file_names_the_log_by_its_mode() {
    on_both("CREATE TABLE things(id int PRIMARY KEY)", async |base| {
        let by_file = source(base, &[("table", "things"), ("rewind", "1m"), ("slot", &base.name)]).await.unwrap();
        let mut watch = Watch { stream: by_file.open(&cx(), StartAt::Now).await.unwrap() };
        base.run("INSERT INTO things VALUES (1)").await;
        watch.changes(1).await;
        watch.close().await;
        assert_error(source(base, &[("slot", "Not a slot")]).await.map(drop), ErrorKind::Config, "no name for a slot");
        assert_error(source(base, &[("mode", "wishing")]).await.map(drop), ErrorKind::Config, "wishing");
    });
}

#[test]
fn a_file_says_how_large_transactions_are_reported() {
    let purpose = Purpose::new("shop", "orders");
    let usual = Settings::from_options(&purpose, &mut written(&[])).unwrap();
    assert!(!usual.streaming);
    let mut all = written(&[
        ("streaming", "on"),
        ("spool_memory", "1MiB"),
        ("spool_limit", "2GiB"),
        ("spool_folder", "somewhere"),
    ]);
    let read = Settings::from_options(&purpose, &mut all).unwrap();
    all.finish().expect("nothing is left");
    let expected = (true, 1 << 20, 2 << 30, Path::new("somewhere"));
    assert_eq!((read.streaming, read.spool_memory, read.spool_limit, read.spool_folder.as_path()), expected);
    for (name, value) in [("streaming", "perhaps"), ("spool_limit", "much")] {
        let refused = Settings::from_options(&purpose, &mut written(&[(name, value)]));
        assert_error(refused, ErrorKind::Config, name);
    }
}

#[test]
fn a_look_makes_nothing() {
    on_both("CREATE TABLE things(id int PRIMARY KEY)", async |base| {
        let purpose = Purpose::new("shop", base.name.clone());
        let mut options = options(base, &[("table", "things"), ("slot", &base.name)]);
        Postgres.check_source(&cx(), &purpose, &mut options).await.unwrap();
        let made = "SELECT ((SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_replication_slots
            WHERE database = current_database()) + (SELECT count(*) FROM pg_namespace WHERE nspname = 'watchkeeper'))::text";
        assert_eq!(base.ask(made).await, "0");
    });
}
