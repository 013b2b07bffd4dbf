//! What users write: code that is called with one change.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use watchkeeper_core::error::{chain_text, is_corrupt};
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{Change, Epoch, Error, ErrorKind, FaultKind, Grant, SinkContext};

/// On whose behalf a change is handed to a handler.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HandlerContext {
    /// The stream; empty for a handler that is called without one.
    pub stream: Arc<str>,
    /// The grant under which this instance has the watch; `None` for a handler that is called without a stream.
    pub grant: Option<Arc<Grant>>,
}

impl HandlerContext {
    /// The context of the sink that the handlers are.
    pub(super) fn of(context: &SinkContext) -> Self {
        Self { stream: context.stream.as_str().into(), grant: Some(Arc::new(context.grant.clone())) }
    }

    /// The fencing token to hand to whatever is written on behalf of the change: a target that remembers the highest one it has
    /// seen, and refuses lower ones, lets no stale writer through. Zero without a stream.
    pub fn epoch(&self) -> Epoch {
        self.grant.as_ref().map_or(Epoch::ZERO, |grant| grant.epoch)
    }
}

/// Takes changes, one at a time.
///
/// [`handler()`] and [`handler_with()`] make one of a closure. A type that has a client or a cache of its own implements it:
///
/// ```
/// # mod watchkeeper { pub use watchkeeper_core::*; pub use watchkeeper_engine::{delivery::*, stream::SinkSpec}; }
/// use watchkeeper::{Change, Handler, HandlerContext, HandlerError};
///
/// struct Printer;
///
/// #[async_trait::async_trait]
/// impl Handler for Printer {
///     async fn handle(&self, change: Change, context: &HandlerContext) -> Result<(), HandlerError> {
///         // A target that remembers the highest epoch can refuse a writer that was replaced.
///         println!("{} {} under epoch {}", context.stream, change.json()?, context.epoch());
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Handler: Send + Sync {
    /// Deals with one change.
    ///
    /// # Behavior
    /// * Its effect is durable when it returns `Ok`: the checkpoint may pass the change right after.
    /// * Changes of one key arrive in order, one at a time; changes of other keys may arrive beside them.
    /// * It may see a change again: after an error of its own, and after a crash or a hand-over. The
    ///   change's id is the same each time.
    /// * A panic counts as [`HandlerError::Panic`].
    ///
    /// # Cancel safety
    /// It is dropped at an await when the lease ends. What it had begun may then be begun again,
    /// here or on another instance.
    async fn handle(&self, change: Change, context: &HandlerContext) -> Result<(), HandlerError>;
}

#[async_trait]
impl<T: Handler + ?Sized> Handler for Arc<T> {
    async fn handle(&self, change: Change, context: &HandlerContext) -> Result<(), HandlerError> {
        (**self).handle(change, context).await
    }
}

/// A closure as a handler.
struct Closure<F>(F);

#[async_trait]
impl<F, Fut> Handler for Closure<F>
where
    F: Fn(Change, &HandlerContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    async fn handle(&self, change: Change, context: &HandlerContext) -> Result<(), HandlerError> {
        (self.0)(change, context).await
    }
}

impl fmt::Debug for dyn Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

/// Makes a handler of a closure. `|change| async move { … }` and `?` need no annotations.
///
/// ```
/// # mod watchkeeper { pub use watchkeeper_core::*; pub use watchkeeper_engine::{delivery::*, stream::SinkSpec}; }
/// use watchkeeper::handler;
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     id: u64,
/// }
///
/// let prints = handler(|change| async move {
///     if let Some(order) = change.after::<Order>()? {
///         println!("order {} is new", order.id);
///     }
///     Ok(())
/// });
/// ```
pub fn handler<F, Fut>(handle: F) -> impl Handler
where
    F: Fn(Change) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    Closure(move |change, _: &HandlerContext| handle(change))
}

/// Makes a handler of a closure that also wants to know on whose behalf it is called: the stream, and the epoch to hand to its target.
pub fn handler_with<F, Fut>(handle: F) -> impl Handler
where
    F: Fn(Change, HandlerContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    Closure(move |change, context: &HandlerContext| handle(change, context.clone()))
}

/// Why a handler failed, in its own words.
pub type HandlerCause = Box<dyn std::error::Error + Send + Sync>;

