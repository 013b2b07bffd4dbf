//! The program on a real replica set of MongoDB.

mod blaming;
mod failing;
mod fallback;
mod history;
mod losing;
mod mirroring;
mod refusing;
mod rotating;
mod watching;

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::Runtime;
use watchkeeper::mongodb::mongodb::bson::{Document, doc, oid::ObjectId};
use watchkeeper::mongodb::mongodb::{Client, Database};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::workspace::{Running, Workspace, until};

/// A set of one node that these tests share; each has a database of its own in it.
fn shared() -> &'static ReplicaSet {
    static SET: OnceLock<ReplicaSet> = OnceLock::new();
    SET.get_or_init(|| ReplicaSet::start(1))
}

/// A folder, and a database with a collection `orders`.
pub(super) struct SourceFixture {
    pub(super) workspace: Workspace,
    runtime: Runtime,
    pub(super) database: Database,
    /// Of the database.
    pub(super) url: String,
}

impl SourceFixture {
    pub(super) fn new() -> Self {
        Self::on(shared())
    }

    pub(super) fn on(set: &ReplicaSet) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
        let url = format!("{}&heartbeatFrequencyMS=500", set.url(&format!("test_{}", ObjectId::new())));
        let database = runtime.block_on(async {
            let client = Client::with_uri_str(&url).await.expect("the server is there");
            let database = client.default_database().expect("the URL names one");
            database.create_collection("orders").await.expect("it can be made");
            database
        });
        Self { workspace: Workspace::new(), runtime, database, url }
    }

    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Writes a file with the store here, the changes into files, and this as the stream's own settings.
    pub(super) fn configure(&self, stream: &str) {
        self.configure_store(&self.url, stream);
    }

    pub(super) fn configure_store(&self, store: &str, stream: &str) {
        let file = format!(
            "[group]\nname = \"shop\"\nstore = \"{store}\"\nlease = \"30s\"\n\n[[stream]]\nname = \"orders\"\n\
             checkpoint = {{ every = \"50ms\" }}\n{stream}\n[[stream.sink]]\ntype = \"file\"\nfolder = \".\"\n"
        );
        self.workspace.write("watchkeeper.toml", &file);
    }

    /// The source of the collection `orders`, with further settings.
    pub(super) fn orders(&self, more: &str) -> String {
        format!("source = {{ url = \"{}\", collection = \"orders\"{more} }}\n", self.url)
    }

    /// Starts the first instance, and waits until it has noted where "now" is: what happens from then on is delivered.
    pub(super) fn start(&self, name: &str) -> Running {
        let running = self.workspace.start(name);
        until("the stream is opened", || {
            self.checkpoint().is_some_and(|stored| stored.get_document("position").is_ok())
        });
        running
    }

    pub(super) fn order(&self, items: &[&str]) {
        let orders = self.database.collection::<Document>("orders");
        let documents = items.iter().map(|item| doc! { "item": *item });
        self.block_on(async { orders.insert_many(documents).await }).expect("orders are taken");
    }

    /// The items of the orders that have arrived, in their order.
    pub(super) fn delivered(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.workspace.path("orders-000001.ndjson")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let item = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
            event["fullDocument"]["item"].as_str().expect("an order has an item").to_owned()
        };
        whole.lines().map(item).collect()
    }

    /// The stored checkpoint, as it stands in the database.
    pub(super) fn checkpoint(&self) -> Option<Document> {
        let checkpoints = self.database.collection::<Document>("watchkeeper_checkpoints");
        let stored = self.block_on(async { checkpoints.find_one(doc! {}).await }).expect("it can be read");
        stored.and_then(|stored| stored.get_document("checkpoint").ok().cloned())
    }

    /// The stored position. The first checkpoint of a stream has none.
    pub(super) fn position(&self) -> Option<Document> {
        self.checkpoint().and_then(|stored| stored.get_document("position").ok().cloned())
    }

    /// The names of all collections.
    pub(super) fn collections(&self) -> Vec<String> {
        let mut names =
            self.block_on(async { self.database.list_collection_names().await }).expect("they can be listed");
        names.sort();
        names
    }
}
