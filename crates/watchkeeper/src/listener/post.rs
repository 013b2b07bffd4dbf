//! The engine of a listener: one stream into an `AckSink`, and the batches that were taken from it.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Error, Follower, LeaseKey, Operation, Task};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::listener::{ListenerState, StreamStatus};
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{CheckpointPolicy, StreamSettings};
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};

use super::ack_sink::AckSink;
use super::changelog::ChangeLogEntry;
use super::config::ChangeLogConfig;
use super::error::{ObserverError, Result};
use super::failover::as_checkpoint;
use super::handle::ListenerHandle;
use super::observed::Observed;

/// How soon what was acknowledged is committed.
const COMMIT_WITHIN: Duration = Duration::from_millis(10);

/// Longer than any patience: a call that waits for a consumer ends by patience or not at all.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// How long to look for the newest checkpoint before telling of a failover.
const LOOK: Duration = Duration::from_secs(1);

/// A listener that has started.
#[derive(Debug)]
pub(super) struct Started {
    running: Running,
    acks: AckSink,
    turned: Follower<u64>,
    status: Follower<StreamStatus>,
    committed: Follower<u64>,
    handle: ListenerHandle,
    /// The batch that was taken and is not known to be committed.
    out: Option<Out>,
    /// Tenures whose end has been told.
    reported: u64,
    key: LeaseKey,
    stores: Stores,
    seams: Seams,
    _mirror: Task<()>,
}

#[derive(Debug)]
struct Out {
    opening: u64,
    number: u64,
    /// How many changes are committed when this batch is.
    through: u64,
    /// What came of acknowledging it.
    acknowledged: Option<bool>,
}

impl Started {
    pub(super) async fn new(
        seams: Seams,
        stores: Stores,
        group: &str,
        config: &ChangeLogConfig,
        handle: ListenerHandle,
        patience: Option<Duration>,
    ) -> Result<Self> {
        let acks = AckSink::new(patience, config.target);
        let observed = Arc::new(Observed::new(Arc::clone(&stores.checkpoints)));
        let committed = observed.follow();
        let spec = StreamSpec {
            settings: settings(config),
            source: Arc::clone(&config.source),
            sinks: vec![SinkSpec::new("listener", Arc::new(acks.clone()))],
            checkpoints: Some(observed),
        };
        let (key, instance) = (spec.key(group), config.multi_listener.instance(group));
        let running = Running::start(seams.clone(), stores.clone(), instance, vec![spec]).await?;
        let status = running.status(&config.stream).ok_or_else(|| Error::internal("a stream has no status"))?;
        let mirror = mirror(handle.clone(), status.clone(), committed.clone());
        Ok(Self {
            turned: acks.follow(),
            acks,
            status,
            committed,
            handle,
            out: None,
            reported: 0,
            key,
            stores,
            _mirror: Task::spawn(&*seams.spawn, "listener", mirror),
            seams,
            running,
        })
    }

    /// How many changes are committed, as far as is known here.
    pub(super) fn checkpoint(&self) -> i64 {
        as_checkpoint(*self.committed.get())
    }

    /// Acknowledges what was taken, and waits until it is committed. What will be offered again counts as settled.
    pub(super) async fn settle(&mut self) -> Result<()> {
        loop {
            let Some(out) = &mut self.out else { return Ok(()) };
            let (opening, number) = (out.opening, out.number);
            let acknowledged = *out.acknowledged.get_or_insert_with(|| self.acks.acknowledge(number));
            let through = out.through;
            self.mark_seen();
            if acknowledged && *self.committed.get() >= through {
                self.out = None;
                self.handle.set_checkpoint(self.checkpoint());
                return Ok(());
            }
            self.handle_end().await?;
            if self.acks.offers_again(opening, number, !acknowledged) {
                self.out = None;
                return Ok(());
            }
            self.wait().await?;
        }
    }

