//! One connection on an OS thread of its own.

mod change_hints;
mod connect;
mod evict;
mod link;
mod schema;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{Cx, Error, Result};

pub(crate) use change_hints::ChangeHints;
pub(crate) use connect::{connect, refuse_network, refuse_unwritable};
pub(crate) use evict::write_or_evict;
pub(crate) use schema::Schema;
pub(crate) use writer::Process;

use self::link::Link;
use self::schema::Maintained;
use crate::clock::{Stamp, boot_id};
use crate::config::Config;
use crate::error::Failure;

type Job = Box<dyn FnOnce(&mut Link) + Send>;

/// What is looked at once the work is done.
type AfterWork = fn(&mut Link, &Maintained) -> Result<()>;

/// Calls that wait for the thread. More than that, and callers wait themselves.
const QUEUE: usize = 64;

/// A connection. Cheap to clone; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct Client {
    jobs: mpsc::Sender<Job>,
    config: Arc<Config>,
    boot: Arc<str>,
    maintained: Maintained,
}

impl Client {
    /// Opens the file, on a new thread.
    ///
    /// # Errors
    /// `Config` when the path cannot work, `Denied` without access to it.
    pub async fn open(cx: &Cx, config: Config) -> Result<Self> {
        config.validate()?;
        let boot = boot_id()?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let (opened, opening) = oneshot::channel();
        let config = Arc::new(config);
        let theirs = Arc::clone(&config);
        launch("watchkeeper-sqlite", move || serve(&theirs, opened, queue))?;
        cx.run(async { opening.await.unwrap_or_else(|_| Err(gone())) }).await?;
        Ok(Self { jobs, config, boot: boot.into(), maintained: Maintained::default() })
    }

    /// The same file on a connection and a thread of its own.
    pub async fn separate(&self, cx: &Cx) -> Result<Self> {
        // Told here when the file is gone, which must not be made again in passing.
        self.run(cx, |_| Ok(())).await?;
        let client = Self::open(cx, Config { create: false, ..(*self.config).clone() }).await?;
        Ok(Self { config: Arc::clone(&self.config), maintained: self.maintained.clone(), ..client })
    }

    /// Which file, and how.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn now(&self) -> Stamp {
        Stamp::now(&self.boot)
    }

    /// Runs `work` in a read transaction: it sees one state of the file, and waits for no writer.
    pub async fn read<T, W>(&self, cx: &Cx, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let deferred = |connection: &mut Connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
            work(&transaction)
        };
        // What was read from a file that is no longer there did nothing, so its failure is known.
        self.call(cx, deferred, |link, maintained| link.current(maintained).map(drop)).await
    }

    /// Runs `work` in a write transaction, and commits it unless it fails.
    ///
    /// # Errors
    /// `Unknown` when it may have been committed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still be committed.
    pub async fn write<T, W>(&self, cx: &Cx, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    {
        self.run(cx, |connection| write_on(connection, work)).await
    }

    /// Runs `work` on the database thread, unless the caller has given up before it begins.
    pub(crate) async fn run<T, W>(&self, cx: &Cx, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        self.call(cx, work, |link, _| link.require_unreplaced()).await
    }

    /// As [`run`](Self::run); `after` says what it means when the file was replaced while `work` went on.
    async fn call<T, W>(&self, cx: &Cx, work: W, after: AfterWork) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let (config, maintained, theirs) = (Arc::clone(&self.config), self.maintained.clone(), cx.clone());
        let job: Job = Box::new(move |link| {
            if answer.is_closed() {
                return;
            }
            let done = attempt(link, (&config, &maintained), &theirs, work, after);
            let done = done.map_err(|failure| failure.into_error(&config.path));
            // The caller may have given up meanwhile; then the outcome is unknown to it.
            let _ = answer.send(done);
        });
        let call = async {
            self.jobs.send(job).await.map_err(|_| gone())?;
            answered.await.unwrap_or_else(|_| Err(Error::unknown("the database thread ended during the call")))
        };
        cx.run(call).await
    }
}

fn gone() -> Error {
    Error::unavailable("the database thread has ended").remedy("open the database again")
}

/// Runs `work` in a transaction that takes the write lock first. A transaction that reads before it
/// writes would fail without waiting when another has written in between.
pub(crate) fn write_on<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let answer = work(&transaction)?;
    transaction.commit().map_err(Failure::Commit)?;
    Ok(answer)
}

fn attempt<T>(
    link: &mut Link,
    (config, maintained): (&Config, &Maintained),
    cx: &Cx,
    work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    after: AfterWork,
) -> Result<T, Failure> {
    cx.check()?;
    let connection = link.current(maintained)?;
    let patience = cx.remaining().map_or(config.busy, |left| left.min(config.busy));
    connection.busy_timeout(patience)?;
    // A transaction that is open during a panic is rolled back when it is dropped.
    let answer = catch_unwind(AssertUnwindSafe(|| work(connection)))
        .unwrap_or_else(|panic| Err(Error::internal(format!("work panicked: {}", panic_text(&*panic))).into()))?;
    after(link, maintained)?;
    Ok(answer)
}

fn serve(config: &Config, opened: oneshot::Sender<Result<()>>, mut queue: mpsc::Receiver<Job>) {
    let mut link = match Link::open(config) {
        Ok(link) => link,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    if opened.send(Ok(())).is_err() {
        return;
    }
    while let Some(job) = queue.blocking_recv() {
        job(&mut link);
    }
}

fn launch(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(drop).map_err(|error| Error::unavailable("could not start a thread").caused_by(error))
}
