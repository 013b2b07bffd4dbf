//! Handlers as a sink.
//!
//! Rows are handed to their handlers in order. All handlers of a row are run, and none of them can
//! stop the others of that row; what they ask for is then weighed: `Fatal` before `Retry` before `Panic` before
//! `Reject`. While a row is retried, only the handlers that asked for it run again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, Change, Cx, Error, Fault, FaultKind, Finding, FlushRejection, Grade, OpenedSink, Operation, Result,
    Severity, Sink, SinkContext, SinkProfile, SinkWriter, Source, Written,
};

use super::handler::{Handler, HandlerContext, HandlerError, call};
use super::routes::{Matched, Routes};

/// What is declared of handlers, since it cannot be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerSettings {
    /// What the handlers' target does with a stale or repeated write.
    pub grade: Grade,
    /// The longest time for which something that a handler sent may still take effect.
    pub settle: Duration,
    /// Whether a handler acts on drops, renames and truncates for all keys.
    pub acts_on_barriers: bool,
}

impl Default for HandlerSettings {
    fn default() -> Self {
        Self { grade: Grade::Plain, settle: Duration::from_secs(5), acts_on_barriers: false }
    }
}

/// Runs handlers: as the sink of a stream, or directly.
///
/// ```
/// # mod watchkeeper { pub use watchkeeper_core::*; pub use watchkeeper_engine::{delivery::*, stream::SinkSpec}; }
/// use std::sync::Arc;
///
/// use watchkeeper::{Grade, HandlerSettings, ObserverExecutor, Operations, Routes, SinkSpec, handler};
///
/// # fn main() -> watchkeeper::Result<()> {
/// let prints = handler(|change| async move { Ok(println!("{}", change.json()?)) });
/// // What the handlers write may be written again without harm.
/// let settings = HandlerSettings { grade: Grade::Idempotent, ..HandlerSettings::default() };
/// let executor = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, prints)).with_settings(settings)?;
/// let sink = SinkSpec::new("handlers", Arc::new(executor.sink()));
/// assert_eq!(sink.sink.profile().grade, Grade::Idempotent);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ObserverExecutor {
    routes: Arc<Routes>,
    /// Whose changes they get, where that is known: routes are then written as people name its tables.
    source: Option<Arc<dyn Source>>,
    settings: HandlerSettings,
}

impl ObserverExecutor {
    /// An executor with the default settings.
    pub fn new(routes: Routes) -> Self {
        Self { routes: Arc::new(routes), source: None, settings: HandlerSettings::default() }
    }

    /// The same executor for the changes of `source`: the names of its routes are resolved as the source does, so that `orders` means
    /// `public.orders` or `shop.orders`.
    #[must_use]
    pub fn for_source(self, source: Arc<dyn Source>) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The same executor with other settings.
    ///
    /// # Errors
    /// `Config` when handlers are declared transactional: a handler is not given the transaction that
    /// the checkpoint is written in.
    pub fn with_settings(self, settings: HandlerSettings) -> Result<Self> {
        if settings.grade == Grade::Transactional {
            return Err(Error::config("handlers cannot be transactional")
                .remedy("declare them versioned or idempotent, or use the transactional sink of the database"));
        }
        Ok(Self { settings, ..self })
    }

    /// The handlers as a sink.
    pub fn sink(&self) -> HandlerSink {
        let mut profile = SinkProfile::new(self.settings.grade, self.settings.settle);
        profile.acts_on_barriers = self.settings.acts_on_barriers;
        profile.durable_writes = true;
        let (routes, source) = (Arc::clone(&self.routes), self.source.clone());
        HandlerSink { routes, source, resolved: Arc::default(), profile }
    }

    /// Hands one change to all its handlers, and answers with the gravest of their errors.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may have run any of the handlers.
    pub async fn execute(&self, change: Change) -> Result<(), HandlerError> {
        let matched = self.routes.lookup(change.batch().namespace(change.row()), change.operation());
        self.routes.count_delivered(change.batch(), &[change.row()]);
        let Tally { fatal, retry, only_panics, rejected, .. } =
            pass(&matched, (&change, &HandlerContext::default()), None, Ok(()), || Ok(())).await;
        let gravest = fatal.map(HandlerError::fatal).or(retry.map(|error| match only_panics {
            true => HandlerError::Panic(error.into()),
            false => HandlerError::retry(error),
        }));
        gravest.or(rejected.map(HandlerError::reject)).map_or(Ok(()), Err)
    }
}

/// The handlers of an [`ObserverExecutor`] as a sink.
#[derive(Debug, Clone)]
pub struct HandlerSink {
    routes: Arc<Routes>,
    source: Option<Arc<dyn Source>>,
    /// The routes with the names that changes have, once they were asked for.
    resolved: Arc<OnceLock<Arc<Routes>>>,
    profile: SinkProfile,
}

