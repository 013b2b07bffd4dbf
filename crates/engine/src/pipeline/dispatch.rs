//! Takes batches from the reader and gives their rows to the lanes, waiting at barriers.
//!
//! A barrier waits for a flush, not only for the writes: a sink may buffer per lane, and what a barrier drops or
//! renames has to be durable before. An empty batch enters as a piece without rows, behind what is in flight.

use std::sync::Arc;

use tokio::sync::mpsc;
use watchkeeper_core::Batch;

use super::cut::{Cut, cut, spread};
use super::lanes::{Job, Lanes};
use super::opening_state::OpeningState;
use super::reader::ReadResult;
use crate::hooks::Mutant;

/// Dispatches one opening's batches.
pub struct Dispatcher<'a> {
    opening_state: &'a Arc<OpeningState>,
    lanes: &'a Lanes,
}

/// The opening was halted: nothing more is dispatched.
pub struct Halted;

impl<'a> Dispatcher<'a> {
    /// Dispatches to `lanes`.
    pub fn new(opening_state: &'a Arc<OpeningState>, lanes: &'a Lanes) -> Self {
        Self { opening_state, lanes }
    }

    /// What was read next.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn receive(&self, batches: &mut mpsc::Receiver<ReadResult>) -> Result<ReadResult, Halted> {
        tokio::select! {
            biased;
            () = self.opening_state.halt.cancelled() => Err(Halted),
            batch = batches.recv() => batch.ok_or(Halted),
        }
    }

    /// Gives one batch to the lanes.
    pub async fn dispatch(&self, batch: Arc<Batch>) -> Result<(), Halted> {
        if batch.is_empty() {
            return self.admit(&batch, 0..0, Vec::new()).await;
        }
        let barriers = !self.opening_state.hooks.breaks(Mutant::NoBarrier);
        for Cut { rows, barrier } in cut(&batch, self.opening_state.stream.settings.checkpoint.events, barriers) {
            if barrier {
                self.quiesce().await?;
            }
            let parts = match barrier {
                true => vec![(0, rows.clone().collect())],
                false => spread(&batch, rows.clone(), self.lanes.count()),
            };
            self.admit(&batch, rows, parts).await?;
            if barrier {
                self.quiesce().await?;
            }
        }
        Ok(())
    }

    async fn admit(
        &self,
        batch: &Arc<Batch>,
        rows: std::ops::Range<u32>,
        parts: Vec<(usize, Vec<u32>)>,
    ) -> Result<(), Halted> {
        if !self.opening_state.wait_until(|safe| safe.has_room()).await {
            return Err(Halted);
        }
        let firsts = parts.iter().map(|(_, rows)| rows[0]).collect();
        let piece = self.opening_state.safe().admit(Arc::clone(batch), rows, firsts);
        if parts.is_empty() {
            self.opening_state.turn();
        }
        for (part, (lane, rows)) in parts.into_iter().enumerate() {
            let job = Job { piece, part, batch: Arc::clone(batch), rows };
            if !self.lanes.send(lane, job).await {
                return Err(Halted);
            }
        }
        Ok(())
    }

    /// Waits until everything dispatched is durable: before and after a barrier.
    pub async fn quiesce(&self) -> Result<(), Halted> {
        self.opening_state.demand_flushes(true);
        let empty = self.opening_state.wait_until(|safe| safe.is_empty()).await;
        self.opening_state.demand_flushes(false);
        if empty { Ok(()) } else { Err(Halted) }
    }
}
