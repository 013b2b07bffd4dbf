//! Dead letters on their way to the sink again.

use std::borrow::Cow;

use watchkeeper_core::{Error, FaultKind};

use super::{Courier, Load};
use crate::pipeline::board::{Board, Failure};
use crate::pipeline::lanes::Job;
use crate::pipeline::replay::warn_if_stale;

impl Courier {
    /// Delivers a dead letter past the parked keys and makes it durable; false when it is rejected again.
    pub async fn deliver_letter(&self, board: &Board, job: &Job) -> Result<bool, Failure> {
        job.rows.iter().for_each(|row| warn_if_stale(&self.spec, &job.batch, *row));
        let retry = board.stream.settings.retry;
        let mut attempts = 0;
        loop {
            self.wait_for_breaker(board).await?;
            let call = board.tenure.call(&self.pulses[0], board.stream.settings.timeouts.write);
            let answer = call.run(&self.component, self.writer.write(call.cx(), 0, &job.batch, &job.rows)).await;
            drop(call);
            if answer.is_ok() {
                self.breaker().success(board.seams.clock.now());
            }
            let stopped = match answer {
                Ok(written) if !written.rejected.is_empty() => return Ok(false),
                Ok(written) if written.done == 0 && written.stopped.is_none() => {
                    let cause = format!("sink {:?} neither wrote nor refused", self.spec.name);
                    return Err(Failure::Instance(Error::internal(cause)));
                }
                Ok(written) => written.stopped,
                Err(error) => {
                    let mut load = Load { job, rows: Cow::Borrowed(&job.rows), attempts: 0, unanswered: attempts };
                    self.stumble(board, &mut load, error).await?;
                    attempts += 1;
                    continue;
                }
            };
            let Some(fault) = stopped else { break };
            attempts += 1;
            if fault.kind == FaultKind::Fatal || attempts >= retry.counted_attempts() {
                tracing::warn!(stream = board.stream.settings.name, sink = self.spec.name, error = %fault.error, "a dead letter was rejected again");
                return Ok(false);
            }
            self.rest(board, retry.backoff.delay(attempts - 1, &board.seams.entropy)).await?;
        }
        let rejections = self.flush(board).await.map_err(|error| {
            board.spoil();
            Failure::of(error)
        })?;
        Ok(rejections.is_empty())
    }
}
