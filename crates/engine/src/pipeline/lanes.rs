//! Lanes: keys in parallel, each key in order (G3).

use std::sync::Arc;

use tokio::sync::mpsc;
use watchkeeper_core::{Batch, Task};

use super::board::{Board, Failure};
use super::courier::Courier;
use super::safe_point::PieceNumber;

/// Pieces that wait in front of one lane.
const QUEUE: usize = 2;

/// The rows of one piece that belong to one lane.
#[derive(Debug)]
pub struct Job {
    /// The piece.
    pub piece: PieceNumber,
    /// Which part of the piece this is.
    pub part: usize,
    /// The batch that the rows are of.
    pub batch: Arc<Batch>,
    /// The rows, in source order.
    pub rows: Vec<u32>,
}

/// The lanes of one opening.
#[derive(Debug)]
pub struct Lanes {
    queues: Vec<mpsc::Sender<Job>>,
    tasks: Vec<Task<()>>,
}

impl Lanes {
    /// Starts as many lanes as the stream asks for.
    pub fn start(board: &Arc<Board>, couriers: &Arc<[Arc<Courier>]>) -> Self {
        let mut lanes = Self { queues: Vec::new(), tasks: Vec::new() };
        for lane in 0..board.stream.settings.concurrency {
            let (queue, jobs) = mpsc::channel(QUEUE);
            let (task_board, couriers) = (Arc::clone(board), Arc::clone(couriers));
            let work = async move { work(&task_board, &couriers, lane, jobs).await };
            lanes.tasks.push(board.crew("lane", work));
            lanes.queues.push(queue);
        }
        lanes
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// Hands a job to a lane, waiting while its queue is full; false when the lane has ended.
    pub async fn send(&self, lane: usize, job: Job) -> bool {
        self.queues[lane].send(job).await.is_ok()
    }

    /// Takes no more jobs and waits until all that were taken are finished.
    pub async fn drain(&mut self) {
        self.queues.clear();
        for task in &mut self.tasks {
            // A panic was reported through the board.
            let _ = task.join().await;
        }
    }
}

async fn work(board: &Board, couriers: &[Arc<Courier>], lane: usize, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        if board.is_past(job.piece) {
            return;
        }
        for (index, courier) in couriers.iter().enumerate() {
            if let Err(failure) = courier.deliver(board, lane, &job).await {
                if let Failure::Rejected { change, .. } = &failure {
                    finish_before(board, &couriers[index + 1..], lane, &job, change.at.1).await;
                }
                return board.fail(failure);
            }
        }
        board.safe().done(job.piece, job.part);
        board.turn();
    }
}

/// Gives the other sinks what comes before a rejected change, so that the stream halts right before it.
async fn finish_before(board: &Board, others: &[Arc<Courier>], lane: usize, job: &Job, row: u32) {
    let rows = job.rows.iter().copied().take_while(|at| *at < row).collect();
    let before = Job { piece: job.piece, part: job.part, batch: Arc::clone(&job.batch), rows };
    for courier in others {
        if let Err(failure) = courier.deliver(board, lane, &before).await {
            return board.fail(failure);
        }
    }
    board.safe().done_before(job.piece, job.part, row);
}
