//! The audit log, and asking it.

use watchkeeper_core::{Backend, Grade, Options, Origin, Purpose, WrittenSetting};
use watchkeeper_mongodb::mongodb::bson::{Bson, DateTime, Document, doc};
use watchkeeper_mongodb::{Audit, AuditQuery, Client, MongoDb, Shown, View};

use crate::sink::SinkFixture;
use crate::source::{Shop, read};
use crate::support::{Base, block_on, cx, in_order};

/// Three changes of one order, written into the audit log as they come from the server.
async fn logged(shop: &Shop) {
    let view = View { full_document: Shown::UpdateLookup, ..View::collection("orders") };
    let mut stream = shop.watch(view).await;
    shop.insert(doc! { "_id": "a", "total": 1, "note": "x" }).await;
    let change = doc! { "$set": { "total": 2 }, "$unset": { "note": "" } };
    shop.orders().update_one(doc! {}, change).await.expect("it is taken");
    let mut changes = read(&mut *stream, 2).await;
    shop.orders().delete_one(doc! {}).await.expect("it is taken");
    changes.extend(read(&mut *stream, 1).await);
    let mut fixture = SinkFixture::new(&shop.base, Audit::into(Audit::USUAL).expect("a name")).await;
    fixture.deliver(&changes).await;
}

#[test]
fn a_record_tells_what_the_change_tells() {
    block_on(async {
        let shop = Shop::open().await;
        logged(&shop).await;
        let records = in_order(&shop.client, "audit_log").await;
        let text = |field: &str| -> Vec<&str> {
            records.iter().map(|record| record.get_str(field).expect("a text")).collect()
        };
        assert_eq!(text("sourceCollection"), ["orders"; 3]);
        assert_eq!(text("operationType"), ["insert", "update", "delete"]);
        for record in &records {
            assert_eq!(record.get_str("documentId").expect("it is known"), "a");
            assert!(record.get_document("resumeToken").is_ok_and(|token| token.contains_key("_data")), "{record}");
            assert!(
                record.get_timestamp("clusterTime").is_ok() && record.get_datetime("timestamp").is_ok(),
                "{record}"
            );
        }
        let whole = doc! { "_id": "a", "total": 1, "note": "x" };
        assert_eq!(records[0].get("document"), Some(&Bson::Document(whole)));
        assert_eq!(records[0].get("changes"), None);
        let changes = records[1].get_document("changes").expect("an update tells them");
        assert_eq!(changes.get("updatedFields"), Some(&doc! { "total": 2 }.into()));
        assert_eq!(changes.get("removedFields"), Some(&Bson::Array(vec!["note".into()])));
        assert_eq!(records[2].get("document"), None);
    });
}

/// The stages of the plan that the server would choose.
async fn plan(client: &Client, query: &AuditQuery) -> String {
    let explain = doc! { "explain": query.command("audit_log"), "verbosity": "queryPlanner" };
    let database = client.database(&cx()).await.expect("it is open");
    let reported = database.run_command(explain).await.expect("it can be explained");
    reported
        .get_document("queryPlanner")
        .and_then(|planner| planner.get_document("winningPlan"))
        .expect("a plan")
        .to_string()
}

#[test]
fn questions_are_answered_newest_first_and_by_an_index() {
    block_on(async {
        let shop = Shop::open().await;
        logged(&shop).await;
        let ask = async |query: AuditQuery| -> Vec<String> {
            let found = query.ask(&cx(), &shop.client, "audit_log").await.expect("it can be asked");
            found.iter().map(|record| record.get_str("operationType").expect("a text").to_owned()).collect()
        };
        let all = AuditQuery::default();
        let newest = AuditQuery { limit: 1, ..all.clone() };
        let updates = AuditQuery { operation: Some("update".into()), ..all.clone() };
        let orders = AuditQuery { collection: Some("orders".into()), ..updates.clone() };
        let since = AuditQuery { since: Some(DateTime::from_millis(0)), until: Some(DateTime::MAX), ..all.clone() };
        assert_eq!(ask(all.clone()).await.len(), 3);
        assert_eq!(ask(newest.clone()).await, ["delete"]);
        assert_eq!(ask(updates.clone()).await, ["update"]);
        assert_eq!(ask(orders.clone()).await, ["update"]);
        assert_eq!(ask(since.clone()).await.len(), 3);
        assert!(ask(AuditQuery { until: since.since, ..all.clone() }).await.is_empty());
        for query in [all, newest, updates, orders, since] {
            let plan = plan(&shop.client, &query).await;
            assert!(plan.contains("IXSCAN") && !plan.contains("COLLSCAN"), "{query:?}: {plan}");
        }
    });
}

fn settings(base: &Base, settings: &[(&str, &str)]) -> Options {
    let place = Origin::new("watchkeeper.toml:9");
    let mut options = Options::new("stream.orders.sink[0]", place.clone());
    options.insert("url", WrittenSetting::text(base.url(), place.clone()));
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, place.clone()));
    }
    options
}

#[test]
fn a_sink_is_looked_at_without_being_made() {
    block_on(async {
        let base = Base::new();
        let purpose = Purpose::new("shop", "orders");
        for (mode, grade) in
            [("audit", Grade::Transactional), ("mirror", Grade::Transactional), ("versioned", Grade::Versioned)]
        {
            let mut options = settings(&base, &[("mode", mode), ("collection", "copies")]);
            let inspected = MongoDb.check_sink(&cx(), &purpose, &mut options).await.expect("it can be looked at");
            options.finish().expect("every setting is known");
            assert_eq!(inspected.profile.grade, grade);
            assert!(inspected.findings.is_empty(), "{inspected:?}");
            let client = base.client().await;
            let names = client.database(&cx()).await.expect("it is open").list_collection_names().await;
            assert_eq!(names.expect("they can be listed"), Vec::<String>::new(), "{mode}");
        }
        let mut options = settings(&base, &[("mode", "audit")]);
        let made = MongoDb.sink(&cx(), &purpose, &mut options).await.expect("it can be made").sink;
        made.check(&cx()).await.expect("it can be checked");
        let client = base.client().await;
        let log = client.database(&cx()).await.expect("it is open").collection::<Document>("audit_log");
        let mut indexes = log.list_index_names().await.expect("they can be listed");
        indexes.sort();
        assert_eq!(indexes, ["_id_", "sourceCollection_1_operationType_1", "timestamp_-1"]);
    });
}