impl HandlerSink {
    /// The routes with the names that changes have.
    ///
    /// # Errors
    /// `Config` for a route that no change can match, and what kept the source from being asked.
    pub async fn resolve(&self, cx: &Cx) -> Result<Arc<Routes>> {
        if let Some(resolved) = self.resolved.get() {
            return Ok(Arc::clone(resolved));
        }
        let routes = match &self.source {
            None => Arc::clone(&self.routes),
            Some(source) => {
                let names = source.resolve_names(cx, self.routes.names()).await.map_err(of_route)?;
                Arc::new(self.routes.renamed(names))
            }
        };
        Ok(Arc::clone(self.resolved.get_or_init(|| routes)))
    }
}

/// The error of a name in a route.
fn of_route(error: Error) -> Error {
    let cause = format!("a handler would never be called: {}", error.message());
    let advice = error.advice().unwrap_or("correct the name of the route").to_owned();
    Error::new(error.kind(), cause).remedy(advice).caused_by(error)
}

#[async_trait]
impl Sink for HandlerSink {
    fn profile(&self) -> SinkProfile {
        self.profile.clone()
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        let warning = |what: String, remedy: &str| {
            let remedy = Some(remedy.to_owned());
            Finding { severity: Severity::Warning, what, remedy }
        };
        let literal = self.routes.patterns().filter(|pattern| pattern.has_literal_star());
        let mut findings: Vec<_> = literal
            .map(|pattern| warning(format!("the star in `{pattern}` is part of the name"), "write `*` or `prefix.*`"))
            .collect();
        if self.routes.is_empty() {
            findings.push(warning("no handler is registered: all changes are passed over".to_owned(), "register one"));
        }
        Ok(findings)
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let context = HandlerContext::of(context);
        let writer = HandlerWriter { routes: self.resolve(cx).await?, context, halfway: Mutex::default() };
        Ok(OpenedSink::Plain(Arc::new(writer)))
    }
}

#[derive(Debug)]
struct HandlerWriter {
    routes: Arc<Routes>,
    context: HandlerContext,
    /// By lane: the row that it is stuck at. Nearly always empty, and looked at once per call, so one
    /// lock serves all lanes.
    halfway: Mutex<BTreeMap<usize, PartlyHandledRow>>,
}

/// A row some of whose handlers have to run again.
#[derive(Debug)]
struct PartlyHandledRow {
    batch_seq: u64,
    row: u32,
    /// The change's id: batches that are made for a replay may share a `seq`.
    change_id: String,
    /// Which of its handlers have to run again.
    open: Vec<usize>,
    /// What those said that will never take it; they are not asked again.
    rejected: Option<Error>,
}

impl PartlyHandledRow {
    fn is(&self, batch: &Batch, row: u32) -> bool {
        self.batch_seq == batch.seq && self.row == row && self.change_id == batch.id(row).to_string()
    }
}

#[async_trait]
impl SinkWriter for HandlerWriter {
    /// Besides the contract: it returns right after a row that was rejected, so that the engine can
    /// park its key before it goes on. A dropped call forgets which handlers had already taken the row
    /// it was at, so all of them run again.
    async fn write(&self, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<Written> {
        let Some(&first) = rows.first() else { return Ok(Written::default()) };
        let mut halfway = self.recall(lane, batch, first);
        let mut lookup = Lookup::new(&self.routes, batch, first);
        let began = cx.now();
        let half_time = cx.remaining().map(|remaining| remaining / 2);
        for (done, &row) in rows.iter().enumerate() {
            // The clock is asked once for all questions: it is a good part of what a quick handler costs.
            let now = cx.now();
            let left = cx.left_at(now);
            let is_late = left.as_ref().is_ok_and(|left| *left < half_time);
            if done > 0 && (is_late || cx.progress_every().is_some_and(|every| now.since(began) >= every)) {
                // Slow handlers: what is done counts, instead of waiting for the rest or running into the time-out with it.
                self.routes.count_delivered(batch, &rows[..done]);
                return Ok(Written { done, ..Written::default() });
            }
            let change = Change::new(Arc::clone(batch), row);
            let tally =
                pass(lookup.of(row), (&change, &self.context), halfway.take(), left.map(drop), || cx.check()).await;
            if !tally.is_clean() {
                return self.stop(lane, done, &change, tally);
            }
        }
        self.routes.count_delivered(batch, rows);
        Ok(Written::all(rows))
    }

    /// Handlers are durable when they return, so there is nothing to wait for.
    async fn flush(&self, _cx: &Cx) -> Result<Vec<FlushRejection>> {
        Ok(Vec::new())
    }

    async fn close(&self, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}

impl HandlerWriter {
    fn halfway(&self) -> MutexGuard<'_, BTreeMap<usize, PartlyHandledRow>> {
        self.halfway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the row that a lane goes on with. If it is another row than the one that the
    /// lane was stuck at, the engine has given that one up, and it is forgotten.
    fn recall(&self, lane: usize, batch: &Batch, row: u32) -> Option<PartlyHandledRow> {
        self.halfway().remove(&lane).filter(|halfway| halfway.is(batch, row))
    }

    fn remember(&self, lane: usize, change: &Change, open: Vec<usize>, rejected: Option<Error>) {
        let (batch_seq, row, change_id) = (change.batch().seq, change.row(), change.id().to_string());
        self.halfway().insert(lane, PartlyHandledRow { batch_seq, row, change_id, open, rejected });
    }

    /// The answer of a write that came to a row, after `done` others, that not all handlers took.
    fn stop(&self, lane: usize, done: usize, change: &Change, tally: Tally) -> Result<Written> {
        let row = change.row();
        let Tally { open, interrupted, fatal, retry, only_panics, rejected } = tally;
        if let Some(error) = interrupted {
            self.remember(lane, change, open, rejected);
            if done > 0 {
                return Ok(Written { done, ..Written::default() });
            }
            return Err(error);
        }
        if let Some(error) = fatal {
            let stopped = Some(Fault { row, kind: FaultKind::Fatal, error });
            return Ok(Written { done, stopped, ..Written::default() });
        }
        if let Some(error) = retry {
            let kind = if only_panics { FaultKind::Panic } else { FaultKind::Retry };
            self.remember(lane, change, open, rejected);
            let stopped = Some(Fault { row, kind, error });
            return Ok(Written { done, stopped, ..Written::default() });
        }
        let rejected = rejected.map(|error| Fault { row, kind: FaultKind::Reject, error });
        Ok(Written { done: done + 1, rejected: rejected.into_iter().collect(), stopped: None })
    }
}

/// Finds the handlers of the rows of one batch. Neighbours are mostly alike, so it remembers the last answer.
struct Lookup<'a> {
    routes: &'a Routes,
    batch: &'a Batch,
    last: (u16, Operation),
    matched: Matched,
}

impl<'a> Lookup<'a> {
    fn new(routes: &'a Routes, batch: &'a Batch, row: u32) -> Self {
        let last = Self::kind(batch, row);
        Self { routes, batch, last, matched: routes.lookup(batch.namespace(row), last.1) }
    }

