use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use watchkeeper_core::{
    Batch, BootClock, Change, ChangeStream, Cx, Entropy, ErrorKind, Limits, Operation, Result, Source, StartAt,
};
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{Config, Replication, tokio_postgres};
use watchkeeper_testkit::servers::postgres::{self, Server, Version};

/// A server of each version that these tests share. Not that of the other tests: a new slot waits for every transaction of its
/// server, and theirs may take their time.
pub(crate) fn shared(version: Version) -> &'static Server {
    static OLD: OnceLock<Server> = OnceLock::new();
    static NEW: OnceLock<Server> = OnceLock::new();
    let cell = if version == Version::V15 { &OLD } else { &NEW };
    cell.get_or_init(|| server(version, &[]))
}

/// A server of its own, with these lines in its configuration.
pub(crate) fn server(version: Version, lines: &[&str]) -> Server {
    let mut settings = postgres::ServerSettings::new(version);
    settings.config.extend(["max_replication_slots = 100", "max_wal_senders = 100"].map(str::to_owned));
    settings.config.extend(lines.iter().map(|line| (*line).to_owned()));
    Server::with(&settings)
}

/// A database with a slot of its own.
pub(crate) struct Base<'a> {
    pub(crate) server: &'a Server,
    pub(crate) name: String,
    /// A bare connection of the superuser.
    pub(crate) sql: tokio_postgres::Client,
}

impl<'a> Base<'a> {
    /// A database in which this was run.
    pub(crate) async fn new(server: &'a Server, schema: &str) -> Self {
        let name = format!("test_{}", Entropy::from_system().uuid().simple());
        let admin = connect(&server.url("postgres")).await;
        // The template is copied file by file: no checkpoint of the whole server has to be waited for.
        admin.batch_execute(&format!("CREATE DATABASE {name} STRATEGY wal_log")).await.expect("a database can be made");
        let sql = connect(&server.url(&name)).await;
        sql.batch_execute(schema).await.expect("the tables can be made");
        Self { server, name, sql }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.name.clone(), "changes");
        settings.tables = vec!["things".to_owned()];
        settings
    }

    pub(crate) fn source(&self) -> Replication {
        self.source_with(self.settings())
    }

    pub(crate) fn source_with(&self, settings: Settings) -> Replication {
        Replication::new(Config::new(&self.url()).expect("the URL is one"), settings)
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.sql.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// The first column of the first row, as text.
    pub(crate) async fn ask(&self, query: &str) -> String {
        let row = self.sql.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
        row.get(0)
    }

    /// Runs a statement about the slot as soon as nobody has it.
    pub(crate) async fn when_free(&self, statement: &str) {
        for _ in 0..6_000 {
            match self.sql.batch_execute(statement).await {
                Ok(()) => return,
                Err(error) if error.code().is_some_and(|code| code.code() == "55006") => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{statement}: {error:?}"),
            }
        }
        panic!("the slot is not let go of");
    }

    /// Removes the slot, so that the server does not keep the log for it, nor a place.
    pub(crate) async fn done(self) {
        let name = &self.name;
        self.when_free(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}' AND active;
             SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
        ))
        .await;
    }
}

/// A bare connection, without anything of ours in between.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

/// As [`block_on`], for tests that block: what they have opened goes on beside them.
pub(crate) fn block_beside<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

/// Runs a test on a fresh database of both versions.
pub(crate) fn on_both(schema: &str, test: impl AsyncFn(&Base<'_>)) {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(shared(version), schema).await;
            test(&base).await;
            base.done().await;
        });
    }
}

pub(crate) const LIMITS: Limits = Limits { rows: 1_000, bytes: 4 << 20, wait: Duration::from_secs(1) };

/// A stream that is read to see what comes.
pub(crate) struct Watch {
    pub(crate) stream: Box<dyn ChangeStream>,
}

impl Watch {
    pub(crate) async fn open(source: &Replication, start: StartAt) -> Self {
        Self { stream: source.open(&cx(), start).await.expect("the stream opens") }
    }

    /// Batches until there are so many changes.
    pub(crate) async fn batches(&mut self, count: usize) -> Vec<Arc<Batch>> {
        let (mut batches, mut rows) = (Vec::new(), 0);
        for _ in 0..120 {
            while rows < count {
                let batch = self.stream.next_batch(&cx(), LIMITS).await.expect("the stream goes on");
                if batch.is_empty() {
                    break;
                }
                rows += batch.len();
                batches.push(Arc::new(batch));
            }
        }
        assert_eq!(rows, count, "so many changes were read");
        batches
    }

    pub(crate) async fn changes(&mut self, count: usize) -> Vec<Change> {
        let batches = self.batches(count).await;
        let all =
            batches.iter().flat_map(|batch| (0..batch.len() as u32).map(|row| Change::new(Arc::clone(batch), row)));
        all.collect()
    }

    /// The next error, past whatever came before it.
    pub(crate) async fn error(&mut self) -> watchkeeper_core::Error {
        for _ in 0..600 {
            if let Err(error) = self.stream.next_batch(&cx(), LIMITS).await {
                return error;
            }
        }
        panic!("the stream goes on and on");
    }

    pub(crate) async fn close(self) {
        self.stream.close(&cx()).await.expect("a stream can be closed");
    }
}

/// A change as `operation body`, with the body as JSON and without the number of its transaction.
pub(crate) fn shown(change: &Change) -> String {
    let mut out = Vec::new();
    let payload = change.batch().payload();
    payload.walk(change.body(), &mut watchkeeper_core::format::JsonWriter::new(&mut out)).expect("a body can be read");
    let text = String::from_utf8(out).expect("JSON is text");
    let body = text.rsplit_once(",\"xid\":").map_or(text.as_str(), |(body, _)| body);
    format!("{} {}}}", change.operation(), body)
}

pub(crate) fn operations(changes: &[Change]) -> Vec<Operation> {
    changes.iter().map(Change::operation).collect()
}

/// Asserts the kind of an error, and that it says what to do in one line.
pub(crate) fn assert_error<T>(answer: Result<T>, kind: ErrorKind, cause: &str) {
    let Err(error) = answer else { panic!("no error told of {cause}") };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(cause), "{text:?} does not say {cause:?}");
    assert!(error.advice().is_some(), "{text:?} has no remedy");
    assert!(!text.contains('\n'), "{text:?} has more than one line");
}
