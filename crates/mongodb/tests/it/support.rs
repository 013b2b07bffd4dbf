use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use watchkeeper_core::{BootClock, Cx, Entropy, ErrorKind, LeaseKey, Result};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Client, Config};
use watchkeeper_testkit::laws::{Damage, DamageCheckpoint};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

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

    pub(crate) fn url(&self) -> &str {
        &self.url
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

/// A set of one node that lets nobody in without a password.
pub(crate) struct Guarded {
    // Dropped in this order: processes before the file of their key.
    set: ReplicaSet,
    _key: tempfile::TempDir,
}

impl Guarded {
    /// With a user `keeper` who may do everything.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let key = folder.path().join("key");
        std::fs::write(&key, "c2VjcmV0IG9mIHRoZSBzZXQ=").expect("a file can be written");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        let arguments = vec!["--auth".to_owned(), "--keyFile".to_owned(), key.display().to_string()];
        let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
        let direct = format!("mongodb://{}/?directConnection=true", set.hosts()[0]);
        let first = watchkeeper_mongodb::mongodb::Client::with_uri_str(direct).await.expect("the server is there");
        let user = doc! { "createUser": "keeper", "pwd": "secret", "roles": ["root"] };
        first.database("admin").run_command(user).await.expect("the first user can be made from here");
        Self { set, _key: folder }
    }

    /// Its server.
    pub(crate) fn set(&self) -> &ReplicaSet {
        &self.set
    }

    /// The URL of a database for a user, whose password is `secret`.
    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        let rest = url(&self.set, database).replace("mongodb://", "");
        format!("mongodb://{user}:secret@{rest}&authSource=admin")
    }

    pub(crate) async fn client(&self, user: &str, database: &str) -> Client {
        let config = Config::new(self.url(user, database)).expect("the URL is one");
        Client::open(&cx(), config).await.expect("the server is there")
    }

    /// Makes a user with these privileges.
    pub(crate) async fn user(&self, name: &str, privileges: Vec<Document>) {
        let keeper = self.client("keeper", "admin").await;
        admin(&keeper, doc! { "createRole": name, "privileges": privileges, "roles": [] }).await;
        admin(&keeper, doc! { "createUser": name, "pwd": "secret", "roles": [name] }).await;
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
pub(crate) fn assert_error<T: std::fmt::Debug>(answer: Result<T>, kind: ErrorKind, cause: &str) {
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

/// Edits the documents of checkpoints behind the store's back.
#[derive(Debug)]
pub(crate) struct Editor(pub(crate) Client);

#[async_trait]
impl DamageCheckpoint for Editor {
    async fn damage(&self, key: &LeaseKey, how: Damage) -> Result<()> {
        let damaged = match how {
            Damage::Emptied => doc! { "checkpoint": {} },
            Damage::Garbled => doc! { "checkpoint": 7 },
            Damage::ClaimGarbled => doc! { "epoch": "seven", "seq": [], "tenure": 7, "checkpoint": 7 },
        };
        edit(&self.0, "watchkeeper_checkpoints", key, damaged).await;
        Ok(())
    }
}

/// Sets fields of a stored document.
pub(crate) async fn edit(client: &Client, collection: &str, key: &LeaseKey, fields: Document) {
    let database = client.database(&cx()).await.expect("it is open");
    let found = database.collection::<Document>(collection);
    let updated = found.update_one(doc! { "_id": key.as_str() }, doc! { "$set": fields }).await;
    assert_eq!(updated.expect("it can be written").matched_count, 1, "the document is there");
}
