//! Change streams as a source.

mod check;
mod event;
mod fallback;
mod hidden;
mod history_proof;
mod id;
mod join;
mod open;
mod oplog;
mod order;
mod pedigree;
mod pipeline;
mod preflight;
mod read;
mod reduce;
mod resume;
mod resume_strategy;
mod snapshot;
mod stall;
mod view;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mongodb::bson::{Document, Timestamp, doc};
use watchkeeper_core::{
    ChangeStream, Cx, Error, ErrorKind, Finding, OperationTime, Payload, Pedigree, Position, Result, Source,
    SourceTime, Stage, StartAt,
};

pub(crate) use check::mentions;
pub use fallback::FallbackEndpoints;
pub(crate) use fallback::share;
pub(crate) use hidden::{FullDocument, require_all_changes};
pub(crate) use pedigree::cluster_of;
pub use view::{Before, Large, Scope, Shown, View};

use crate::client::Client;
use crate::error::{CallPurpose, Class};
use crate::payload::BsonPayload;
use crate::position::Token;
use history_proof::Searches;
use open::{Opened, Refusals, Start};
use read::Reader;
use snapshot::Snapshot;
use stall::Unanswered;

/// The changes that a cluster, a database or collections tell of.
#[derive(Debug, Clone)]
pub struct Feed {
    client: Client,
    view: Arc<View>,
    /// What the server applies behind `$changeStream`.
    stages: Arc<[Document]>,
    /// Whether something is kept aside in the events.
    aside: bool,
    /// Whether it is read by those who look on, and never halts at an event.
    is_for_observers: bool,
    /// The proof that came with the position that was verified last, so that a quiet stream hands it on.
    proof: Arc<Mutex<Option<String>>>,
    /// The collection that was identified last, by its UUID: a stream that is opened afterwards is of the same one.
    identified: Arc<Mutex<Option<String>>>,
    /// How often cursors at the position that was opened last never answered.
    unanswered: Arc<Unanswered>,
    /// A search of the oplog that no opening has waited for to its end.
    searches: Arc<Searches>,
    /// The openings that were refused at the position that was opened last.
    refusals: Arc<Refusals>,
}

impl Feed {
    /// What `view` shows of the client's cluster. Nothing is asked of the server yet.
    pub fn new(client: Client, view: View) -> Self {
        let (stages, aside) = pipeline::stages(&view);
        Self {
            client,
            view: Arc::new(view),
            stages: stages.into(),
            aside,
            is_for_observers: false,
            proof: Arc::default(),
            identified: Arc::default(),
            unanswered: Arc::default(),
            searches: Arc::default(),
            refusals: Arc::default(),
        }
    }

    /// The same feed for those who look on: they are shown an event that is too large with what fits, also where the stream halts
    /// at it, so that such an event can be passed over.
    fn for_observers(&self) -> Self {
        Self { is_for_observers: true, ..self.clone() }
    }

