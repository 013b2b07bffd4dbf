//! What operators' commands reach of a site.

mod unverified;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use watchkeeper::core::{Holder, SourceTime};
use watchkeeper::engine::checkpoint::history::History;
use watchkeeper::engine::checkpoint::lost;
use watchkeeper::engine::checkpoint::operator::{Move, MoveReport, Operator, Subject};
use watchkeeper::engine::group::control::Controls;
use watchkeeper::engine::group::journal::Journal;
use watchkeeper::engine::group::registry::{Listed, Registry};
use watchkeeper::engine::group::store_binding::StoreBindings;
use watchkeeper::{Checkpoint, CheckpointStore, Cx, Error, ErrorKind, Position, Records, Result, StartAt, StreamSpec};

use crate::args::Patience;
use crate::config::Stream;
use crate::signals::Signals;
use crate::site::Site;
use crate::when::{Target, iso};

pub(crate) use unverified::Unverified;

/// How long one look may take before a person is told that nothing answers.
const LOOK: Duration = Duration::from_secs(10);

/// What is added to the times that instances need, for the way there and back.
const WAY: Duration = Duration::from_secs(5);

/// Between two looks at something that will change.
const INSPECT_EVERY: Duration = Duration::from_millis(25);

impl Site {
    /// The context of one look at the stores.
    pub(crate) fn read_context(&self) -> Cx {
        self.seams.cx().within(LOOK)
    }

