//! Opens sinks and source for a tenure, and runs the opening.
//!
//! Sinks and source are opened anew with every opening. After a failed flush the buffers of a writer are worthless, and
//! batches are counted from 0 again. Sinks are opened under the grant of the tenure, so a fenced sink refuses older
//! epochs before anything is delivered. A sink that stays behind an
//! open circuit breaker for `give_up` (default 10 s, twice the default lease) makes the instance leave the stream to a
//! healthy one that does not stay away itself, unless a probe of the sink is under way.
//!
//! Every batch is stamped with the pedigree of the log that was opened. If there is no position and the start moves on
//! (as "now" does), the opened position is committed before anything is delivered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Component, Error, Follower, Grade, Latest, OpenedSink, Operation, Pedigree,
    Position, Reason, Resolution, Result, RowParts, SinkContext, SinkTarget, SourceTime, Stage, StartAt, StoreIdentity,
    Task, TransactionalWriter, Version,
};

use super::ending::{DELIVERY, OPENING};
use super::state::ListenerState;
use super::watch::{TenureState, Watch};
use crate::group::control::Control;
use crate::hooks::Mutant;
use crate::metrics;
use crate::pipeline::committer::Committer;
use crate::pipeline::opening::{BeforeLastCommit, End, Opening};
use crate::pipeline::opening_state::{Draft, Failure, OpeningState};
use crate::pipeline::replay::{DeadLetterRequest, DeadLetters, open_letters};
use crate::pipeline::sink_delivery::{SinkDelivery, parking_of};
use crate::pipeline::transactional::Transactional;
use crate::progress::CallProgress;
use crate::standby::TENURE;
use crate::stream::SinkSpec;
use crate::tenure::Tenure;

/// The open sinks of a tenure.
struct Sinks {
    deliveries: Vec<Arc<SinkDelivery>>,
    transactional: Option<(usize, SinkSpec, Box<dyn TransactionalWriter>)>,
}