    /// What is watched, and how it is shown.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Refuses collections that are not there, unless they are waited for, since it may be a slip in a name; and those that have
    /// no changes of their own.
    async fn named_rightly(&self, cx: &Cx) -> Result<()> {
        let Scope::Collections(names) = &self.view.scope else { return Ok(()) };
        for name in names {
            match self.kind_of(cx, name).await? {
                // Of several the server would just send nothing. One alone it refuses by itself.
                Some(kind) if kind.is_unwatchable() => return Err(self.unwatchable(name, kind)),
                None if !self.view.wait => {
                    // Whoever may not read it does not see it either.
                    self.try_open(cx).await?;
                    return Err(Error::config(format!("{}: there is no collection {name:?}", self.client.place()))
                        .remedy("create it, correct its name, or write wait = true"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What kind of collection has this name, if this user may read one; no further privilege is needed.
    async fn kind_of(&self, cx: &Cx, name: &str) -> Result<Option<CollectionKind>> {
        let list = doc! {
            "listCollections": 1, "nameOnly": true, "authorizedCollections": true, "filter": { "name": name },
        };
        let found = self.first(cx, self.client.config().database(), list).await?;
        Ok(found.as_ref().map(CollectionKind::of))
    }

    fn unwatchable(&self, name: &str, kind: CollectionKind) -> Error {
        let (cause, remedy) = Class::Unwatchable.words(CallPurpose::Watching);
        Error::config(format!("{}: {name} is {}: {cause}", self.client.place(), kind.name())).remedy(remedy)
    }

    /// The earliest time at which a stream can begin: one tick after the oldest entry, since servers take no other's word
    /// that nothing before it is missing.
    async fn oldest_time(&self, cx: &Cx) -> Result<Timestamp> {
        let oldest = self.oldest(cx).await?.and_then(|entry| entry.get_timestamp("ts").ok());
        let next = |at: Timestamp| Timestamp { increment: at.increment.saturating_add(1), ..at };
        oldest.map(next).ok_or_else(|| {
            Error::config(format!(
                "{}: this user may not read the oplog, so the oldest change is not known",
                self.client.place()
            ))
            .remedy("grant the role read on the database local, or begin at a time")
        })
    }

    /// Opens with the oldest change, which may leave the oplog while it is asked for.
    async fn open_oldest(&self, cx: &Cx) -> Result<(Opened, Token)> {
        for _ in 0..OLDEST_TRIES {
            match self.open_at(cx, Start::At(self.oldest_time(cx).await?)).await {
                Err(error) if error.kind() == ErrorKind::PositionLost => {}
                opened => return opened,
            }
        }
        Err(Error::unavailable("the oplog rolls over faster than it can be opened").remedy("enlarge the oplog"))
    }

    /// Refuses to begin at a time that is yet to come: the server would take it, and pass over what happens until then. Its own
    /// clock is asked, since the newest change may be older than this by any length of quiet.
    pub(super) async fn not_yet_to_come(&self, cx: &Cx, seconds: u64) -> Result<()> {
        let hello = self.ask(cx, "admin", doc! { "hello": 1 }).await?;
        let Ok(now) = hello.get_datetime("localTime") else { return Ok(()) };
        let ahead = seconds.saturating_sub(u64::try_from(now.timestamp_millis()).unwrap_or(0) / 1_000);
        if ahead == 0 {
            return Ok(());
        }
        let cause = format!("{}: the time to start at is {ahead}s in the future of this cluster", self.client.place());
        Err(Error::config(cause).remedy("start at a time that has been, or with \"now\""))
    }

    async fn begin(&self, cx: &Cx, at: StartAt) -> Result<(Opened, Token)> {
        if let StartAt::After(position) = at {
            let token = Token::decode(&position)?;
            self.not_of_the_future(cx, &token).await?;
            return Ok((self.open_after(cx, token.clone()).await?, token));
        }
        self.named_rightly(cx).await?;
        match at {
            StartAt::Now | StartAt::After(_) => self.open_at(cx, Start::Now).await,
            StartAt::Oldest => self.open_oldest(cx).await,
            StartAt::Time(time) => {
                self.not_yet_to_come(cx, time.0 / 1_000).await?;
                self.open_at(cx, Start::At(timestamp(time))).await
            }
            StartAt::Operation(time) => {
                self.not_yet_to_come(cx, time.seconds.into()).await?;
                self.open_at(cx, Start::At(operation(time))).await
            }
            StartAt::Snapshot => self.open_at(cx, Start::Now).await,
            unknown => Err(unknown.unknown_to("a change stream")),
        }
    }
}

/// What a name in a list of collections may stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CollectionKind {
    Plain,
    View,
    TimeSeries,
}

impl CollectionKind {
    /// By an entry of `listCollections`.
    fn of(entry: &Document) -> Self {
        match entry.get_str("type") {
            Ok("view") => Self::View,
            Ok("timeseries") => Self::TimeSeries,
            _ => Self::Plain,
        }
    }

    /// Whether it has no changes of its own.
    fn is_unwatchable(self) -> bool {
        self != Self::Plain
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "a collection",
            Self::View => "a view",
            Self::TimeSeries => "a time series",
        }
    }
}

/// How often the oldest change is asked for, when it is gone before it was reached.
const OLDEST_TRIES: usize = 5;

/// The first cluster time of the second that a time lies in.
fn timestamp(time: SourceTime) -> Timestamp {
    Timestamp { time: u32::try_from(time.0 / 1_000).unwrap_or(u32::MAX), increment: 1 }
}

/// An operation time as the servers have it.
fn operation(OperationTime { seconds, increment }: OperationTime) -> Timestamp {
    Timestamp { time: seconds, increment }
}

#[async_trait]
impl Source for Feed {
    async fn resolve_names(&self, _cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        crate::backend::resolve_names(self.client.config(), &self.view, names).map_err(|unwatched| {
            let watched = unwatched.watched.join(", ");
            Error::config(format!("the stream does not watch {}", unwatched.name))
                .remedy(format!("it watches: {watched}"))
        })
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.findings(cx).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let lineage = self.lineage(cx).await?;
        self.note_identified(&lineage);
        Ok(lineage.to_pedigree())
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        self.recognise(cx, &Token::decode(position)?, pedigree).await
    }

    async fn preflight(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        self.vetted(cx, start, pedigree).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        snapshot::compare(a, b)
    }

    fn stage(&self, position: &Position) -> Option<Stage> {
        snapshot::stage(&self.view, position)
    }

    fn require_all_changes(&self) -> Result<()> {
        require_all_changes(&self.view)
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        snapshot::is_unfinished(&self.view, position)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(BsonPayload::showing(&self.view))
    }

    async fn open(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        pipeline::keeps_positions(&self.view.pipeline)?;
        let lineage = self.lineage(cx).await?;
        let origin: Arc<str> = format!("mongodb-{}", lineage.cluster.as_deref().unwrap_or("unknown")).into();
        let snapshot = match &at {
            StartAt::Snapshot => Some(Snapshot::new(self, cx, None).await?),
            StartAt::After(position) => match Token::decode_with_progress(position)? {
                (_, Some(progress)) => Some(Snapshot::new(self, cx, Some(progress)).await?),
                _ => None,
            },
            _ => None,
        };
        let feed = if snapshot.is_some() { self.impatient() } else { self.clone() };
        let goes_on = matches!(at, StartAt::After(_));
        let (opened, token) = feed.begin(cx, at).await?;
        if !goes_on {
            self.require_identified(cx).await?;
        }
        Ok(Box::new(Reader::new(feed, opened, origin, token, lineage, cx.now()).joined_to(snapshot)))
    }

    async fn peek(&self, cx: &Cx, at: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.for_observers().open(cx, at).await
    }
}
