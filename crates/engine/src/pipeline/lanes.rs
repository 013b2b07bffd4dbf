//! Lanes: keys in parallel, each key in order (G3).

use std::sync::Arc;

use tokio::sync::mpsc;
use watchkeeper_core::{Batch, Task};

use super::opening_state::{Failure, OpeningState};
use super::safe_point::PieceNumber;
use super::sink_delivery::SinkDelivery;

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
    pub fn start(opening_state: &Arc<OpeningState>, deliveries: &Arc<[Arc<SinkDelivery>]>) -> Self {
        let mut lanes = Self { queues: Vec::new(), tasks: Vec::new() };
        for lane in 0..opening_state.stream.settings.concurrency {
            let (queue, jobs) = mpsc::channel(QUEUE);
            let (task_board, deliveries) = (Arc::clone(opening_state), Arc::clone(deliveries));
            let work = async move { work(&task_board, &deliveries, lane, jobs).await };
            lanes.tasks.push(opening_state.spawn_task("lane", work));
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
            // A panic was reported through the state of the opening.
            let _ = task.join().await;
        }
    }
}

async fn work(
    opening_state: &OpeningState,
    deliveries: &[Arc<SinkDelivery>],
    lane: usize,
    mut jobs: mpsc::Receiver<Job>,
) {
    while let Some(job) = jobs.recv().await {
        if opening_state.is_past(job.piece) {
            return;
        }
        for (index, delivery) in deliveries.iter().enumerate() {
            if let Err(failure) = delivery.deliver(opening_state, lane, &job).await {
                if let Failure::Rejected { change, .. } = &failure {
                    finish_before(opening_state, &deliveries[index + 1..], lane, &job, change.at.1).await;
                }
                return opening_state.fail(failure);
            }
        }
        opening_state.safe().done(job.piece, job.part);
        opening_state.turn();
    }
}

/// Gives the other sinks what comes before a rejected change, so that the stream halts right before it.
async fn finish_before(opening_state: &OpeningState, others: &[Arc<SinkDelivery>], lane: usize, job: &Job, row: u32) {
    let rows = job.rows.iter().copied().take_while(|at| *at < row).collect();
    let before = Job { piece: job.piece, part: job.part, batch: Arc::clone(&job.batch), rows };
    for delivery in others {
        if let Err(failure) = delivery.deliver(opening_state, lane, &before).await {
            return opening_state.fail(failure);
        }
    }
    opening_state.safe().done_before(job.piece, job.part, row);
}
