use std::future::Future;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use watchkeeper_core::{Error, Result};

/// A thread that does nothing but the network of peers.
#[derive(Debug)]
pub(crate) struct Reactor {
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
}

impl Reactor {
    pub(crate) fn start() -> Result<Self> {
        // The blocking thread resolves names, and is started only for that.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_name("watchkeeper-peers")
            .enable_io()
            .enable_time()
            .build();
        let runtime = runtime.map_err(|error| Error::unavailable("no thread for peers").caused_by(error))?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Runs `work` beside the caller; dropping the handle leaves it running.
    pub(crate) fn launch<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(work))
    }

    /// Runs `work` and waits for it.
    ///
    /// # Cancel safety
    /// Dropping it ends the work.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let gone = || Error::internal("the thread for peers is gone");
        let mut work = Aborting(self.launch(work).ok_or_else(gone)?);
        (&mut work.0).await.map_err(|error| gone().caused_by(error))
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not waiting: it may be dropped inside another runtime, where one must not wait.
            runtime.shutdown_background();
        }
    }
}

struct Aborting<T>(JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
