//! Runs one opening: starts its tasks, and winds them down in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Batch, ChangeStream, Follower, Position, Task};

use super::board::{Board, Failure};
use super::committer::Committer;
use super::courier::Courier;
use super::dispatch::{Dispatcher, Halted};
use super::lanes::Lanes;
use super::reader::{AHEAD, Reader};
use super::replay::{Letters, Wish};
use super::{checkpointer, flusher};

/// What an opening needs.
pub struct Opening {
    /// The shared state.
    pub board: Arc<Board>,
    /// The ways to the sinks.
    pub couriers: Arc<[Arc<Courier>]>,
    /// The tenure's committer.
    pub committer: Arc<Mutex<Committer>>,
    /// The ledger, for replays.
    pub letters: Letters,
    /// The committed position that the source was opened after.
    pub from: Option<Position>,
    /// What people ask of the dead letters.
    pub wishes: Follower<Vec<Wish>>,
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
struct Crew {
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
        let board = Arc::clone(&self.board);
        let (sender, mut batches) = mpsc::channel(AHEAD);
        let mut crew = self.start(stream, sender);
        tokio::select! {
            biased;
            _ = board.tenure.over() => return End::lost(),
            () = leave.cancelled() => {}
            Halted = self.dispatch(&crew.lanes, &mut batches) => {}
        }
        board.halt.cancel();
        drop(batches);
        let broken_off = self.letters.is_serving();
        let wound = self.wind_down(&mut crew, before_last_commit);
        let cut_off = tokio::select! {
            biased;
            _ = board.tenure.over() => return End::lost(),
            () = wound => false,
            () = board.tenure.sleep(grace) => true,
        };
        let abandoned = cut_off || broken_off || board.is_spoiled();
        End { failure: board.take_failure(), abandoned, cut_off, in_flight: board.in_flight() }
    }

    fn start(&self, stream: Box<dyn ChangeStream>, batches: mpsc::Sender<Arc<Batch>>) -> Crew {
        let board = &self.board;
        let [stop_flusher, finish_commits, finish_reading] = std::array::from_fn(|_| CancellationToken::new());
        let reader = Reader::new(Arc::clone(board), stream, batches, self.from.clone()).start(finish_reading.clone());
        let lanes = Lanes::start(board, &self.couriers);
        let flusher = {
            let (board, couriers, stop) = (Arc::clone(board), Arc::clone(&self.couriers), stop_flusher.clone());
            self.board.crew("flusher", async move { flusher::run(&board, &couriers, stop).await })
        };
        let checkpointer = {
            let (board, committer, finish) = (Arc::clone(board), Arc::clone(&self.committer), finish_commits.clone());
            self.board.crew("checkpointer", async move { checkpointer::run(&board, &committer, finish).await })
        };
        Crew { reader, lanes, flusher, checkpointer, stop_flusher, finish_commits, finish_reading }
    }

    async fn dispatch(&mut self, lanes: &Lanes, batches: &mut mpsc::Receiver<Arc<Batch>>) -> Halted {
        let dispatcher = Dispatcher::new(&self.board, lanes);
        loop {
            let wish = self.letters.newest(&self.wishes.see());
            if let Some(wish) = wish {
                if dispatcher.quiesce().await.is_err() {
                    return Halted;
                }
                self.letters.set_serving(true);
                if let Err(failure) = self.letters.serve(&self.board, &self.couriers, &wish).await {
                    self.board.fail(failure);
                    return Halted;
                }
                self.letters.set_serving(false);
                self.letters.strike(&self.board, &wish).await;
            }
            tokio::select! {
                biased;
                changed = self.wishes.changed() => if changed.is_err() { return Halted },
                batch = dispatcher.receive(batches) => match batch {
                    Ok(batch) => if dispatcher.dispatch(batch).await.is_err() { return Halted },
                    Err(halted) => return halted,
                },
            }
        }
    }

    /// Drain, flush, commit, close: in this order.
    async fn wind_down(&self, crew: &mut Crew, before_last_commit: BeforeLastCommit<'_>) {
        crew.lanes.drain().await;
        crew.stop_flusher.cancel();
        let _ = crew.flusher.join().await;
        flusher::last(&self.board, &self.couriers).await;
        before_last_commit.await;
        crew.finish_commits.cancel();
        let _ = crew.checkpointer.join().await;
        for courier in &*self.couriers {
            let cx = self.board.tenure.cx().within(self.board.stream.settings.timeouts.open);
            if let Err(error) = cx.run(courier.writer().close(&cx)).await {
                tracing::debug!(sink = courier.name(), %error, "closing a sink failed");
            }
        }
        crew.finish_reading.cancel();
        let _ = crew.reader.join().await;
    }
}
