//! The end of a feed that callers hold.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use watchkeeper_core::{Change, Epoch, Error, FaultKind, Grant};
use watchkeeper_engine::delivery::HandlerError;

use super::counter::{Counter, Ticket};

/// Changes to pull, over all tenures of this instance. See [the module](super) for what is promised.
///
/// Dropping it leaves the stream without a target: this instance then gives up the watch.
#[derive(Debug)]
pub struct Changes {
    counter: Arc<Counter>,
}

impl Changes {
    pub(super) fn new(counter: Arc<Counter>) -> Self {
        Self { counter }
    }

    /// The next change, or that the watch was interrupted; `None` when there will be nothing more.
    ///
    /// # Cancel safety
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next(&mut self) -> Option<Result<Delivery, Interrupted>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<Result<Delivery, Interrupted>>> {
        let taken = self.counter.poll_take(context);
        taken.map_ok(|taken| Delivery {
            change: taken.change,
            grant: taken.grant,
            ticket: Some(taken.ticket),
            counter: Arc::clone(&self.counter),
        })
    }
}

impl Stream for Changes {
    type Item = Result<Delivery, Interrupted>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.counter.mark_caller_gone();
    }
}

/// The watch was interrupted: what was taken under this epoch and not acknowledged comes again, here or
/// at another instance. What was acknowledged just before may come again too, if its commit was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interrupted {
    /// The epoch that the changes were delivered under.
    pub epoch: Epoch,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the watch of epoch {} was interrupted: what was not acknowledged comes again", self.epoch)
    }
}

impl std::error::Error for Interrupted {}

/// A change that waits for its acknowledgement.
///
/// Dropping it without one is a failed attempt, as an error of a handler would be: it comes again after a
/// backoff, for as long as it takes, or as often as `retry.attempts` of the stream says.
#[derive(Debug)]
#[must_use = "without an acknowledgement the change comes again"]
pub struct Delivery {
    change: Change,
    grant: Arc<Grant>,
    /// `None` when it was answered.
    ticket: Option<Ticket>,
    counter: Arc<Counter>,
}

impl Delivery {
    /// The change. (All its methods can be called on the delivery, too.)
    pub fn change(&self) -> &Change {
        &self.change
    }

    /// The fencing token to hand to whatever is written on behalf of this change.
    pub fn epoch(&self) -> Epoch {
        self.grant.epoch
    }

    /// On whose behalf the change was delivered.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Says that the change is dealt with and durable: the checkpoint may pass it. Without effect when the
    /// watch was interrupted meanwhile.
    pub fn ack(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.counter.acknowledge(ticket);
        }
    }

    /// Says that the change was not dealt with, and whether to try again, apply the policy for rejected
    /// changes, or give up the watch. Every standard error asks for another try.
    pub fn fail(mut self, error: impl Into<HandlerError>) {
        let error = error.into();
        if let Some(ticket) = self.ticket.take() {
            self.counter.fail(ticket, error.kind(), error.into_error());
        }
    }
}

impl Deref for Delivery {
    type Target = Change;

    fn deref(&self) -> &Change {
        &self.change
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let error = Error::unavailable("a delivery was dropped without an acknowledgement");
            self.counter.fail(ticket, FaultKind::Retry, error);
        }
    }
}
