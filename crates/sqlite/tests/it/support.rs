use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use watchkeeper_core::{BootClock, Cx};
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