/// What a failed handler asks for.
///
/// Every error turns into one, also `anyhow::Error`, `eyre::Report` and text, so `?` works in handlers. It asks for another try, unless
/// it says that the change cannot be decoded ([`ErrorKind::Corrupt`]), also from within other errors: then it rejects the change. That
/// is why this type is not itself a standard error: the conversion would meet the one that every type has to itself.
///
/// ```
/// # mod watchkeeper { pub use watchkeeper_core::*; pub use watchkeeper_engine::{delivery::*, stream::SinkSpec}; }
/// use anyhow::Context;
/// use watchkeeper::{HandlerError, handler};
///
/// #[derive(serde::Deserialize)]
/// struct Payment {
///     amount: i64,
/// }
///
/// async fn book(payment: &Payment) -> anyhow::Result<()> {
///     let ledger = std::fs::read_to_string("ledger.txt").context("the ledger is away")?;
///     println!("{} after {ledger}", payment.amount);
///     Ok(())
/// }
///
/// let books = handler(|change| async move {
///     // A change that does not decode is rejected: it never will.
///     let Some(payment) = change.after::<Payment>()? else { return Ok(()) };
///     if payment.amount < 0 {
///         return Err(HandlerError::reject("a payment is never negative"));
///     }
///     // Any other error asks for another try.
///     Ok(book(&payment).await?)
/// });
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// Try this change again later: with backoff, for as long as it takes, or as often as `retry.attempts` says.
    Retry(HandlerCause),
    /// The handler panicked. Tried again, but counted against the change.
    Panic(HandlerCause),
    /// This change will never be taken: apply the policy for rejected changes.
    Reject(HandlerCause),
    /// This instance must not go on: release at once.
    Fatal(HandlerCause),
}

impl HandlerError {
    /// Asks for another try.
    pub fn retry(cause: impl Into<HandlerCause>) -> Self {
        Self::Retry(cause.into())
    }

    /// Says that the change will never be taken.
    pub fn reject(cause: impl Into<HandlerCause>) -> Self {
        Self::Reject(cause.into())
    }

    /// Says that this instance must not go on.
    pub fn fatal(cause: impl Into<HandlerCause>) -> Self {
        Self::Fatal(cause.into())
    }

    /// What is asked for.
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Retry(_) => FaultKind::Retry,
            Self::Panic(_) => FaultKind::Panic,
            Self::Reject(_) => FaultKind::Reject,
            Self::Fatal(_) => FaultKind::Fatal,
        }
    }

    /// Why.
    pub fn cause(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        match self {
            Self::Retry(cause) | Self::Panic(cause) | Self::Reject(cause) | Self::Fatal(cause) => &**cause,
        }
    }

    /// The cause as an error of the contracts. One that is such an error already stays as it is, with
    /// its kind and its remedy.
    pub fn into_error(self) -> Error {
        let (kind, cause) = match self {
            // Not `Unknown`: the handler has returned, so nothing of it is under way.
            Self::Retry(cause) => (ErrorKind::Unavailable, cause),
            Self::Panic(cause) => (ErrorKind::Internal, cause),
            Self::Reject(cause) if is_corrupt(&*cause) => (ErrorKind::Corrupt, cause),
            Self::Reject(cause) => (ErrorKind::Rejected, cause),
            Self::Fatal(cause) => (ErrorKind::Internal, cause),
        };
        match cause.downcast::<Error>() {
            Ok(error) => *error,
            Err(cause) => Error::new(kind, chain_text(&*cause)).caused_by(cause),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl<E: Into<HandlerCause>> From<E> for HandlerError {
    fn from(cause: E) -> Self {
        let cause = cause.into();
        // What cannot be decoded now cannot be decoded later.
        if is_corrupt(&*cause) { Self::Reject(cause) } else { Self::Retry(cause) }
    }
}

/// Calls a handler so that its panic is its own affair.
pub(super) async fn call(handler: &dyn Handler, change: Change, context: &HandlerContext) -> Result<(), HandlerError> {
    // The outer block also catches a panic from before the handler's first await. After a panic
    // only the handler's own state can be torn, and whether that matters is the handler's business.
    let outcome = AssertUnwindSafe(async { handler.handle(change, context).await }).catch_unwind().await;
    outcome
        .unwrap_or_else(|panic| Err(HandlerError::Panic(format!("a handler panicked: {}", panic_text(&*panic)).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u32, HandlerError> {
        Ok(text.parse::<u32>()?)
    }

    #[test]
    fn a_standard_error_asks_for_another_try() {
        let error = parse("ten").expect_err("not a number");
        assert_eq!(error.kind(), FaultKind::Retry);
        assert_eq!(error.into_error().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn each_constructor_keeps_its_cause() {
        for (error, kind) in [
            (HandlerError::retry("later"), FaultKind::Retry),
            (HandlerError::reject("never"), FaultKind::Reject),
            (HandlerError::fatal("stop"), FaultKind::Fatal),
        ] {
            let text = error.to_string();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.into_error().message(), text);
        }
    }

    #[test]
    fn an_error_of_the_contracts_keeps_its_kind() {
        let error = HandlerError::reject(Error::config("no such index").remedy("create it")).into_error();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().ends_with("create it"));
    }

    #[test]
    fn a_panic_counts_against_the_change_and_keeps_its_words() {
        let log = watchkeeper_core::BatchBuilder::new(
            "log".into(),
            std::sync::Arc::new(watchkeeper_core::payload::JsonPayload),
        );
        let batch = std::sync::Arc::new(log.finish(watchkeeper_core::Position::new("", None)));
        let panics = handler(|_| async { panic!("on {}", "purpose") });
        let context = HandlerContext::default();
        let error = call(&panics, Change::new(batch, 0), &context).now_or_never().expect("it waits for nothing");
        let error = error.expect_err("it panicked");
        assert_eq!((error.kind(), error.to_string().as_str()), (FaultKind::Panic, "a handler panicked: on purpose"));
    }
}
