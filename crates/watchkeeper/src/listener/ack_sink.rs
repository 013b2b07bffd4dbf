//! A sink that hands batches to whoever asks for them, one at a time.
//!
//! A write offers its rows and returns when they are acknowledged, so everything that the engine knows of sinks holds:
//! what is not acknowledged is not committed, and nothing more is read than the window takes.
//!
//! A write can report how far it is, a flush cannot: a flush may not end before everything is durable, and would reach
//! its timeout behind a slow caller. So the write waits for acknowledgements and the flush does not. A listener that
//! takes a batch and never asks past it gives up the watch after `patience`: to the engine the sink failed here, since
//! waiting for a consumer for ever would be a stall that nobody notices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use watchkeeper_core::{
    Batch, Change, Cx, Error, Finding, FlushRejection, Follower, Latest, OpenedSink, Result, Sink, SinkContext,
    SinkProfile, SinkWriter, Written,
};
use watchkeeper_engine::delivery::HandlerSettings;

/// Where batches are offered and taken.
#[derive(Debug, Clone)]
pub(super) struct AckSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inside: Mutex<Inside>,
    /// Counts up whenever something changes, for those who wait.
    turned: Latest<u64>,
    patience: Option<Duration>,
    target: HandlerSettings,
}

#[derive(Debug, Default)]
struct Inside {
    /// How often the sink was opened: what was taken from an earlier opening is offered again.
    opening: u64,
    /// The number of the newest offer.
    newest: u64,
    offer: Option<Offer>,
    closed: bool,
}

#[derive(Debug)]
struct Offer {
    number: u64,
    rows: Vec<Change>,
    /// That of the write: it knows whether the lease lasts.
    cx: Cx,
    taken: bool,
    acknowledge: oneshot::Sender<()>,
}

/// A batch that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) opening: u64,
    pub(super) number: u64,
    pub(super) rows: Vec<Change>,
}

impl AckSink {
    /// A basket whose offers are withdrawn, and the watch with them, when nobody acknowledges them for so long.
    pub(super) fn new(patience: Option<Duration>, target: HandlerSettings) -> Self {
        let shared = Shared { inside: Mutex::default(), turned: Latest::new(0), patience, target };
        Self { shared: Arc::new(shared) }
    }

    /// Told whenever something changes.
    pub(super) fn follow(&self) -> Follower<u64> {
        self.shared.turned.follow()
    }

    /// Takes what is offered, if anything is and the lease lasts: one that was asleep must not begin what another has begun.
    pub(super) fn take(&self) -> Option<Taken> {
        let mut inside = self.lock();
        let opening = inside.opening;
        let offer = inside.offer.as_mut().filter(|offer| !offer.taken && offer.cx.check().is_ok())?;
        offer.taken = true;
        Some(Taken { opening, number: offer.number, rows: offer.rows.clone() })
    }

    /// Acknowledges what was taken under this number; false when it had been withdrawn.
    pub(super) fn acknowledge(&self, number: u64) -> bool {
        let mut inside = self.lock();
        let offer = inside.offer.take_if(|offer| offer.number == number);
        drop(inside);
        offer.is_some_and(|offer| offer.acknowledge.send(()).is_ok())
    }

    /// Whether what was taken then has been offered again, or will be.
    pub(super) fn offers_again(&self, opening: u64, number: u64, withdrawn: bool) -> bool {
        let inside = self.lock();
        inside.opening != opening || (withdrawn && inside.newest > number)
    }

    /// Ends it: what was not acknowledged never will be.
    pub(super) fn close(&self) {
        let mut inside = self.lock();
        inside.closed = true;
        inside.offer = None;
        drop(inside);
        self.turn();
    }

    fn open(&self) {
        let mut inside = self.lock();
        inside.opening += 1;
        inside.offer = None;
        drop(inside);
        self.turn();
    }

    fn offer(&self, cx: &Cx, rows: Vec<Change>) -> Result<(u64, oneshot::Receiver<()>)> {
        let (acknowledge, acknowledged) = oneshot::channel();
        let mut inside = self.lock();
        if inside.closed {
            return Err(Error::internal("the listener was closed"));
        }
        inside.newest += 1;
        let number = inside.newest;
        inside.offer = Some(Offer { number, rows, cx: cx.clone(), taken: false, acknowledge });
        drop(inside);
        self.turn();
        Ok((number, acknowledged))
    }

    fn withdraw(&self, number: u64) {
        let withdrawn = self.lock().offer.take_if(|offer| offer.number == number);
        if withdrawn.is_some() {
            self.turn();
        }
    }

    fn turn(&self) {
        self.shared.turned.change(|turns| *turns += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.shared.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sink for AckSink {
    fn profile(&self) -> SinkProfile {
        let HandlerSettings { grade, settle, acts_on_barriers } = self.shared.target;
        SinkProfile { acts_on_barriers, ..SinkProfile::new(grade, settle) }
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, _cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        AckSink::open(self);
        Ok(OpenedSink::Plain(Arc::new(Writer { acks: self.clone() })))
    }
}

#[derive(Debug)]
struct Writer {
    acks: AckSink,
}

/// Withdraws an offer whose write is dropped.
struct Offered<'a>(&'a AckSink, u64);

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        self.0.withdraw(self.1);
    }
}

#[async_trait]
impl SinkWriter for Writer {
    async fn write(&self, cx: &Cx, _lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let changes = rows.iter().map(|row| Change::new(Arc::clone(batch), *row)).collect();
        let (number, acknowledged) = self.acks.offer(cx, changes)?;
        let _offered = Offered(&self.acks, number);
        let impatience = async {
            match self.acks.shared.patience {
                Some(patience) => cx.clock().sleep_until(cx.now() + patience).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = acknowledged => match answer {
                Ok(()) => Ok(Written::all(rows)),
                Err(_) => Err(Error::internal("the listener was closed with a batch that was not acknowledged")),
            },
            // Another instance may do better, so the watch is given up.
            () = impatience => Err(Error::internal("nobody has asked for the next batch for too long")),
        }
    }

    /// What was acknowledged is the consumer's; there is nothing to wait for.
    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
