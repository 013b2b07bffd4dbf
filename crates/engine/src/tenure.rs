//! One period of holding a lease, as its holder sees it (G5).
//!
//! The deadline is counted from the moment *before* the request was sent, on a clock that includes
//! suspend, less a margin. It is read just before every call and by the keeper's tick. Once it has
//! passed the tenure is over, whatever a late renewal answers.
//!
//! What is **not** guaranteed: that nothing of this tenure takes effect after its deadline. Bytes
//! already in a socket and a pause between the check and the call are beyond it. It bounds what an
//! unfenced sink can see; only the checkpoint store's fence and graded sinks make that zero.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Clock, Component, Cx, Grant, Moment, Result};

use crate::progress::{Call, CallProgress, Progress};

/// Why a tenure is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The lease was not renewed before its deadline.
    Deadline,
    /// The lease store says that it is not ours.
    Taken,
    /// A newer grant has claimed the checkpoint.
    Fenced,
    /// A call did not end: this process is stuck.
    Stalled,
    /// It was given back in order.
    Released,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "the lease was not renewed in time",
            Self::Taken => "the lease was taken",
            Self::Fenced => "a newer epoch has claimed the checkpoint",
            Self::Stalled => "this instance is stuck",
            Self::Released => "the lease was released",
        })
    }
}

/// A tenure.
#[derive(Debug)]
pub struct Tenure {
    grant: Grant,
    clock: Arc<dyn Clock>,
    /// Nanoseconds of a [`Moment`]: shared with every [`Cx`] of this tenure, written by the keeper.
    deadline: Arc<AtomicU64>,
    over: CancellationToken,
    loss: OnceLock<Loss>,
    progress: Progress,
    /// Nanoseconds of the moment from which nothing that was abandoned can take effect any more.
    settled_at: AtomicU64,
}

impl Tenure {
    /// A tenure that was asked for at `sent` and may act for `acting_time` from then.
    pub fn new(grant: Grant, clock: Arc<dyn Clock>, sent: Moment, acting_time: Duration) -> Self {
        Self {
            grant,
            clock,
            deadline: Arc::new(AtomicU64::new((sent + acting_time).nanos())),
            over: CancellationToken::new(),
            loss: OnceLock::new(),
            progress: Progress::default(),
            settled_at: AtomicU64::new(0),
        }
    }

    /// On whose behalf everything is written.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The context of calls on behalf of this tenure.
    pub fn cx(&self) -> Cx {
        Cx::new(Arc::clone(&self.clock)).bound_to(Arc::clone(&self.deadline), self.over.clone())
    }

    /// When this tenure has to end, unless it is renewed.
    pub fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// The callers of this tenure.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Why it is over; `None` while it lasts. Reads the clock.
    pub fn loss(&self) -> Option<Loss> {
        if self.loss.get().is_none() && self.clock.now() >= self.deadline() {
            self.end(Loss::Deadline);
        }
        self.loss.get().copied()
    }

    /// Completes when it is over.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn over(&self) -> Loss {
        self.over.cancelled().await;
        self.loss.get().copied().unwrap_or(Loss::Deadline)
    }

    /// Ends it. The first reason stays.
    pub fn end(&self, loss: Loss) {
        let _ = self.loss.set(loss);
        self.over.cancel();
    }

    /// Pushes the deadline out after a renewal that was sent at `sent`. Without effect once the
    /// deadline has passed.
    pub fn extend(&self, sent: Moment, acting_time: Duration) {
        if self.loss().is_none() {
            self.deadline.fetch_max((sent + acting_time).nanos(), Ordering::AcqRel);
        }
    }

    /// Prepares a call on behalf of this tenure: bounded by `timeout` and by the lease, and watched by
    /// the keeper through `call_progress` until it is dropped.
    pub fn call<'a>(&self, call_progress: &'a CallProgress, timeout: Duration) -> Calling<'a> {
        let mark = call_progress.call(self.clock.now() + timeout);
        Calling { cx: self.cx().within(timeout), _mark: mark }
    }

    /// Something was abandoned that may take effect until `moment`, out of turn. Reopening and release
    /// wait for it.
    pub fn unsettle(&self, moment: Moment) {
        self.settled_at.fetch_max(moment.nanos(), Ordering::AcqRel);
    }

    /// Waits until nothing that was abandoned can take effect any more, or the tenure is over.
    pub async fn settle(&self) {
        let settled_at = Moment::from_nanos(self.settled_at.load(Ordering::Acquire));
        self.sleep(settled_at.since(self.clock.now())).await;
    }

    /// Waits, at most until the tenure is over.
    pub async fn sleep(&self, duration: Duration) {
        self.cx().sleep(duration).await;
    }

    /// `future`, unless the tenure is over first.
    pub async fn until_over<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.over.cancelled() => None,
            answer = future => Some(answer),
        }
    }
}

/// Makes a call to `component` that the keeper does not watch; an error names the component.
///
/// # Cancel safety
/// As that of `call`.
pub async fn run_for<T>(cx: &Cx, component: &Component, call: impl Future<Output = Result<T>>) -> Result<T> {
    cx.run(call).await.map_err(|error| error.raised_by(component))
}

/// A call on behalf of a tenure.
#[derive(Debug)]
pub struct Calling<'a> {
    cx: Cx,
    _mark: Call<'a>,
}

impl Calling<'_> {
    /// What to hand to the call.
    pub fn cx(&self) -> &Cx {
        &self.cx
    }

    /// Makes the call to `component`: the deadline is read just before. An error names the component.
    ///
    /// # Cancel safety
    /// As that of `call`.
    pub async fn run<T>(&self, component: &Component, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.cx.run(call).await.map_err(|error| error.raised_by(component))
    }
}
