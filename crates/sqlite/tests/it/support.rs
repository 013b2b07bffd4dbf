use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use watchkeeper_core::{BootClock, Cx, ErrorKind, Result};
use watchkeeper_sqlite::rusqlite::{self, Transaction};
use watchkeeper_sqlite::{Client, Config};

/// A folder that is removed at the end of its test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) async fn client(&self, name: &str) -> Client {
        Client::open(&cx(), Config::new(self.file(name))).await.expect("a new file can be opened")
    }
}

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O needs nothing").block_on(work)
}

/// Runs statements in one write transaction.
pub(crate) async fn execute(client: &Client, sql: &str) -> Result<()> {
    let sql = sql.to_owned();
    client.write(&cx(), move |transaction| Ok(transaction.execute_batch(&sql)?)).await
}

/// The first column of all rows, as text.
pub(crate) async fn column(client: &Client, sql: &str) -> Vec<String> {
    let sql = sql.to_owned();
    let read = move |transaction: &Transaction<'_>| {
        let mut statement = transaction.prepare(&sql)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    };
    client.read(&cx(), read).await.expect("the table can be read")
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
