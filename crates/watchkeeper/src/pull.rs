//! Changes for those who would rather pull: a [`futures_core::Stream`] with explicit acknowledgement.
//!
//! [`feed`] makes two ends. The [`Feed`] is a sink: give it to a stream as its target. [`Changes`] is where
//! changes come out, over all tenures that this instance has; while another instance has the watch it
//! waits.
//!
//! ```
//! # use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
//! # use watchkeeper::{Operation, Running, Seams, SourceTime, StartAt, StoreIdentity, Stores};
//! # use watchkeeper::{InstanceSettings, SinkSpec, StreamSettings, StreamSpec};
//! use std::sync::Arc;
//!
//! use watchkeeper::pull::{self, Interrupted};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> watchkeeper::Result<()> {
//! # let (seams, log) = (Seams::system(), Log::new("shop"));
//! # let change = NewChange { operation: Operation::Insert, namespace: "orders".to_owned(), key: Some("1".into()),
//! #     body: "{}".into(), first_half: false };
//! # log.append(change, SourceTime(0));
//! # let stores = Stores { leases: Arc::new(Leases::new(seams.clock.clone())),
//! #     checkpoints: Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid()))),
//! #     records: Arc::new(RecordStore::new(seams.clock.clone())) };
//! # let settings = StreamSettings { start: StartAt::Oldest, ..StreamSettings::new("orders") };
//! let (feed, mut changes) = pull::feed(pull::Settings::default())?;
//! let sinks = vec![SinkSpec::new("pulled", Arc::new(feed))];
//! let stream = StreamSpec { settings, source: Arc::new(log), sinks, checkpoints: None };
//! # let running = Running::start(seams, stores, InstanceSettings::new("shop", "first"), vec![stream]).await?;
//! while let Some(next) = changes.next().await {
//!     match next {
//!         Ok(change) => {
//!             println!("{} under epoch {}", change.id(), change.epoch());
//!             change.ack();
//! #           break;
//!         }
//!         Err(Interrupted { .. }) => { /* What was not acknowledged comes again, here or elsewhere. */ }
//!     }
//! }
//! # drop(running);
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! * Acknowledging is **by item**: the checkpoint passes a change when it and all before it are
//!   acknowledged, in whatever order that happens. An acknowledgement counts from the moment of the call; it
//!   is durable with the next commit.
//! * What was not acknowledged is delivered again: after a crash, a takeover or a reopening, and when the
//!   [`Delivery`] is dropped or failed. Then everything after it in its lane comes again too, so that keys
//!   keep their order, also for a reader who had taken several at once.
//! * When the watch is lost, what was not taken yet is withdrawn, and [`Interrupted`] is the next item: the
//!   caller must take back, or leave to a target that checks [`Delivery::epoch`], what it has begun and not
//!   acknowledged. Acknowledgements that come too late are without effect. After a hand-over in order, with
//!   everything acknowledged, there is no such item: the next change just has a higher epoch.
//! * The sequence ends when the instance has ended in order, or when the feed is dropped.
//!
//! # Time and memory
//!
//! At most [`Settings::in_hand`] changes are waiting or in the caller's hands, and only changes of one read
//! of the source per lane: the next ones come when these are acknowledged. So never wait for *more* changes
//! before acknowledging the first; take what is there, for example by `ready_chunks`.
//!
//! Waiting for acknowledgements is progress as long as one comes within [`Settings::patience`]. Without one
//! the feed counts as a target that does not answer: the change stays where it is, and after the breaker's
//! number of times, and `give_up`, another healthy instance is given the watch (with the default settings after about
//! a minute). Without another instance it waits for ever.
//!
//! On shutdown ([`Running::shutdown`], or `begin_shutdown` of a watch) keep pulling until the sequence ends, and join then. What is not acknowledged within the instance's
//! `shutdown_grace` is left to the next instance.
//!
//! [`Running::shutdown`]: crate::Running::shutdown
//!
//! A write into the feed waits for acknowledgements, a flush does not. A flush may not end before everything is
//! durable, and would reach its timeout behind a slow caller; a write may report how far it is.

mod changes;
mod counter;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, Cx, Error, Fault, FaultKind, Finding, FlushRejection, Grade, Moment, OpenedSink, Result, Severity, Sink,
    SinkContext, SinkProfile, SinkWriter, Written,
};

pub use changes::{Changes, Delivery, Interrupted};
use counter::{Counter, QueueView};

/// How often a write that waits for acknowledgements says how far it is, so that commits follow.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How a feed behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many changes may wait or be in the caller's hands, without an acknowledgement.
    pub in_hand: usize,
    /// How long nothing may be acknowledged before the caller counts as not answering. At most nine
    /// tenths of the stream's time-out for writes.
    pub patience: Duration,
    /// What the caller's target does with a stale or repeated write.
    pub grade: Grade,
    /// The longest time for which something that the caller has begun may still take effect.
    pub settle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { in_hand: 256, patience: Duration::from_secs(10), grade: Grade::Plain, settle: Duration::from_secs(5) }
    }
}

