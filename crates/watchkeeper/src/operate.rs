//! Operating a stream from a program: what `watchkeeper pause`, `resume`, `handoff`, `checkpoint` and `dead-letters` do on the
//! command line.
//!
//! [`resume`](StreamOperator::resume), [`rewind`](StreamOperator::rewind) and [`skip`](StreamOperator::skip) return when they are
//! done. Everything else writes a request into the group's store and returns; the holder, wherever it runs, acts on it within a
//! heartbeat. [`Watch::status`](crate::Watch::status) shows what came of it.
//!
//! ```no_run
//! # async fn operate(watch: &watchkeeper::Watch) -> watchkeeper::Result<()> {
//! let orders = watch.operate("orders").expect("the stream is configured");
//! for letter in orders.dead_letters().await? {
//!     println!("{} was rejected by {}: {}", letter.number, letter.entry.sink, letter.entry.cause);
//! }
//! orders.replay(&[]).await?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    Change, Checkpoint, CheckpointStore, Cx, Error, Halted, Holder, LedgerQuery, LedgerRecord, Resolution, Result,
};
use watchkeeper_engine::checkpoint::next_change::{self, next_change};
pub use watchkeeper_engine::checkpoint::operator::Back;
use watchkeeper_engine::checkpoint::operator::{Move, Operator, Subject};
use watchkeeper_engine::group::control::{Control, Controls, PurgeRequest, ReplayRequest};
use watchkeeper_engine::group::registry::{Listed, Registry};
use watchkeeper_engine::instance::{Instance, Stores};
use watchkeeper_engine::stream::StreamSpec;

/// How long one look at the stores may take.
const LOOK: Duration = Duration::from_secs(10);

/// So many entries of a ledger are read at once.
const PAGE: usize = 500;

/// Operates one stream of a group, on whichever instance it runs. Made by [`Watch::operate`](crate::Watch::operate).
#[derive(Debug, Clone)]
pub struct StreamOperator {
    instance: Arc<Instance>,
    stores: Stores,
    stream: Arc<StreamSpec>,
}

impl StreamOperator {
    pub(crate) fn new(instance: Arc<Instance>, stores: Stores, stream: Arc<StreamSpec>) -> Self {
        Self { instance, stores, stream }
    }

    /// Lets nobody run the stream. Whoever has the watch drains, commits and leaves.
    ///
    /// # Errors
    /// What the store says.
    pub async fn pause(&self) -> Result<()> {
        self.want(Control::pause).await.map(drop)
    }

    /// Whether the stream is paused.
    ///
    /// # Errors
    /// What the store says.
    pub async fn is_paused(&self) -> Result<bool> {
        let cx = self.cx();
        Ok(cx.run(self.controls().read(&cx, self.name())).await?.paused)
    }

    /// Lets the stream run again, and lifts its halt if it has one; the answer is that halt. Instances that gave the stream up and
    /// stay away from it for a while try it at once.
    ///
    /// # Errors
    /// What the stores say, and `Unavailable` when whoever holds a halted stream does not leave within a lease and the grace of a
    /// shutdown.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropped, it may leave the stream paused.
    pub async fn resume(&self) -> Result<Option<Halted>> {
        let cx = self.cx();
        let stored = cx.run(self.checkpoints().load(&cx, &self.stream.key(self.group()))).await;
        let lifted = match stored {
            Ok(Some(Checkpoint { halted: Some(_), .. })) => self.perform(Move::Resume).await?,
            Ok(_) => None,
            // What is paused runs again although nobody knows whether it is halted, too: a halt holds by itself.
            Err(error) if error.kind().is_away() && self.is_paused().await? => {
                tracing::warn!(stream = self.name(), %error, "whether the stream is halted could not be seen; it is paused no longer");
                None
            }
            Err(error) => return Err(error),
        };
        self.want(|control| {
            control.unpause();
            control.try_now();
            control.halted_hint = false;
        })
        .await?;
        Ok(lifted)
    }

    /// Moves the stream back, to a checkpoint of its history: what was delivered since is delivered again. Sinks that know the versions of
    /// their rows may ignore it.
    ///
    /// # Errors
    /// `Config` where the history does not reach back so far, what source and stores say, and `Unavailable` when whoever has the watch does
    /// not leave within a lease and the grace of a shutdown.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropped, it leaves the stream paused for as long as the move may take.
    pub async fn rewind(&self, back: Back) -> Result<()> {
        self.perform(Move::Rewind(back)).await.map(drop)
    }

    /// Passes over the first change that has not been delivered, and lifts the halt of the stream if it has one. The change is not delivered
    /// to any sink; the ledger keeps it with `cause`. Returns the change, or both halves of an update that changed a key.
    ///
    /// # Errors
    /// `Config` where no change follows, what source and stores say, and `Unavailable` when whoever has the watch does not leave within
    /// a lease and the grace of a shutdown.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropped, it leaves the stream paused for as long as the move may take.
    pub async fn skip(&self, cause: &str) -> Result<Vec<Change>> {
        let cx = self.cx();
        let stored = cx.run(self.checkpoints().load(&cx, &self.stream.key(self.group()))).await?;
        let before = stored.and_then(|stored| stored.position);
        let unit = next_change(&cx, &*self.stream.source, before.clone()).await?;
        let sinks: Vec<_> = self.stream.sinks.iter().map(|sink| sink.name.as_str()).collect();
        let requested = next_change::skip(&self.stream, &sinks, &unit, before, cause)?;
        self.perform(requested).await?;
        Ok(unit)
    }

