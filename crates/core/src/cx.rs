//! What every call carries: clock, deadline, cancellation.
//!
//! A context has two deadlines. The timeout of a call is fixed and can have a timer. The deadline of the lease moves
//! with every renewal, so no timer is set to it; it is read before the call.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};

/// The context of a call.
///
/// It has up to two deadlines: a fixed one (this call's time-out) and a moving one (the lease of the
/// tenure on whose behalf the call is made, pushed out by each renewal). The nearer one counts.
#[derive(Debug, Clone)]
pub struct Cx {
    clock: Arc<dyn Clock>,
    deadline: Option<Moment>,
    /// Nanoseconds of a [`Moment`], written by the keeper. An atomic, since it is read before every
    /// call and must never wait for anyone.
    lease: Option<Arc<AtomicU64>>,
    cancel: CancellationToken,
    progress_every: Option<Duration>,
}

impl Cx {
    /// A context without a deadline.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, deadline: None, lease: None, cancel: CancellationToken::new(), progress_every: None }
    }

    /// The same context, ended at the latest `timeout` from now.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        let limit = self.clock.now() + timeout;
        let deadline = Some(self.deadline.map_or(limit, |deadline| deadline.min(limit)));
        Self { deadline, ..self.clone() }
    }

    /// The same context, bound to a lease whose deadline moves and to its end.
    #[must_use]
    pub fn bound_to(&self, lease: Arc<AtomicU64>, over: CancellationToken) -> Self {
        Self { lease: Some(lease), cancel: over, ..self.clone() }
    }

    /// The same context, ended by `cancel` instead.
    #[must_use]
    pub fn cancelled_by(&self, cancel: CancellationToken) -> Self {
        Self { cancel, ..self.clone() }
    }

    /// The same context, whose caller would like an answer after `every`: see [`progress_every`](Self::progress_every).
    #[must_use]
    pub fn with_progress_every(&self, every: Duration) -> Self {
        Self { progress_every: Some(every), ..self.clone() }
    }

    /// After how long a call that works through several items one by one should return with those that are done, so that they count
    /// before the others are. `None` when the caller does not care. It is a wish: a call that cannot stop early ignores it.
    pub fn progress_every(&self) -> Option<Duration> {
        self.progress_every
    }

    /// The clock of this instance.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Now, on the clock of this instance.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// When this call has to be over, if ever.
    pub fn deadline(&self) -> Option<Moment> {
        let lease = self.lease.as_ref().map(|lease| Moment::from_nanos(lease.load(Ordering::Acquire)));
        match (self.deadline, lease) {
            (Some(fixed), Some(lease)) => Some(fixed.min(lease)),
            (fixed, lease) => fixed.or(lease),
        }
    }

    /// How much time is left; `None` when there is no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_at(self.now())
    }

    fn remaining_at(&self, now: Moment) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.since(now))
    }

    /// How much is left of the call's own time-out, whatever the lease has left: that is renewed meanwhile. `None` without a time-out.
    pub fn timeout_remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(self.now()))
    }

    /// Completes when the caller has given up.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// `Unavailable` if the call must not be made any more. To be asked just before every call.
    pub fn check(&self) -> Result<()> {
        self.left().map(drop)
    }

    /// As [`check`](Self::check), and how much time is left, by one look at the clock.
    pub fn left(&self) -> Result<Option<Duration>> {
        self.left_at(self.now())
    }

    /// As [`left`](Self::left), for a caller who has just looked at the clock.
    pub fn left_at(&self, now: Moment) -> Result<Option<Duration>> {
        if self.cancel.is_cancelled() {
            return Err(Error::unavailable("the caller has given up"));
        }
        match self.remaining_at(now) {
            Some(Duration::ZERO) => Err(Error::unavailable("the deadline had passed before the call")),
            left => Ok(left),
        }
    }

    /// Makes a call inside this context: not begun after its deadline, abandoned at it.
    ///
    /// What is abandoned may still take effect, so the answer is then `Unknown`.
    ///
    /// # Cancel safety
    /// As that of `call`.
    pub async fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let Some(deadline) = self.deadline else {
            // The lease's end arrives by cancellation: its deadline moves, so no timer fits it.
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Error::unknown("abandoned: the caller has given up")),
                answer = call => return answer,
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Error::unknown("abandoned: the caller has given up")),
            answer = call => answer,
            () = self.clock.sleep_until(deadline) => Err(Error::unknown("no answer in time").late()),
        }
    }

    /// Waits for `duration`, or until the caller has given up.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn sleep(&self, duration: Duration) {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => {}
            () = self.clock.sleep_until(self.now() + duration) => {}
        }
    }
}
