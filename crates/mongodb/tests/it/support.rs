use std::future::Future;
use std::sync::{Arc, OnceLock};

use futures_util::TryStreamExt;
use watchkeeper_core::{BootClock, Cx, Entropy, ErrorKind, Result};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Client, Config};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

/// A set of one node that all tests of this program share; each has a database of its own in it.
pub(crate) fn shared() -> &'static ReplicaSet {
    static SET: OnceLock<ReplicaSet> = OnceLock::new();
    SET.get_or_init(|| ReplicaSet::start(1))
}

/// A URL in which the driver asks servers often enough for a test.
pub(crate) fn url(set: &ReplicaSet, database: &str) -> String {
    format!("{}&heartbeatFrequencyMS=500", set.url(database))
}

/// A name that no other test uses.
pub(crate) fn fresh_name() -> String {
    format!("test_{}", Entropy::from_system().uuid().simple())
}

/// A database of its own.
pub(crate) struct Base {
    url: String,
}

impl Base {
    pub(crate) fn new() -> Self {
        Self::on(shared())
    }

    pub(crate) fn on(set: &ReplicaSet) -> Self {
        Self { url: url(set, &fresh_name()) }
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(&self.url).expect("the URL is one")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::open(&cx(), self.config()).await.expect("the server is there")
    }

    /// A client that shows which it is, so that fail points can be meant for it alone.
    pub(crate) async fn named_client(&self, name: &str) -> Client {
        let config = Config::new(format!("{}&appName={name}", self.url)).expect("the URL is one");
        Client::open(&cx(), config).await.expect("the server is there")
    }
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

/// Runs an administrator's command.
pub(crate) async fn admin(client: &Client, command: Document) -> Document {
    let driver = client.driver(&cx()).await.expect("the client is open");
    driver.database("admin").run_command(command).await.expect("the command is taken")
}

/// Makes the next `times` commands of this name fail, for the client of this name only.
pub(crate) async fn fail(client: &Client, app: &str, command: &str, times: i32, how: Document) {
    let mut data = doc! { "failCommands": [command], "appName": app };
    data.extend(how);
    admin(client, doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": data }).await;
}

/// Asserts the kind of an error, and that it says what to do.
pub(crate) fn assert_told<T: std::fmt::Debug>(answer: Result<T>, kind: ErrorKind, cause: &str) {
    let error = answer.expect_err(cause);
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(cause), "{text:?} does not say {cause:?}");
    assert!(text.contains("]; "), "{text:?} has no remedy");
    assert!(!text.contains('\n'), "{text:?} has more than one line");
}

/// All documents of a collection, in the order of their `_id`.
pub(crate) async fn in_order(client: &Client, collection: &str) -> Vec<Document> {
    let collection = client.database(&cx()).await.expect("it is open").collection::<Document>(collection);
    let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.expect("the collection can be read");
    found.try_collect().await.expect("the collection can be read")
}