impl Watch {
    /// Opens everything and runs until it ends.
    pub(super) async fn open(&self, tenure_state: &mut TenureState, leave: &CancellationToken) -> End {
        tenure_state.was_open = false;
        let (instance, tenure) = (&self.instance, Arc::clone(&tenure_state.tenure));
        let hooks = instance.settings.hooks;
        let (spec, view) = (Arc::clone(&self.spec), Arc::clone(&instance.view));
        let health = Arc::clone(&self.stream_slot.health);
        let opening_state = OpeningState::new(spec, tenure, instance.seams.clone(), view, health, hooks);
        let opened = async {
            self.recall(&opening_state, tenure_state).await?;
            self.begin(&opening_state, tenure_state).await?;
            let has_position = tenure_state.committed().await.is_some();
            let goes_on = tenure_state.gap.is_none() && has_position;
            let begins_snapshot = tenure_state.gap.as_ref().is_some_and(|(start, _)| *start == StartAt::Snapshot);
            let sinks = self.open_sinks(&opening_state, tenure_state, !has_position || begins_snapshot);
            let source = async {
                let source = self.open_source(&opening_state, tenure_state).await;
                source.inspect_err(|failure| {
                    failure
                        .error()
                        .into_iter()
                        .for_each(|error| metrics::source_failed(self.stream_slot.name(), error.class()));
                })
            };
            if goes_on {
                // A takeover is waited for, so neither waits for the other.
                tokio::try_join!(biased; sinks, source)
            } else {
                // Nothing is made at the source for a stream whose sinks cannot be opened.
                Ok((sinks.await?, source.await?))
            }
        };
        let opened = tokio::select! {
            biased;
            opened = opened => opened,
            // Nothing has been delivered yet, so there is nothing to drain.
            () = leave.cancelled() => return End { failure: None, abandoned: true, cut_off: false, in_flight: 0 },
        };
        let (sinks, stream) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                opening_state.fail(failure);
                return End { failure: opening_state.take_failure(), abandoned: false, cut_off: false, in_flight: 0 };
            }
        };
        let _noting = self.note_targets(&opening_state.tenure);
        // From here on the gap, if there was one, is behind.
        tenure_state.gap = None;
        self.stream_slot.health.mark_recovered(OPENING);
        self.stream_slot.health.mark_recovered(TENURE);
        tenure_state.was_open = true;
        self.stream_slot.go(ListenerState::Running, Some(opening_state.tenure.grant().epoch), "opened");
        self.stream_slot.publish(|status| status.openings += 1);
        self.run_opening(opening_state, tenure_state, sinks, stream, leave).await
    }

    async fn run_opening(
        &self,
        opening_state: Arc<OpeningState>,
        tenure_state: &TenureState,
        sinks: Sinks,
        stream: Box<dyn ChangeStream>,
        leave: &CancellationToken,
    ) -> End {
        let store = Arc::clone(&self.checkpoints);
        let letters = DeadLetters::new(store, self.stream_slot.key.clone(), Arc::clone(&self.spec.source));
        let letters = letters.cleared_by(self.instance.controls.clone(), self.stream_slot.name());
        let published = Latest::new(requests_of(&self.stream_slot.control.get()));
        let requests = published.follow();
        let committer = Arc::clone(&tenure_state.committer);
        let deliveries: Arc<[Arc<SinkDelivery>]> = sinks.deliveries.into();
        let grace = self.instance.settings.shutdown_grace;
        let before_last_commit = self.before_last_commit(&opening_state);
        let from = committer.lock().await.position().cloned();
        self.stream_slot.health.begin(from.clone(), Arc::downgrade(&opening_state));
        let committed = opening_state.committed.follow();
        let running = async {
            match sinks.transactional {
                None => {
                    let opening = Opening { opening_state, deliveries, committer, letters, from, requests };
                    opening.run(stream, leave, grace, before_last_commit).await
                }
                Some((index, spec, writer)) => {
                    let call_progress = opening_state.tenure.progress().call_progress("dispatcher");
                    let mut parked = parking_of(&spec);
                    parked.restore(&tenure_state.letters);
                    let opening = Transactional {
                        opening_state,
                        deliveries,
                        spec,
                        index,
                        writer,
                        committer,
                        letters,
                        from,
                        requests,
                        parked,
                        call_progress,
                        adaptive_size: Arc::clone(&self.stream_slot.adaptive_size),
                    };
                    opening.run(stream, leave, grace, before_last_commit).await
                }
            }
        };
        tokio::select! {
            biased;
            end = running => end,
            never = self.pass_requests(published) => match never {},
            never = self.report_commits(committed) => match never {},
        }
    }

    /// Shows people how far the stream is.
    async fn report_commits(&self, mut committed: Follower<Option<Position>>) -> std::convert::Infallible {
        loop {
            let newest = committed.see().clone();
            if let Some(position) = newest {
                let now = self.instance.seams.clock.wall_millis();
                let lag = position.time.map(|time| Duration::from_millis(now.saturating_sub(time.0)));
                self.stream_slot.health.mark_recovered(DELIVERY);
                self.stream_slot.health.stand_at(position.clone());
                self.stream_slot.publish(|status| (status.position, status.lag) = (Some(position), lag));
            }
            if committed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells the pipeline what people ask of the dead letters.
    async fn pass_requests(&self, published: Latest<Vec<DeadLetterRequest>>) -> std::convert::Infallible {
        let mut control = self.stream_slot.control.clone();
        loop {
            let requests = requests_of(&control.see());
            published.change_if(|current| {
                let news = *current != requests;
                *current = requests;
                news
            });
            if control.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes up what earlier openings of this tenure, or earlier tenures, have left: a commit whose
    /// answer was lost, and the dead letters that park their keys.
    async fn recall(&self, opening_state: &OpeningState, tenure_state: &mut TenureState) -> Result<(), Failure> {
        let mut committer = tenure_state.committer.lock().await;
        committer.settle().await?;
        drop(committer);
        // Asked at every opening: what is parked must not depend on a counter.
        let cx = opening_state.tenure.cx().within(self.spec.settings.timeouts.commit);
        tenure_state.letters = open_letters(&cx, &*self.checkpoints, &self.stream_slot.key).await?;
        Ok(())
    }

    async fn open_sinks(
        &self,
        opening_state: &OpeningState,
        tenure_state: &TenureState,
        delivers_anew: bool,
    ) -> Result<Sinks, Failure> {
        let spec = &self.spec;
        let call_progress = opening_state.tenure.progress().call_progress("opening");
        let identity = self.checkpoint_identity(opening_state, &call_progress).await?;
        let mut sinks = Sinks { deliveries: Vec::new(), transactional: None };
        for (index, sink) in spec.sinks.iter().enumerate() {
            let context = SinkContext {
                grant: opening_state.tenure.grant().clone(),
                stream: spec.settings.name.clone(),
                sink: sink.name.clone(),
                partition: 0,
                lanes: spec.settings.concurrency,
                store: identity,
            };
            match self.open_sink(opening_state, sink, &context, delivers_anew).await? {
                OpenedSink::Plain(writer) => {
                    if sink.sink.profile().grade == Grade::Transactional {
                        return Err(apart(&sink.name).into());
                    }
                    let place = (index, spec.sinks.len());
                    let delivery = SinkDelivery::new(opening_state, place, sink.clone(), writer, &tenure_state.letters);
                    sinks.deliveries.push(Arc::new(delivery));
                }
                OpenedSink::Transactional(writer) => {
                    if sink.sink.profile().store != Some(identity) || sinks.transactional.is_some() {
                        return Err(apart(&sink.name).into());
                    }
                    sinks.transactional = Some((index, sink.clone(), writer));
                }
            }
        }
        Ok(sinks)
    }

    /// Opens a sink. A target that the stream has written to is not made anew when it is missing: it would lack what was delivered up to
    /// the position, and nobody would know.
    async fn open_sink(
        &self,
        opening_state: &OpeningState,
        spec: &SinkSpec,
        context: &SinkContext,
        delivers_anew: bool,
    ) -> Result<OpenedSink, Failure> {
        let (sink, name) = (&spec.sink, self.stream_slot.name());
        let call_progress = opening_state.tenure.progress().call_progress("opening");
        let call = opening_state.tenure.call(&call_progress, self.spec.settings.timeouts.open);
        let component = Component::Sink(spec.name.as_str().into());
        let Some(target) = sink.target() else {
            return Ok(call.run(&component, sink.open(call.cx(), context)).await?);
        };
        if !delivers_anew {
            if let Some(opened) = call.run(&component, sink.open_existing(call.cx(), context)).await? {
                return Ok(opened);
            }
            if call.cx().run(self.bindings().has_written(call.cx(), name, &target.identity)).await? {
                return Err(missing_target(name, &target).raised_by(&component).into());
            }
        }
        let opened = call.run(&component, sink.open(call.cx(), context)).await?;
        // Before anything is written to it.
        call.cx().run(self.bindings().note_targets(call.cx(), name, &[target.identity])).await?;
        Ok(opened)
    }

    /// Notes the targets that were there already when they were opened: those of streams that began before this was noted, and tables
    /// that people made. In parallel with the work: a takeover does not wait for it.
    fn note_targets(&self, tenure: &Arc<Tenure>) -> Option<Task<()>> {
        let targets = self.spec.sinks.iter().filter_map(|spec| spec.sink.target());
        let targets: Vec<_> = targets.map(|target| target.identity).collect();
        if targets.is_empty() {
            return None;
        }
        let (bindings, stream_slot, tenure) = (self.bindings(), Arc::clone(&self.stream_slot), Arc::clone(tenure));
        let note = async move {
            let cx = tenure.cx().within(stream_slot.settings.timeouts.commit);
            if let Err(error) = cx.run(bindings.note_targets(&cx, stream_slot.name(), &targets)).await {
                tracing::debug!(stream = stream_slot.name(), %error, "it was not noted which targets the stream writes to");
            }
        };
        Some(Task::spawn(&*self.instance.seams.spawn, "targets", note))
    }

    async fn checkpoint_identity(
        &self,
        opening_state: &OpeningState,
        call_progress: &CallProgress,
    ) -> Result<StoreIdentity> {
        let call = opening_state.tenure.call(call_progress, self.spec.settings.timeouts.open);
        call.run(&Component::Checkpoints, self.checkpoints.identity(call.cx())).await
    }

    /// Checks the pedigree, then opens the source after the committed position.
    async fn open_source(
        &self,
        opening_state: &OpeningState,
        tenure_state: &TenureState,
    ) -> Result<Box<dyn ChangeStream>, Failure> {
        let (spec, source) = (&self.spec, &self.spec.source);
        let call_progress = opening_state.tenure.progress().call_progress("opening");
        let mut committer = tenure_state.committer.lock().await;
        let call = opening_state.tenure.call(&call_progress, spec.settings.timeouts.open);
        let position = committer.position().cloned();
        let start = match (&tenure_state.gap, &position) {
            (Some((start, _)), _) => start.clone(),
            (None, None) => spec.settings.start.clone(),
            (None, Some(position)) => {
                if let Some(pedigree) = committer.pedigree() {
                    call.run(&Component::Source, source.verify(call.cx(), position, pedigree)).await?;
                }
                StartAt::After(position.clone())
            }
        };
        let pedigree = call.run(&Component::Source, source.identity(call.cx())).await?;
        let moves_on = matches!(start, StartAt::Now | StartAt::Time(_) | StartAt::Operation(_) | StartAt::Snapshot);
        let takes_snapshot = start == StartAt::Snapshot;
        let stream = call.run(&Component::Source, source.open(call.cx(), start)).await?;
        drop(call);
        let opened = stream.position();
        let first = match (&tenure_state.gap, position, opened) {
            (Some((_, cause)), old, opened) => {
                if let Some(opened) = opened.as_ref().filter(|_| takes_snapshot) {
                    commit_opened(&mut committer, opened, &pedigree).await?;
                }
                gap_change(cause, (old, committer.pedigree()), (opened, &pedigree))
            }
            (None, None, Some(opened)) if moves_on => {
                commit_opened(&mut committer, &opened, &pedigree).await?;
                None
            }
            (None, Some(old), Some(opened)) if opened.bytes != old.bytes && source.has_unfinished_snapshot(&opened) => {
                commit_opened(&mut committer, &opened, &pedigree).await?;
                None
            }
            (None, ..) => None,
        };
        Ok(Box::new(Stamped { first, stream, pedigree }))
    }

    /// Nothing, unless a mutant releases before the last commit.
    fn before_last_commit(&self, opening_state: &Arc<OpeningState>) -> BeforeLastCommit<'_> {
        let tenure = Arc::clone(&opening_state.tenure);
        let breaks = opening_state.hooks.breaks(Mutant::ReleaseBeforeCommit);
        Box::pin(async move {
            if breaks {
                let cx = tenure.cx().within(self.instance.settings.lease.call_timeout);
                let _ = cx.run(self.instance.leases.release(&cx, tenure.grant())).await;
            }
        })
    }
}

/// Commits where a stream was opened, before anything is delivered. Otherwise an instance that opens it before the first commit would start at
/// another "now", or with a later snapshot, which does not show that rows were deleted that the first one delivered.
async fn commit_opened(committer: &mut Committer, opened: &Position, pedigree: &Pedigree) -> Result<(), Failure> {
    let draft = Draft { position: Some(opened.clone()), pedigree: Some(pedigree.clone()), ..Draft::default() };
    committer.commit(draft, Reason::Progress, None).await
}

fn missing_target(stream: &str, target: &SinkTarget) -> Error {
    let name = &target.name;
    Error::corrupt(format!("{name} is missing, although stream {stream:?} has written to it")).remedy(format!(
        "restore it and resume the stream, or begin anew (`watchkeeper checkpoint reset {stream}`, which delivers everything that the \
         source still has)"
    ))
}

fn requests_of(control: &Control) -> Vec<DeadLetterRequest> {
    let replay = control.replay.as_ref().map(|request| DeadLetterRequest {
        id: request.id,
        sink: request.sink.clone(),
        numbers: request.numbers.clone(),
        what: Resolution::Replayed,
    });
    let purge = control.purge.as_ref().map(|request| DeadLetterRequest {
        id: request.id,
        sink: request.sink.clone(),
        numbers: request.numbers.clone(),
        what: Resolution::Purged,
    });
    replay.into_iter().chain(purge).collect()
}

/// The change that tells every sink of a gap. It is under the position from which reading goes on, so that
/// the commit that passes it passes the gap; where the source does not tell that, under the last good
/// position. Either way with the pedigree of the log that the position belongs to: beside that of another one the gap would be found
/// again.
fn gap_change(
    cause: &str,
    (old, old_pedigree): (Option<Position>, Option<&Pedigree>),
    (opened, pedigree): (Option<Position>, &Pedigree),
) -> Option<Batch> {
    let pedigree = if opened.is_some() { Some(pedigree) } else { old_pedigree };
    let mut batch = gap_batch(&opened.or(old)?, cause);
    batch.pedigree = pedigree.cloned();
    Some(batch)
}

/// A change without a key that tells every sink of a gap. Its position is the last one that was good. The
/// body is ours and not the source's, so it is JSON whatever the source speaks: sinks decode it.
fn gap_batch(position: &Position, cause: &str) -> Batch {
    let mut builder = BatchBuilder::new("gap".into(), Arc::new(JsonPayload));
    let body = serde_json::json!({ "cause": cause }).to_string();
    let namespace = builder.namespace("");
    builder.push(RowParts {
        operation: Operation::Gap,
        namespace,
        half: 0,
        committable: true,
        key: None,
        position: &position.bytes,
        body: body.as_bytes(),
        time: position.time.unwrap_or(SourceTime(0)),
        version: Version::default(),
    });
    builder.finish(Position { bytes: Bytes::clone(&position.bytes), time: position.time })
}

fn apart(sink: &str) -> Error {
    let cause = format!("sink {sink:?} is transactional, but the checkpoint is not kept in its database");
    Error::config(cause).remedy("keep the stream's checkpoint in the database of its one transactional sink")
}

/// The open source: it may first give a batch of ours, and every batch of its own is stamped with the
/// pedigree of the log that was opened, so that no position is stored beside another log's.
struct Stamped {
    first: Option<Batch>,
    stream: Box<dyn ChangeStream>,
    pedigree: Pedigree,
}

#[async_trait::async_trait]
impl ChangeStream for Stamped {
    fn position(&self) -> Option<Position> {
        self.stream.position()
    }

    fn stage(&self) -> Option<Stage> {
        self.stream.stage()
    }

    async fn next_batch(&mut self, cx: &watchkeeper_core::Cx, limits: watchkeeper_core::Limits) -> Result<Batch> {
        if let Some(batch) = self.first.take() {
            return Ok(batch);
        }
        let mut batch = self.stream.next_batch(cx, limits).await?;
        batch.pedigree.get_or_insert_with(|| self.pedigree.clone());
        Ok(batch)
    }

    async fn acknowledge(&mut self, cx: &watchkeeper_core::Cx, position: &Position) -> Result<()> {
        self.stream.acknowledge(cx, position).await
    }

    fn holds_back(&self) -> bool {
        self.stream.holds_back()
    }

    async fn window(&mut self, cx: &watchkeeper_core::Cx) -> Result<watchkeeper_core::Window> {
        self.stream.window(cx).await
    }

    async fn close(self: Box<Self>, cx: &watchkeeper_core::Cx) -> Result<()> {
        self.stream.close(cx).await
    }
}