    /// Asks whoever has the watch to leave in order: to the instance of the name `to`, or to any other. The named instance is preferred for
    /// one takeover: once it has had the watch, or did not take it within the time of a lease, all are alike again. Returns whether
    /// somebody was asked.
    ///
    /// # Errors
    /// `Config` where no instance of the name `to` is there to run the stream, and what the stores say.
    pub async fn hand_over(&self, to: Option<&str>) -> Result<bool> {
        if let Some(to) = to {
            self.require_instance(to).await?;
        }
        let holder = self.holder().await?;
        let epoch =
            holder.as_ref().filter(|holder| to != Some(holder.candidate.name.as_str())).map(|holder| holder.epoch);
        self.want(|control| {
            control.preferred = to.map(str::to_owned);
            control.hand_over = control.hand_over.max(epoch);
        })
        .await?;
        Ok(epoch.is_some())
    }

    /// What sinks rejected and nobody has settled yet, the oldest first.
    ///
    /// # Errors
    /// What the store says.
    pub async fn dead_letters(&self) -> Result<Vec<LedgerRecord>> {
        let (store, key) = (self.checkpoints(), self.stream.key(self.group()));
        let mut query = LedgerQuery { after: 0, limit: PAGE, open_only: true };
        let mut letters = Vec::new();
        loop {
            let cx = self.cx();
            let page = cx.run(store.ledger(&cx, &key, &query)).await?;
            let Some(last) = page.last() else { return Ok(letters) };
            query.after = last.number;
            letters.extend(page.into_iter().filter(|record| record.entry.kind.is_letter()));
        }
    }

    /// Asks whoever has the watch to deliver these dead letters again, or all of them when no number is given.
    ///
    /// # Errors
    /// What the store says.
    pub async fn replay(&self, numbers: &[u64]) -> Result<()> {
        let wall = self.instance.seams.clock.wall_millis();
        self.want(|control| {
            let id = control.replay.as_ref().map_or(wall, |request| wall.max(request.id + 1));
            control.replay = Some(ReplayRequest { id, sink: None, numbers: numbers.to_vec() });
        })
        .await
        .map(drop)
    }

    /// Gives these dead letters up for good: by whoever has the watch, or here when nobody has it.
    ///
    /// # Errors
    /// What the stores say.
    pub async fn purge(&self, numbers: &[u64]) -> Result<()> {
        if self.holder().await?.is_none() {
            let requested = Move::Resolve { numbers: numbers.to_vec(), resolution: Resolution::Purged };
            return self.perform(requested).await.map(drop);
        }
        let wall = self.instance.seams.clock.wall_millis();
        self.want(|control| {
            let id = control.purge.as_ref().map_or(wall, |request| wall.max(request.id + 1));
            control.purge = Some(PurgeRequest { id, sink: None, numbers: numbers.to_vec() });
        })
        .await
        .map(drop)
    }

    fn name(&self) -> &str {
        &self.stream.settings.name
    }

    fn group(&self) -> &str {
        &self.instance.settings.group
    }

    fn checkpoints(&self) -> Arc<dyn CheckpointStore> {
        self.stores.checkpoints_of(&self.stream)
    }

    fn controls(&self) -> Controls {
        Controls::new(Arc::clone(&self.stores.records), self.group())
    }

    fn cx(&self) -> Cx {
        self.instance.seams.cx().within(LOOK)
    }

    async fn want(&self, change: impl Fn(&mut Control)) -> Result<Control> {
        let cx = self.cx();
        cx.run(self.controls().update(&cx, self.name(), change)).await
    }

    /// Refuses an instance that is not there, or cannot run the stream: whoever has the watch would leave it for nothing.
    async fn require_instance(&self, name: &str) -> Result<()> {
        let settings = &self.instance.settings;
        let registry = Registry::new(Arc::clone(&self.stores.records), &settings.group);
        let cx = self.cx();
        let listed = cx.run(registry.unhealthy_after(settings.unhealthy_after).list(&cx)).await?;
        let runs =
            |listed: &&Listed| listed.healthy && listed.member.streams.iter().any(|stream| stream == self.name());
        let able: Vec<_> = listed.iter().filter(runs).map(|listed| listed.member.name.as_str()).collect();
        if able.contains(&name) {
            return Ok(());
        }
        let cause = format!("no instance {name:?} is there to run {}", self.name());
        Err(Error::config(cause).remedy(format!("those that are there: {}", able.join(", "))))
    }

    async fn holder(&self) -> Result<Option<Holder>> {
        let cx = self.cx();
        let mut holders = cx.run(self.stores.leases.holders(&cx, &[self.stream.key(self.group())])).await?;
        Ok(holders.pop().flatten())
    }

    /// Performs an operator's move; the answer is the halt that it lifted.
    async fn perform(&self, requested: Move) -> Result<Option<Halted>> {
        let settings = &self.instance.settings;
        let operator = Operator::of(&self.stream, &self.stores, settings, Arc::clone(&self.instance.seams.entropy));
        let (key, sinks) = (self.stream.key(self.group()), self.stream.profiles());
        let subject = Subject { stream: self.name(), key: &key, source: &*self.stream.source, sinks: &sinks };
        let cx = self.instance.seams.cx().within(settings.lease.ttl + settings.shutdown_grace + LOOK);
        let done = operator.move_to(&cx, &subject, requested).await?;
        let notes = done.remarks.iter().chain(&done.swallowing);
        notes.for_each(|note| tracing::warn!(stream = self.name(), "{note}"));
        Ok(done.lifted)
    }
}