    fn kind(batch: &Batch, row: u32) -> (u16, Operation) {
        let row = &batch.rows()[row as usize];
        (row.namespace, row.operation)
    }

    fn of(&mut self, row: u32) -> &[Arc<dyn Handler>] {
        let kind = Self::kind(self.batch, row);
        if kind != self.last {
            self.matched = self.routes.lookup(self.batch.namespace(row), kind.1);
            self.last = kind;
        }
        &self.matched
    }
}

/// What the handlers of one row said. Empty, and so without an allocation, when all took it.
#[derive(Debug, Default)]
struct Tally {
    /// The handlers that neither took the change nor rejected it.
    open: Vec<usize>,
    /// Why not all of them could be called.
    interrupted: Option<Error>,
    fatal: Option<Error>,
    /// What those said that have to run again.
    retry: Option<Error>,
    /// Whether all of those panicked: a target that is away explains more than a panic beside it.
    only_panics: bool,
    rejected: Option<Error>,
}

impl Tally {
    fn is_clean(&self) -> bool {
        self.open.is_empty() && self.rejected.is_none()
    }

    fn note(&mut self, handler: usize, error: HandlerError) {
        if matches!(error.kind(), FaultKind::Retry | FaultKind::Panic) {
            self.only_panics = error.kind() == FaultKind::Panic && (self.only_panics || self.retry.is_none());
        }
        let place = match error.kind() {
            FaultKind::Fatal => &mut self.fatal,
            FaultKind::Retry | FaultKind::Panic => &mut self.retry,
            FaultKind::Reject => &mut self.rejected,
        };
        if error.kind() != FaultKind::Reject {
            self.open.push(handler);
        }
        let error = error.into_error();
        *place = Some(match place.take() {
            Some(first) => {
                Error::new(first.kind(), format!("{}; {}", first.message(), error.message())).caused_by(first)
            }
            None => error,
        });
    }
}

/// Calls the handlers of a row one after the other, or only those that are still open: the first if it was `checked` just now, each
/// other after `check`.
async fn pass(
    handlers: &[Arc<dyn Handler>],
    (change, context): (&Change, &HandlerContext),
    halfway: Option<PartlyHandledRow>,
    checked: Result<()>,
    check: impl Fn() -> Result<()>,
) -> Tally {
    let (only, rejected) = halfway.map_or((None, None), |halfway| (Some(halfway.open), halfway.rejected));
    let mut tally = Tally { rejected, ..Tally::default() };
    let mut checked = Some(checked);
    for (index, handler) in handlers.iter().enumerate() {
        if only.as_ref().is_some_and(|only| !only.contains(&index)) {
            continue;
        }
        if tally.interrupted.is_none() {
            tally.interrupted = checked.take().unwrap_or_else(&check).err();
        }
        if tally.interrupted.is_some() {
            tally.open.push(index);
        } else if let Err(error) = call(&**handler, change.clone(), context).await {
            tally.note(index, error);
        }
    }
    tally
}