    /// Waits for the next batch.
    pub(super) async fn take(&mut self) -> Result<Vec<ChangeLogEntry>> {
        loop {
            self.mark_seen();
            self.handle_end().await?;
            if let Some(taken) = self.acks.take() {
                // All before it is committed: that was waited for, or it is where this opening began.
                let before = *self.committed.get();
                let counted = |change: &watchkeeper_core::Change| change.operation() != Operation::Gap;
                let mut through = before;
                let entries = taken.rows.into_iter().map(|change| {
                    through += u64::from(counted(&change));
                    ChangeLogEntry { checkpoint: as_checkpoint(through), change }
                });
                let entries: Vec<_> = entries.collect();
                let (opening, number) = (taken.opening, taken.number);
                self.out = Some(Out { opening, number, through, acknowledged: None });
                return Ok(entries);
            }
            self.wait().await?;
        }
    }

    /// Leaves in order.
    pub(super) async fn close(mut self) -> Result<()> {
        self.acks.close();
        self.running.shutdown();
        self.running.join().await?;
        Ok(())
    }

    /// Tells of a tenure that ended, once, and of a stream that nobody may run.
    async fn handle_end(&mut self) -> Result<()> {
        let status = self.status.get().clone();
        let on_watch = matches!(status.state, ListenerState::Running | ListenerState::Recovering);
        let ended = status.tenures.saturating_sub(u64::from(on_watch));
        if ended > self.reported {
            self.reported = ended;
            self.out = None;
            let cause = status.last_error.unwrap_or_else(|| "it was handed over".to_owned());
            let (listener_id, checkpoint) = (self.handle.listener_id().to_owned(), self.newest().await);
            return Err(ObserverError::ListenerFailover { listener_id, checkpoint, cause });
        }
        if status.halted {
            let cause = status.last_error.unwrap_or_default();
            return Err(ObserverError::Halted { stream: status.stream, cause });
        }
        Ok(())
    }

    /// How many changes are committed by now, perhaps by another.
    async fn newest(&self) -> i64 {
        let cx = self.seams.cx().within(LOOK);
        let loaded = cx.run(self.stores.checkpoints.load(&cx, &self.key)).await.ok().flatten();
        loaded.map_or_else(|| self.checkpoint(), |checkpoint| as_checkpoint(checkpoint.facts.changes))
    }

    fn mark_seen(&mut self) {
        self.turned.mark_seen();
        self.status.mark_seen();
        self.committed.mark_seen();
    }

    /// Waits until anything has changed.
    async fn wait(&mut self) -> Result<()> {
        // That it is halted has been told before; otherwise it was shut down, or could not join the group.
        let may_have_ended = self.status.get().state == ListenerState::Stopped;
        let changed = tokio::select! {
            biased;
            status = self.status.changed() => status,
            committed = self.committed.changed() => committed,
            turned = self.turned.changed() => turned,
            ended = self.running.join(), if may_have_ended => {
                ended?;
                return Err(self.stopped());
            }
        };
        changed.map_err(|_| self.stopped())
    }

    fn stopped(&self) -> ObserverError {
        ObserverError::Stopped { listener_id: self.handle.listener_id().to_owned() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Its coordinator may live on, and must not show it as listening.
        self.handle.follow(ListenerState::Stopped);
    }
}

fn settings(config: &ChangeLogConfig) -> StreamSettings {
    let mut settings = StreamSettings { start: config.start.clone(), ..StreamSettings::new(&config.stream) };
    settings.limits.rows = config.batch_size;
    settings.checkpoint = CheckpointPolicy { every: COMMIT_WITHIN, events: None };
    // What is read ahead waits in front of the consumer, and a hand-over waits for it.
    settings.window_pieces = 2;
    settings.timeouts.write = FOR_EVER;
    settings
}

/// Shows the engine's state and commits on the listener's handle, and so to the other processes.
async fn mirror(handle: ListenerHandle, mut status: Follower<StreamStatus>, mut committed: Follower<u64>) {
    loop {
        let state = status.see().state;
        let changes = *committed.see();
        handle.follow(state);
        if changes > 0 {
            handle.set_checkpoint(as_checkpoint(changes));
        }
        let changed = tokio::select! {
            biased;
            changed = status.changed() => changed,
            changed = committed.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
