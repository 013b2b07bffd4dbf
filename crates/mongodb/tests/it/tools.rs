//! The commands of MongoDB on real servers.

use std::sync::Arc;

use watchkeeper_core::{Backend, ErrorKind, Options, Origin, Report, Result, Setting, Tool, WrittenSetting};
use watchkeeper_mongodb::MongoDb;
use watchkeeper_mongodb::mongodb::bson::{Document, doc};

use crate::source::Shop;
use crate::support::{Base, assert_error, block_on, cx};

async fn run(name: &str, base: &Base, arguments: &[(&str, &str)]) -> Result<Report> {
    run_at(name, base.url(), arguments).await
}

/// Runs a tool with these arguments; an empty value is that of a flag.
pub(crate) async fn run_at(name: &str, url: &str, arguments: &[(&str, &str)]) -> Result<Report> {
    let tool: Arc<dyn Tool> = MongoDb.tools().into_iter().find(|tool| tool.name() == name).expect("there is one");
    let origin = Origin::new("command line");
    let mut options = Options::new("", origin.clone());
    for (name, value) in [("url", url)].iter().chain(arguments) {
        let setting = if value.is_empty() { Setting::Flag(true) } else { Setting::Text((*value).to_owned()) };
        options.insert(*name, WrittenSetting { setting, origin: origin.clone() });
    }
    let report = tool.run(&cx(), &mut options).await?;
    options.finish()?;
    Ok(report)
}

#[test]
fn images_are_stored_only_when_that_is_asked_for() {
    block_on(async {
        let shop = Shop::open().await;
        let stored = async || {
            let list = doc! { "listCollections": 1, "filter": { "name": "orders" } };
            let reported: Document = shop.database.run_command(list).await.expect("they can be listed");
            reported.to_string().contains("changeStreamPreAndPostImages")
        };
        let unasked = run("setup", &shop.base, &[("collection", "orders")]).await;
        assert_error(unasked, ErrorKind::Config, "it was not said what to set up");
        assert!(!stored().await);
        let missing = run("setup", &shop.base, &[("collection", "ordres"), ("images", "")]).await;
        assert_error(missing, ErrorKind::Config, "there is no such collection");
        let report = run("setup", &shop.base, &[("collection", "orders"), ("images", "")]).await.expect("it works");
        assert_eq!(report.data, serde_json::json!({ "images": ["orders"], "created": [] }));
        assert!(stored().await);
    });
}

#[test]
fn a_missing_collection_is_created_with_images_when_that_is_asked_for() {
    block_on(async {
        let shop = Shop::open().await;
        let asked = [("collection", "lines"), ("images", ""), ("create", "")];
        let report = run("setup", &shop.base, &asked).await.expect("it is created");
        assert_eq!(report.data, serde_json::json!({ "images": ["lines"], "created": ["lines"] }));
        let list = doc! { "listCollections": 1, "filter": { "name": "lines" } };
        let reported: Document = shop.database.run_command(list).await.expect("they can be listed");
        assert!(reported.to_string().contains("changeStreamPreAndPostImages"), "{reported}");
        // One that is there is set up as it is.
        let again = run("setup", &shop.base, &asked).await.expect("it is there");
        assert_eq!(again.data["created"], serde_json::json!([]));
    });
}

#[test]
fn the_oplog_is_reported_with_its_window_and_a_warning() {
    block_on(async {
        let shop = Shop::open().await;
        shop.insert(doc! { "_id": 1 }).await;
        let reported = run("oplog", &shop.base, &[]).await.expect("it can be read");
        assert!(reported.lines[0].contains(" of 64.0 MiB ("), "{reported:?}");
        assert!(reported.lines.iter().any(|line| line.starts_with("warning: the oplog reaches back")), "{reported:?}");
        assert!(reported.data["bytes_per_second"]["recent"].as_f64().is_some_and(|rate| rate > 0.0), "{reported:?}");
        assert_eq!(reported.data["max_bytes"], 64 * 1024 * 1024);
        assert_eq!(reported.data["streams"], serde_json::json!([]));
    });
}

#[test]
fn an_audit_log_is_asked_in_words_and_times() {
    block_on(async {
        let base = Base::new();
        let client = base.client().await;
        let log = client.database(&cx()).await.expect("it is open").collection::<Document>("audit_log");
        let record = |day: u32, operation: &str| {
            let time = format!("2026-01-{day:02}T12:00:00Z");
            let time = watchkeeper_mongodb::mongodb::bson::DateTime::parse_rfc3339_str(time).expect("a time");
            doc! { "timestamp": time, "sourceCollection": "orders", "operationType": operation, "documentId": 7 }
        };
        log.insert_many([record(1, "insert"), record(2, "update"), record(3, "delete")]).await.expect("taken");
        let asked = async |arguments: &[(&str, &str)]| run("audit-query", &base, arguments).await;
        let reported = asked(&[]).await.expect("it can be asked");
        assert_eq!(reported.lines[0], "2026-01-03T12:00:00Z  delete   orders  7");
        assert_eq!(reported.data.as_array().map(Vec::len), Some(3));
        let reported =
            asked(&[("since", "2026-01-02"), ("until", "2026-01-03T00:00:00Z")]).await.expect("it can be asked");
        assert_eq!(reported.lines, ["2026-01-02T12:00:00Z  update   orders  7"]);
        let reported = asked(&[("operation", "drop"), ("limit", "1")]).await.expect("it can be asked");
        assert_eq!(reported.lines, ["No record in audit_log fits."]);
        assert_error(asked(&[("since", "yesterday")]).await, ErrorKind::Config, "since: \"yesterday\" is no time");
        assert_error(asked(&[("limit", "0")]).await, ErrorKind::Config, "limit: 0 is not between");
    });
}