impl Settings {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `Config`, saying what is wrong.
    pub fn validate(&self) -> Result<()> {
        if self.in_hand == 0 || self.patience.is_zero() {
            return Err(Error::config("a feed has no room or no patience").remedy("set both above zero"));
        }
        if self.grade == Grade::Transactional {
            return Err(Error::config("a feed cannot be transactional")
                .remedy("declare it versioned or idempotent, or use the transactional sink of the database"));
        }
        Ok(())
    }
}

/// The two ends of a feed.
///
/// # Errors
/// What [`Settings::validate`] says.
pub fn feed(settings: Settings) -> Result<(Feed, Changes)> {
    settings.validate()?;
    let counter = Arc::new(Counter::new(settings.in_hand));
    Ok((Feed { settings, counter: Arc::clone(&counter) }, Changes::new(counter)))
}

/// The end of a feed that is a stream's sink.
#[derive(Debug)]
pub struct Feed {
    settings: Settings,
    counter: Arc<Counter>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.counter.end_feed();
    }
}

#[async_trait]
impl Sink for Feed {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(self.settings.grade, self.settings.settle)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        let gone = self.counter.require_caller().err();
        let finding = |error: Error| Finding { severity: Severity::Error, what: error.to_string(), remedy: None };
        Ok(gone.map(finding).into_iter().collect())
    }

    async fn open(&self, _cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let opening = self.counter.open(&context.grant, context.lanes)?;
        let (counter, patience) = (Arc::clone(&self.counter), self.settings.patience);
        Ok(OpenedSink::Plain(Arc::new(Writer { counter, opening, patience })))
    }

    fn instance_ended(&self) {
        self.counter.end_feed();
    }
}

/// One opening of a feed.
#[derive(Debug)]
struct Writer {
    counter: Arc<Counter>,
    opening: u64,
    patience: Duration,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.counter.end(self.opening, false);
    }
}

#[async_trait]
impl SinkWriter for Writer {
    /// Besides the contract: a dropped or unanswered call leaves the changes with the caller, and the next
    /// call for the same rows goes on waiting for them instead of handing them out again.
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        self.counter.resume(self.opening, cx, lane, batch, rows)?;
        let wait = Wait::new(cx, self.patience);
        loop {
            let news = self.counter.notified();
            tokio::pin!(news);
            // Before the look, so that what happens after it is not missed.
            news.as_mut().enable();
            let now = cx.now();
            let observation = self.counter.inspect(self.opening, lane, batch, rows, wait.is_report_due(now))?;
            if let Some(written) = wait.answer(now, observation, rows)? {
                self.counter.settle(self.opening, lane, written.done);
                return Ok(written);
            }
            tokio::select! {
                biased;
                () = news => {}
                () = cx.sleep(wait.next(now).since(now)) => {}
            }
        }
    }

    /// What a write calls done has been acknowledged, so there is nothing to wait for.
    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        self.counter.end(self.opening, true);
        Ok(())
    }
}

/// How long one write waits.
struct Wait {
    report: Moment,
    limit: Moment,
    patience: Duration,
}

impl Wait {
    fn new(cx: &Cx, patience: Duration) -> Self {
        let patience = cx.timeout_remaining().map_or(patience, |remaining| patience.min(remaining * 9 / 10));
        Self { report: cx.now() + REPORT_EVERY, limit: cx.now() + patience, patience }
    }

    fn is_report_due(&self, now: Moment) -> bool {
        now >= self.report
    }

    fn next(&self, now: Moment) -> Moment {
        if self.is_report_due(now) { self.limit } else { self.report.min(self.limit) }
    }

    /// The write's answer, if it is time for one.
    fn answer(&self, now: Moment, observation: QueueView, rows: &[u32]) -> Result<Option<Written>> {
        let QueueView { done, fault, deserted } = observation;
        if let Some(error) = deserted {
            return if done > 0 { Ok(Some(Written { done, ..Written::default() })) } else { Err(error) };
        }
        if let Some((kind, error)) = fault {
            let fault = Fault { row: rows[done], kind, error };
            let written = match kind {
                FaultKind::Reject => Written { done: done + 1, rejected: vec![fault], stopped: None },
                FaultKind::Retry | FaultKind::Panic | FaultKind::Fatal => {
                    Written { done, rejected: Vec::new(), stopped: Some(fault) }
                }
            };
            return Ok(Some(written));
        }
        if done == rows.len() || (done > 0 && (self.is_report_due(now) || now >= self.limit)) {
            return Ok(Some(Written { done, ..Written::default() }));
        }
        if now >= self.limit {
            let cause = format!("no change was acknowledged for {:?}", self.patience);
            return Err(Error::unavailable(cause).remedy("acknowledge sooner, or give the feed more patience"));
        }
        Ok(None)
    }
}
