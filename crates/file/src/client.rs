//! A thread of its own for blocking writes, behind a bounded channel.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use watchkeeper_core::{Cx, Error, ErrorKind, Moment, Result};

/// Writes that may wait for the thread; more wait for a place, which slows the source.
const JOBS_MAX: usize = 64;

/// The longest wait for a lock, whatever time the caller has.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// What a call tells the thread about time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Now, on the caller's clock.
    pub(crate) now: Moment,
    /// How long a lock may be waited for.
    pub(crate) patience: Duration,
}

impl Pace {
    pub(crate) fn of(cx: &Cx) -> Self {
        // Half of what is left, so that the answer still finds someone waiting for it.
        let patience = cx.remaining().map_or(PATIENCE_MAX, |left| (left / 2).min(PATIENCE_MAX));
        Self { now: cx.now(), patience }
    }
}

/// What the thread writes to. After the first error it is only dropped.
pub(crate) trait Target: Send + 'static {
    /// Takes whole lines; it may keep them until the next flush.
    fn append(&mut self, lines: Vec<u8>, pace: Pace) -> Result<()>;

    /// Makes durable all that was taken.
    fn flush(&mut self, pace: Pace) -> Result<()>;

    /// Ends in order.
    fn close(&mut self) -> Result<()>;
}

enum Job {
    Append(Vec<u8>, Pace),
    Flush(Pace, oneshot::Sender<Result<()>>),
    Close(oneshot::Sender<Result<()>>),
}

/// The first error of a target: it is told once as it was, and then in short.
#[derive(Debug, Default)]
struct Failure(Mutex<Option<(ErrorKind, Option<Error>)>>);

impl Failure {
    fn note(&self, error: Error) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.get_or_insert((error.kind(), Some(error)));
    }

    fn kind(&self) -> Option<ErrorKind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(kind, _)| *kind)
    }

    fn report_failure(&self) -> Result<()> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some((kind, error)) => {
                Err(error.take().unwrap_or_else(|| Error::new(*kind, "this writer has failed before; open it again")))
            }
        }
    }
}

/// The way to the thread. When it is dropped, the thread ends, and what was not flushed is forgotten.
#[derive(Debug)]
pub(crate) struct Client {
    jobs: mpsc::Sender<Job>,
    failure: Arc<Failure>,
}

impl Client {
    /// Starts a thread and opens a target on it.
    pub(crate) async fn start<T: Target>(cx: &Cx, open: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        let (opened, answer) = oneshot::channel();
        let failure = Arc::new(Failure::default());
        let noted = Arc::clone(&failure);
        launch(move || match open() {
            Ok(target) => {
                // If nobody waits any more, the channel is closed too, and the thread ends.
                let _ = opened.send(Ok(()));
                serve(target, queue, &noted);
            }
            Err(error) => drop(opened.send(Err(error))),
        })?;
        cx.run(async { answer.await.unwrap_or_else(|_| Err(ended())) }).await?;
        Ok(Self { jobs, failure })
    }

    /// Hands over whole lines. An earlier failure is told by the next flush, after which the engine
    /// opens again; only being fenced is told at once, since nothing will be wanted any more.
    pub(crate) async fn append(&self, cx: &Cx, lines: Vec<u8>) -> Result<()> {
        if self.failure.kind() == Some(ErrorKind::Fenced) {
            self.failure.report_failure()?;
        }
        let job = Job::Append(lines, Pace::of(cx));
        cx.run(async { self.jobs.send(job).await.map_err(|_| ended()) }).await
    }

    /// Answers when everything appended before is durable.
    pub(crate) async fn flush(&self, cx: &Cx) -> Result<()> {
        self.ask(cx, |answer| Job::Flush(Pace::of(cx), answer)).await
    }

    /// Ends the thread in order.
    pub(crate) async fn close(&self, cx: &Cx) -> Result<()> {
        self.ask(cx, Job::Close).await
    }

    async fn ask(&self, cx: &Cx, job: impl FnOnce(oneshot::Sender<Result<()>>) -> Job) -> Result<()> {
        let (sender, answer) = oneshot::channel();
        let job = job(sender);
        cx.run(async {
            self.jobs.send(job).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        })
        .await
    }
}

/// Runs `work` on a thread of its own and answers when it is done.
pub(crate) async fn apart<T: Send + 'static>(cx: &Cx, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (done, answer) = oneshot::channel();
    launch(move || drop(done.send(work())))?;
    cx.run(async { answer.await.map_err(|_| ended()) }).await
}

fn launch(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name("watchkeeper-file".to_owned()).spawn(work);
    started.map(drop).map_err(|error| Error::unavailable("cannot start a thread for writing").caused_by(error))
}

fn ended() -> Error {
    Error::unknown("the thread that writes has ended")
}

fn serve(mut target: impl Target, mut queue: mpsc::Receiver<Job>, failure: &Failure) {
    let attempt = |done: Result<()>| done.unwrap_or_else(|error| failure.note(error));
    while let Some(job) = queue.blocking_recv() {
        let failed = failure.kind().is_some();
        match job {
            // What comes after a failure is not written: it would stand behind a hole.
            Job::Append(lines, pace) if !failed => attempt(target.append(lines, pace)),
            Job::Append(..) => {}
            Job::Flush(pace, answer) => {
                if !failed {
                    attempt(target.flush(pace));
                }
                // Whoever gave up waiting takes the outcome as unknown.
                let _ = answer.send(failure.report_failure());
            }
            Job::Close(answer) => {
                if !failed {
                    attempt(target.close());
                }
                let _ = answer.send(failure.report_failure());
                return;
            }
        }
    }
}
