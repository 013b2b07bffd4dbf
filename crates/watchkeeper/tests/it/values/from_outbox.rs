//! From an outbox of PostgreSQL, whose rows are the JSON that an application wrote.

use std::collections::BTreeMap;

use watchkeeper::StartAt;
use watchkeeper::postgres::changelog::Columns;
use watchkeeper::postgres::{ChangeLog, Client, Config};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::carry::{Delivery, cx, read};
use super::documents::{Documents, part};
use super::from_postgres::connect;
use super::generate::Run;
use super::json::Json;

/// JSON with what is easily lost.
const EDGES: [&str; 14] = [
    "{}",
    "[]",
    "[[1,2],[3]]",
    "\"\"",
    "\"null\"",
    "\"{\\\"a\\\":1}\"",
    "true",
    "1.50",
    "1e400",
    "12345678901234567890.10",
    "18446744073709551615",
    "-9223372036854775808",
    "{\"z\":1,\"a\":[1,null,{\"b\":[[]]}]}",
    "\"\\\\ \\\" é 𝄞\"",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_an_outbox_arrive_equal() {
    let (server, set, run) = (Server::start(Version::V18), ReplicaSet::start(1), Run::new());
    let folder = tempfile::tempdir().expect("a folder can be made");
    let url = server.url("postgres");
    let application = connect(&url).await;
    let values = EDGES.map(str::to_owned).into_iter().chain((0..run.cases * 10).map(|_| run.json(4)));
    let values: Vec<String> = values.collect();
    let mut wrong = Vec::new();
    for kind in ["json", "jsonb"] {
        let table = format!(
            "CREATE TABLE outbox_{kind} (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about int, payload {kind},
                xid xid8 NOT NULL DEFAULT pg_current_xact_id());
            CREATE INDEX ON outbox_{kind} (xid); CREATE TABLE copy_{kind} (id int PRIMARY KEY, v {kind})"
        );
        application.batch_execute(&table).await.expect("they are new");
        for (id, value) in values.iter().enumerate() {
            let sql = format!("INSERT INTO outbox_{kind} (about, payload) VALUES ($1, $2::text::{kind})");
            let payload = format!("{{\"id\":{id},\"v\":{value}}}");
            application.execute(&sql, &[&(id as i32), &payload]).await.expect("it is JSON");
        }
        let client = Client::open(&cx(), Config::new(&url).expect("a URL")).await.expect("the server is there");
        let columns = Columns { after: Some("payload".to_owned()), ..Columns::of_outbox("about") };
        let outbox = ChangeLog::outbox(&cx(), client, kind, &format!("outbox_{kind}"), columns).await;
        let batches = read(&outbox.expect("it is one"), StartAt::Oldest, values.len()).await;
        let copy = format!("copy_{kind}");
        let mut delivery = Delivery::to(&[("url", &url), ("mode", "rows"), ("table", &copy)]).await;
        delivery.deliver(&batches).await;
        assert_eq!(delivery.rejected, BTreeMap::new());
        let rows = application.query(&format!("SELECT id, v::text FROM {copy}"), &[]).await.expect("it is there");
        for row in rows {
            let (value, found): (&String, String) = (&values[row.get::<_, i32>(0) as usize], row.get(1));
            if Json::parse(value) != Json::parse(&found) {
                wrong.push(format!("{value} of {kind} into rows: {found}"));
            }
        }
        for sink in Documents::all(folder.path(), &set) {
            let found = sink.carry(&url, kind, "after", &batches).await;
            assert_eq!(found.len(), values.len(), "{}: as many documents as changes", sink.name());
            for document in found {
                let value = &values[part(&document, "id").parse::<usize>().expect("it has its id")];
                let (expected, kept) = (Json::parse(value), Json::parse(&part(&document, "v")));
                let is_same = if sink.is_mongodb() { expected.is_kept_as(&kept.unmarked()) } else { expected == kept };
                if !is_same {
                    wrong.push(format!("{value} of {kind} into {}: {document}", sink.name()));
                }
            }
        }
    }
    let (seed, count) = (run.seed, wrong.len());
    assert!(wrong.is_empty(), "seed {seed}: {count} values arrive different\n{}", wrong.join("\n"));
}
