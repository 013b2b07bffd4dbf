//! Dead letters on their way to the sink again.

use std::borrow::Cow;

use watchkeeper_core::{Error, FaultKind};

use super::{Load, SinkDelivery};
use crate::pipeline::lanes::Job;
use crate::pipeline::opening_state::{Failure, OpeningState};
use crate::pipeline::replay::warn_if_stale;

impl SinkDelivery {
    /// Delivers a dead letter past the parked keys and makes it durable; false when it is rejected again.
    pub async fn deliver_letter(&self, opening_state: &OpeningState, job: &Job) -> Result<bool, Failure> {
        job.rows.iter().for_each(|row| warn_if_stale(&self.spec, &job.batch, *row));
        let retry = opening_state.stream.settings.retry;
        let mut attempts = 0;
        loop {
            self.wait_for_breaker(opening_state).await?;
            let call = opening_state.tenure.call(&self.pulses[0], opening_state.stream.settings.timeouts.write);
            let answer = call.run(&self.component, self.writer.write(call.cx(), 0, &job.batch, &job.rows)).await;
            drop(call);
            if answer.is_ok() {
                self.breaker().success(opening_state.seams.clock.now());
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
                    self.retry_or_fail(opening_state, &mut load, error).await?;
                    attempts += 1;
                    continue;
                }
            };
            let Some(fault) = stopped else { break };
            attempts += 1;
            if fault.kind == FaultKind::Fatal || attempts >= retry.counted_attempts() {
                tracing::warn!(stream = opening_state.stream.settings.name, sink = self.spec.name, error = %fault.error, "a dead letter was rejected again");
                return Ok(false);
            }
            self.wait_before_retry(opening_state, retry.backoff.delay(attempts - 1, &opening_state.seams.entropy))
                .await?;
        }
        let rejections = self.flush(opening_state).await.map_err(|error| {
            opening_state.spoil();
            Failure::of(error)
        })?;
        Ok(rejections.is_empty())
    }
}
