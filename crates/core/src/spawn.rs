//! Tasks, as a seam: a simulated instance can be paused or dropped with all its tasks.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, abortable};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// What is launched.
pub type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the job on the thread that will run it.
pub type MakeJob = Box<dyn FnOnce() -> Job + Send>;

/// Launches tasks.
pub trait Spawn: Send + Sync + std::fmt::Debug {
    /// Runs `job` beside the caller.
    fn launch(&self, name: &str, job: Job);

    /// Runs `job` on an OS thread of its own with a runtime of its own, so that nothing that blocks
    /// the other workers can starve it. The simulated form is [`launch`](Self::launch).
    fn launch_apart(&self, name: &str, make: MakeJob) -> Result<()>;
}

/// A running task. Dropping it aborts the task at its next await; [`join`](Self::join) waits for it.
#[derive(Debug)]
pub struct Task<T> {
    abort: AbortHandle,
    answer: Option<oneshot::Receiver<Result<T>>>,
}

impl<T: Send + 'static> Task<T> {
    /// Runs `job` on `spawn`.
    pub fn spawn(spawn: &dyn Spawn, name: &str, job: impl Future<Output = T> + Send + 'static) -> Self {
        let (task, job) = Self::wrap(name, job);
        spawn.launch(name, job);
        task
    }

    /// Runs the job that `make` makes on a thread of its own.
    pub fn spawn_apart<F>(spawn: &dyn Spawn, name: &str, make: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (task, job) = Self::wrap(name, async move { make().await });
        spawn.launch_apart(name, Box::new(move || job))?;
        Ok(task)
    }

    fn wrap(name: &str, job: impl Future<Output = T> + Send + 'static) -> (Self, Job) {
        let (sender, receiver) = oneshot::channel();
        let name = name.to_owned();
        let (job, abort) = abortable(async move {
            let outcome = AssertUnwindSafe(job).catch_unwind().await;
            let answer = outcome.map_err(|panic| Error::internal(format!("{name} panicked: {}", panic_text(&*panic))));
            // Nobody may be waiting any more.
            let _ = sender.send(answer);
        });
        let job: Job = Box::pin(job.map(|_| ()));
        (Self { abort, answer: Some(receiver) }, job)
    }

    /// Waits for the task's answer; `Internal` if it panicked or was aborted.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the wait leaves the task running.
    pub async fn join(&mut self) -> Result<T> {
        let Some(receiver) = self.answer.as_mut() else {
            return Err(Error::internal("the task was joined before"));
        };
        let answer = receiver.await.unwrap_or_else(|_| Err(Error::internal("the task was aborted")));
        self.answer = None;
        answer
    }

    /// Whether the answer has been taken.
    pub fn is_joined(&self) -> bool {
        self.answer.is_none()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    // A reference to the box that a panic comes in is a `&dyn Any` too, of the box: look inside it.
    let panic = panic.downcast_ref::<Box<dyn Any + Send>>().map_or(panic, |boxed| &**boxed);
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

/// Tasks of a running program, on tokio.
#[derive(Debug, Clone)]
pub struct TokioSpawn {
    handle: tokio::runtime::Handle,
}

impl TokioSpawn {
    /// Launches on the runtime that the caller is in.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current() -> Self {
        Self { handle: tokio::runtime::Handle::current() }
    }
}

impl Spawn for TokioSpawn {
    fn launch(&self, _name: &str, job: Job) {
        drop(self.handle.spawn(job));
    }

    fn launch_apart(&self, name: &str, make: MakeJob) -> Result<()> {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(make()),
                // The job is dropped, which whoever joins it sees as an abort.
                Err(error) => drop(error),
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        thread.map(drop).map_err(|error| Error::unavailable("could not start a thread").caused_by(error))
    }
}
