//! Streams whose source and sinks have to be connected to first.
//!
//! Each stream is connected on its own, after the instance has joined the group: one that fails is tried again, and keeps
//! neither the others nor the instance from their work. An instance asks for the lease of a stream only once it has connected
//! it, so that a stream that cannot be reached from here is left to those who reach it, and no epoch is spent on it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::Notify;
use watchkeeper_core::spawn::panic_text;
use watchkeeper_core::{CheckpointStore, Cx, Error, Result};

use crate::delivery::backoff::Backoff;
use crate::listener::{ListenerState, StreamSlot};
use crate::log_limit::{LogLimit, failing_for};
use crate::seams::Seams;
use crate::settings::StreamSettings;
use crate::stream::StreamSpec;

/// Between two attempts to connect a stream.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(500), factor: 2, max: Duration::from_secs(15) };

/// Connects to the source and the sinks of one stream.
#[async_trait]
pub trait Connect: Send + Sync + std::fmt::Debug {
    /// How the stream runs, its name among it.
    fn settings(&self) -> &StreamSettings;

    /// Connects. What has to be made is made; calling it again after an error is harmless.
    ///
    /// # Errors
    /// What keeps this stream from running here, whatever its kind: the call is repeated until it succeeds.
    async fn connect(&self, cx: &Cx) -> Result<StreamSpec>;
}

/// A stream as an instance is given it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum StreamEntry {
    /// Its source and sinks are there.
    Connected(Box<StreamSpec>),
    /// They have to be connected to.
    Unconnected(Arc<dyn Connect>),
}

impl StreamEntry {
    /// How it runs.
    pub fn settings(&self) -> &StreamSettings {
        match self {
            Self::Connected(spec) => &spec.settings,
            Self::Unconnected(connect) => connect.settings(),
        }
    }

    /// Checks what can be known without a connection.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::Connected(spec) => spec.validate(),
            Self::Unconnected(connect) => connect.settings().validate(),
        }
    }
}

impl From<StreamSpec> for StreamEntry {
    fn from(spec: StreamSpec) -> Self {
        Self::Connected(Box::new(spec))
    }
}

/// A stream whose source and sinks are there.
#[derive(Debug)]
pub struct Connected {
    /// The stream.
    pub spec: Arc<StreamSpec>,
    /// Where its checkpoint is kept.
    pub checkpoints: Arc<dyn CheckpointStore>,
}

/// Connects one stream, however long that takes.
pub(crate) struct Connecting {
    pub(crate) seams: Seams,
    pub(crate) stream_slot: Arc<StreamSlot>,
    pub(crate) connect: Arc<dyn Connect>,
    /// Where the group keeps checkpoints.
    pub(crate) checkpoints: Arc<dyn CheckpointStore>,
    /// Tells the standby that there is one more stream to ask for.
    pub(crate) news: Arc<Notify>,
}

impl Connecting {
    pub(crate) async fn run(self) {
        let mut limit = LogLimit::default();
        let began = self.seams.clock.now();
        for attempt in 0.. {
            let error = match self.try_once().await {
                Ok(spec) => return self.connected(spec, attempt),
                Err(error) => error.name_stream(self.stream_slot.name()),
            };
            let now = self.seams.clock.now();
            self.stream_slot.fail(PART, &error);
            if let Some(due) = limit.due(&error.to_string(), now) {
                let (stream, attempts, left_out) = (self.stream_slot.name(), attempt + 1, due.left_out);
                let failing_for = failing_for(now.since(began));
                tracing::warn!(stream, attempts, failing_for, left_out, %error, "the stream cannot be opened here; trying again");
            }
            self.wait_before_retry(AGAIN.delay(attempt, &self.seams.entropy)).await;
        }
    }

    /// Waits before the next attempt, unless a person wants it at once.
    async fn wait_before_retry(&self, delay: Duration) {
        let next_try = self.seams.clock.now() + delay;
        self.stream_slot.health.stay_away(next_try, next_try);
        let cx = self.seams.cx();
        tokio::select! {
            biased;
            () = self.stream_slot.retry_request() => {}
            () = cx.sleep(delay) => {}
        }
    }

    async fn try_once(&self) -> Result<StreamSpec> {
        let cx = self.seams.cx();
        let connected = AssertUnwindSafe(self.connect.connect(&cx)).catch_unwind().await;
        let spec = connected.unwrap_or_else(|panic| {
            Err(Error::internal(format!("opening the stream panicked: {}", panic_text(&*panic))))
        })?;
        spec.validate()?;
        Ok(spec)
    }

    fn connected(&self, spec: StreamSpec, failures: u32) {
        let (stream_slot, stream) = (&self.stream_slot, self.stream_slot.name());
        if failures > 0 {
            tracing::info!(stream, failures, "the stream could be opened");
        }
        stream_slot.connect(spec, &self.checkpoints);
        stream_slot.health.mark_recovered(PART);
        stream_slot.health.come_back();
        stream_slot.go(ListenerState::Connecting, None, "standing by");
        self.news.notify_one();
    }
}

/// What fails while a stream is not connected.
pub(crate) const PART: &str = "opening";
