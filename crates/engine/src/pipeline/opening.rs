//! Runs one opening: starts its tasks, and winds them down in order.
//!
//! The order at the end is: drain the lanes, stop the flusher, flush a last time (unless a flush had failed), commit,
//! close the sinks, let the reader acknowledge and close. If that takes longer than `shutdown_grace`, the rest is
//! abandoned and `End::abandoned` says so. A handover, pause or shutdown makes its last commit here, so the release has
//! nothing to wait for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{ChangeStream, Follower, Position, Task};

use super::committer::Committer;
use super::dispatch::{Dispatcher, Halted};
use super::lanes::Lanes;
use super::opening_state::{Failure, OpeningState};
use super::reader::{AHEAD, ReadResult, Reader};
use super::replay::{DeadLetterRequest, DeadLetters};
use super::sink_delivery::SinkDelivery;
use super::{checkpointer, flusher};

/// What an opening needs.
pub struct Opening {
    /// The shared state.
    pub opening_state: Arc<OpeningState>,
    /// The ways to the sinks.
    pub deliveries: Arc<[Arc<SinkDelivery>]>,
    /// The tenure's committer.
    pub committer: Arc<Mutex<Committer>>,
    /// The ledger, for replays.
    pub letters: DeadLetters,
    /// The committed position that the source was opened after.
    pub from: Option<Position>,
    /// What people ask of the dead letters.
    pub requests: Follower<Vec<DeadLetterRequest>>,
}

/// How an opening ended.
#[derive(Debug)]
pub struct End {
    /// Why, when it was not asked to.
    pub failure: Option<Failure>,
    /// Whether calls to sinks were abandoned and may still take effect.
    pub abandoned: bool,
    /// Whether the grace for a hand-over was over before everything was drained and committed.
    pub cut_off: bool,
    /// How many changes were read and not committed.
    pub in_flight: u64,
}

impl End {
    pub(super) fn lost() -> Self {
        Self { failure: Some(Failure::Lost), abandoned: true, cut_off: false, in_flight: 0 }
    }
}

/// What happens just before the last commit; only a mutant does anything.
pub type BeforeLastCommit<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The tasks of an opening. Dropping them aborts them.
struct OpeningTasks {
    reader: Task<()>,
    lanes: Lanes,
    flusher: Task<()>,
    checkpointer: Task<()>,
    stop_flusher: CancellationToken,
    finish_commits: CancellationToken,
    finish_reading: CancellationToken,
}

impl Opening {
    /// Runs the open source `stream` until it fails, the tenure is over, or `leave` asks for a hand-over: then it drains within
    /// `grace`.
    pub async fn run(
        mut self,
        stream: Box<dyn ChangeStream>,
        leave: &CancellationToken,
        grace: Duration,
        before_last_commit: BeforeLastCommit<'_>,
    ) -> End {
        let opening_state = Arc::clone(&self.opening_state);
        let (sender, mut batches) = mpsc::channel(AHEAD);
        let mut tasks = self.start(stream, sender);
        tokio::select! {
            biased;
            _ = opening_state.tenure.over() => return End::lost(),
            () = leave.cancelled() => {}
            Halted = self.dispatch(&tasks.lanes, &mut batches) => {}
        }
        opening_state.halt.cancel();
        drop(batches);
        let broken_off = self.letters.is_serving();
        let wound = self.wind_down(&mut tasks, before_last_commit);
        let cut_off = tokio::select! {
            biased;
            _ = opening_state.tenure.over() => return End::lost(),
            () = wound => false,
            () = opening_state.tenure.sleep(grace) => true,
        };
        let abandoned = cut_off || broken_off || opening_state.is_spoiled();
        End { failure: opening_state.take_failure(), abandoned, cut_off, in_flight: opening_state.in_flight() }
    }

    fn start(&self, stream: Box<dyn ChangeStream>, batches: mpsc::Sender<ReadResult>) -> OpeningTasks {
        let opening_state = &self.opening_state;
        let [stop_flusher, finish_commits, finish_reading] = std::array::from_fn(|_| CancellationToken::new());
        let reader =
            Reader::new(Arc::clone(opening_state), stream, batches, self.from.clone()).start(finish_reading.clone());
        let lanes = Lanes::start(opening_state, &self.deliveries);
        let flusher = {
            let (opening_state, deliveries, stop) =
                (Arc::clone(opening_state), Arc::clone(&self.deliveries), stop_flusher.clone());
            self.opening_state
                .spawn_task("flusher", async move { flusher::run(&opening_state, &deliveries, stop).await })
        };
        let checkpointer = {
            let (opening_state, committer, finish) =
                (Arc::clone(opening_state), Arc::clone(&self.committer), finish_commits.clone());
            self.opening_state
                .spawn_task("checkpointer", async move { checkpointer::run(&opening_state, &committer, finish).await })
        };
        OpeningTasks { reader, lanes, flusher, checkpointer, stop_flusher, finish_commits, finish_reading }
    }

    async fn dispatch(&mut self, lanes: &Lanes, batches: &mut mpsc::Receiver<ReadResult>) -> Halted {
        let dispatcher = Dispatcher::new(&self.opening_state, lanes);
        loop {
            let letter_request = self.letters.newest(&self.requests.see());
            if let Some(letter_request) = letter_request {
                if dispatcher.quiesce().await.is_err() {
                    return Halted;
                }
                self.letters.set_serving(true);
                if let Err(failure) = self.letters.serve(&self.opening_state, &self.deliveries, &letter_request).await {
                    self.opening_state.fail(failure);
                    return Halted;
                }
                self.letters.set_serving(false);
                self.letters.mark_served(&self.opening_state, &letter_request).await;
            }
            tokio::select! {
                biased;
                changed = self.requests.changed() => if changed.is_err() { return Halted },
                batch = dispatcher.receive(batches) => match batch {
                    Ok(Ok(batch)) => if dispatcher.dispatch(batch).await.is_err() { return Halted },
                    Ok(Err(failure)) => {
                        // Something else may fail before all is delivered: that counts.
                        if dispatcher.quiesce().await.is_ok() {
                            self.opening_state.fail(failure);
                        }
                        return Halted;
                    }
                    Err(halted) => return halted,
                },
            }
        }
    }

    /// Drain, flush, commit, close: in this order.
    async fn wind_down(&self, tasks: &mut OpeningTasks, before_last_commit: BeforeLastCommit<'_>) {
        tasks.lanes.drain().await;
        tasks.stop_flusher.cancel();
        let _ = tasks.flusher.join().await;
        flusher::last(&self.opening_state, &self.deliveries).await;
        before_last_commit.await;
        tasks.finish_commits.cancel();
        let _ = tasks.checkpointer.join().await;
        for delivery in &*self.deliveries {
            let cx = self.opening_state.tenure.cx().within(self.opening_state.stream.settings.timeouts.open);
            if let Err(error) = cx.run(delivery.writer().close(&cx)).await {
                tracing::debug!(sink = delivery.name(), %error, "closing a sink failed");
            }
        }
        tasks.finish_reading.cancel();
        let _ = tasks.reader.join().await;
    }
}