    /// The context of a wait for the instances. It ends early when a person interrupts.
    pub(crate) fn wait(&self, patience: Patience) -> Cx {
        let usual = self.settings.lease.ttl + self.settings.shutdown_grace + WAY;
        let interrupted = CancellationToken::new();
        let cx = self.seams.cx().within(patience.wait.unwrap_or(usual)).cancelled_by(interrupted.clone());
        tokio::spawn(async move {
            // Where they cannot be taken they end the program, as they do by themselves.
            if let Ok(mut signals) = Signals::take() {
                signals.next().await;
                interrupted.cancel();
            }
        });
        cx
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.stores.records)
    }

    /// What people want of the streams.
    pub(crate) fn controls(&self) -> Controls {
        Controls::new(self.records(), &self.settings.group)
    }

    /// Who relieved whom.
    pub(crate) fn journal(&self) -> Journal {
        Journal::new(self.records(), &self.settings.group)
    }

    /// The newest checkpoint of `stream`. One that is missing or damaged is shown as halted for that reason.
    pub(crate) async fn checkpoint(&self, cx: &Cx, stream: &Stream) -> Result<Option<Checkpoint>> {
        let store = self.keeper(stream).await??;
        self.checkpoint_in(cx, &*store, stream).await
    }

    /// The newest checkpoint of `stream` in `store`.
    pub(crate) async fn checkpoint_in(
        &self,
        cx: &Cx,
        store: &dyn CheckpointStore,
        stream: &Stream,
    ) -> Result<Option<Checkpoint>> {
        let bindings = StoreBindings::new(self.records(), &self.settings.group);
        let (name, key) = (&stream.settings.name, self.key(stream));
        lost::load(cx, (store, &bindings), (name, &key), &self.history(stream)).await
    }

    /// The checkpoints of `stream` before the newest one.
    pub(crate) fn history(&self, stream: &Stream) -> History {
        History::new(self.records(), &self.settings.group, &self.key(stream), stream.settings.history)
    }

    /// Who is there.
    pub(crate) async fn members(&self, cx: &Cx) -> Result<Vec<Listed>> {
        let registry = Registry::new(self.records(), &self.settings.group);
        let registry = registry.unhealthy_after(self.settings.unhealthy_after);
        cx.run(registry.list(cx)).await
    }

    /// Who is there and could run `stream`.
    pub(crate) async fn able(&self, cx: &Cx, stream: &str) -> Result<Vec<Listed>> {
        let mut members = self.members(cx).await?;
        members.retain(|listed| !listed.is_silent() && listed.member.streams.iter().any(|known| known == stream));
        Ok(members)
    }

    /// Whether somebody is there who was given `stream`, be it that it cannot run it just now.
    pub(crate) async fn is_manned(&self, cx: &Cx, stream: &str) -> Result<bool> {
        let has = |listed: &Listed| {
            let is_reported = listed.member.reports.iter().any(|report| report.stream == stream);
            !listed.is_silent() && (is_reported || listed.member.streams.iter().any(|known| known == stream))
        };
        Ok(self.members(cx).await?.iter().any(has))
    }

    /// Who has the watch of `stream`.
    pub(crate) async fn holder(&self, cx: &Cx, stream: &Stream) -> Result<Option<Holder>> {
        let mut holders = cx.run(self.stores.leases.holders(cx, &[self.key(stream)])).await?;
        Ok(holders.pop().flatten())
    }

    /// Performs an operator's move.
    pub(crate) async fn perform(&self, stream: &StreamSpec, requested: Move, patience: Patience) -> Result<MoveReport> {
        let operator = Operator::of(stream, &self.stores, &self.settings, Arc::clone(&self.seams.entropy));
        let (key, sinks) = (stream.key(&self.settings.group), stream.profiles());
        let subject = Subject { stream: &stream.settings.name, key: &key, source: &*stream.source, sinks: &sinks };
        operator.move_to(&self.wait(patience), &subject, requested).await
    }

    /// Performs an operator's move that asks neither the source nor the sinks anything: only where the checkpoint is kept has to
    /// answer.
    pub(crate) async fn perform_apart(
        &self,
        stream: &Stream,
        requested: Move,
        patience: Patience,
    ) -> Result<MoveReport> {
        self.perform(&self.resumable(stream).await?, requested, patience).await
    }

    /// The position that `target` means in the log of `stream` as it is now, and what a person should know of it.
    ///
    /// # Errors
    /// `Config` when the log does not reach back so far: less than was asked for would be delivered again.
    pub(crate) async fn locate(
        &self,
        cx: &Cx,
        stream: &StreamSpec,
        target: &Target,
    ) -> Result<(Position, Option<String>)> {
        let start = match target {
            Target::Position(bytes) => return Ok((Position::new(bytes.clone(), None), None)),
            Target::Oldest => StartAt::Oldest,
            Target::Now => StartAt::Now,
            Target::Snapshot => StartAt::Snapshot,
            Target::Operation(time) => StartAt::Operation(*time),
            Target::Time(millis) => StartAt::Time(SourceTime(*millis)),
        };
        let mut log = cx.run(stream.source.peek(cx, start)).await?;
        let window = cx.run(log.window(cx)).await;
        let (position, note) = (log.position(), log.opening_note());
        cx.run(log.close(cx)).await?;
        if let Target::Time(millis) = target {
            let window = window?;
            let newest = window.newest.map_or(0, |newest| newest.0).max(self.seams.clock.wall_millis());
            within(*millis, window.oldest.map_or(0, |oldest| oldest.0), newest)?;
        }
        let position = position.ok_or_else(|| {
            Error::config("this source does not name the position there").remedy("name a position or a time")
        })?;
        Ok((position, note))
    }
}

/// Refuses a time that the log does not have: before its oldest change, or still to come.
fn within(millis: u64, oldest: u64, newest: u64) -> Result<()> {
    if oldest > millis {
        let cause = format!("the log reaches back to {} only, not to {}", iso(oldest), iso(millis));
        return Err(
            Error::config(cause).remedy("choose a later time, or move to `oldest` with `watchkeeper checkpoint set`")
        );
    }
    if newest < millis {
        let cause = format!("{} is still to come", iso(millis));
        return Err(Error::config(cause).remedy("choose a time that is over, or now to take what happens from now on"));
    }
    Ok(())
}

/// Asks again and again until there is an answer; `None` when the time of `cx` is over, or when a person interrupted.
///
/// # Errors
/// What the last look said, if it was an error. Earlier ones may be over.
pub(crate) async fn until<T>(cx: &Cx, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    loop {
        let failed = match ask().await {
            Ok(Some(answer)) => return Ok(Some(answer)),
            Ok(None) => None,
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => Some(error),
            Err(error) => return Err(error),
        };
        cx.sleep(INSPECT_EVERY).await;
        if cx.check().is_err() {
            return failed.map_or(Ok(None), Err);
        }
    }
}
