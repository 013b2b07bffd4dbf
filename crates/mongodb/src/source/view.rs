//! What of a cluster is watched, and how it is shown.

use std::time::Duration;

use mongodb::bson::Document;
use mongodb::options::{ReadPreference, SelectionCriteria};
use watchkeeper_core::{Options, Result};

use crate::client::STORED_IN;

/// How much of a cluster is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All databases.
    Cluster,
    /// All collections of the client's database.
    Database,
    /// These collections of the client's database. One is watched by itself; of several the server sends only theirs.
    Collections(Vec<String>),
}

/// Which document an event of an update shows beside the change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shown {
    /// None, but for inserts and replacements.
    #[default]
    Default,
    /// The document as it is when the event is read. It may be newer than the event, or gone.
    UpdateLookup,
    /// The stored image, if there is one.
    WhenAvailable,
    /// The stored image; an event without one says so in its field `degraded`.
    Required,
}

/// Which stored image from before the change an event shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Before {
    /// None.
    #[default]
    Off,
    /// The stored image, if there is one.
    WhenAvailable,
    /// The stored image; an event without one says so in its field `degraded`.
    Required,
}

/// What becomes of an event above 16 MiB, where the server cannot split it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Large {
    /// It is delivered in its place with as much as fits: the image from before is left out first, then the description of
    /// the update, then everything but what names the change. What was left out stands in its field `degraded`.
    #[default]
    Degrade,
    /// The stream halts until a person looks.
    Halt,
}

/// What is watched, and how it is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// How much is watched.
    pub scope: Scope,
    /// Stages that the server applies to every event. They may drop any field: what Watchkeeper needs is kept aside.
    pub pipeline: Vec<Document>,
    /// The document beside an update.
    pub full_document: Shown,
    /// The document from before the change.
    pub full_document_before_change: Before,
    /// Whether to tell of indexes, new collections and the like, too.
    pub show_expanded_events: bool,
    /// How texts are compared in the pipeline.
    pub collation: Option<Document>,
    /// At most so many events in one answer of the server.
    pub batch_size: u32,
    /// How long the server holds back an answer when nothing happens.
    pub max_await_time: Duration,
    /// Shown in the server's logs and `currentOp`.
    pub comment: Option<String>,
    /// Which members to read from.
    pub read_preference: Option<SelectionCriteria>,
    /// Whether a collection may be missing when a stream begins.
    pub wait: bool,
    /// What becomes of events that are too large. Servers that can split them do; then they are joined again here.
    pub large_events: Large,
}

impl View {
    /// This scope, shown as it is.
    pub fn of(scope: Scope) -> Self {
        Self {
            scope,
            pipeline: Vec::new(),
            full_document: Shown::default(),
            full_document_before_change: Before::default(),
            show_expanded_events: false,
            collation: None,
            batch_size: 2_000,
            max_await_time: Duration::from_secs(1),
            comment: None,
            read_preference: None,
            wait: false,
            large_events: Large::default(),
        }
    }

    /// One collection.
    pub fn collection(name: impl Into<String>) -> Self {
        Self::of(Scope::Collections(vec![name.into()]))
    }

    /// The settings of a source, but for those of its client.
    ///
    /// # Errors
    /// `Config` with the place where the setting was written.
    pub fn from_options(options: &mut Options) -> Result<Self> {
        let mut view = Self::of(scope(options)?);
        view.pipeline = pipeline(options)?;
        let shown = [
            ("default", Shown::Default),
            ("updateLookup", Shown::UpdateLookup),
            ("whenAvailable", Shown::WhenAvailable),
            ("required", Shown::Required),
        ];
        view.full_document = options.choice("full_document", &shown)?.unwrap_or_default();
        let before = [("off", Before::Off), ("whenAvailable", Before::WhenAvailable), ("required", Before::Required)];
        view.full_document_before_change = options.choice("full_document_before_change", &before)?.unwrap_or_default();
        view.show_expanded_events = options.flag("show_expanded_events")?.unwrap_or(false);
        if let Some(json) = options.json("collation") {
            view.collation = stage(json);
            if view.collation.is_none() {
                let error = options.wrong("collation", "this is not what MongoDB takes");
                options.report(error.remedy(AS_MONGODB_TAKES_IT))?;
            }
        }
        if let Some(count) = options.count("batch_size")? {
            match u32::try_from(count).ok().filter(|count| (1..=100_000).contains(count)) {
                Some(count) => view.batch_size = count,
                None => {
                    let error = options.wrong("batch_size", format!("{count} is not between 1 and 100000"));
                    options.report(error.remedy("leave it at 2000"))?;
                }
            }
        }
        view.max_await_time = options.duration("max_await_time")?.unwrap_or(view.max_await_time);
        view.comment = options.text("comment")?;
        view.read_preference =
            options.choice("read_preference", &preferences())?.map(SelectionCriteria::ReadPreference);
        // Change streams have no other; it is accepted for those who write it down.
        options.choice("read_concern", &[("majority", ())])?;
        view.wait = options.flag("wait")?.unwrap_or(false);
        let large = [("degrade", Large::Degrade), ("halt", Large::Halt)];
        view.large_events = options.choice("large_events", &large)?.unwrap_or_default();
        Ok(view)
    }
}

fn preferences() -> [(&'static str, ReadPreference); 5] {
    let options = None;
    [
        ("primary", ReadPreference::Primary),
        ("primaryPreferred", ReadPreference::PrimaryPreferred { options: options.clone() }),
        ("secondary", ReadPreference::Secondary { options: options.clone() }),
        ("secondaryPreferred", ReadPreference::SecondaryPreferred { options: options.clone() }),
        ("nearest", ReadPreference::Nearest { options }),
    ]
}

fn scope(options: &mut Options) -> Result<Scope> {
    let collections = options.texts("collection")?;
    let own = |name: &&String| STORED_IN.contains(&name.as_str());
    if let Some(name) = collections.iter().flatten().find(own) {
        // Every commit would be a change, whose delivery is committed again.
        return Err(options
            .wrong("collection", format!("{name} is a collection of Watchkeeper's own, which is not watched"))
            .remedy("name the collections of your application"));
    }
    let named = options.choice("scope", &[("database", Scope::Database), ("cluster", Scope::Cluster)])?;
    match (collections, named) {
        (Some(names), None) if !names.is_empty() => Ok(Scope::Collections(names)),
        (None, Some(scope)) => Ok(scope),
        (Some(_), _) => Err(options.wrong("collection", "this names no collection, or a scope is named beside it")),
        (None, None) => Err(options.missing("collection", "\"orders\"")),
    }
    .map_err(|error| match error.advice() {
        Some(_) => error,
        None => error.remedy("name collections, or leave them out and write scope = \"database\" or \"cluster\""),
    })
}

fn pipeline(options: &mut Options) -> Result<Vec<Document>> {
    let text = options.peek_text("pipeline").map(str::to_owned);
    let written = options.json("pipeline");
    let wrong = |cause: String| options.wrong("pipeline", cause).remedy(AS_MONGODB_TAKES_IT);
    let stages = match written {
        None => return Ok(Vec::new()),
        Some(serde_json::Value::String(text)) => {
            serde_json::from_str(&text).map_err(|error| wrong(format!("this is not JSON: {error}")).caused_by(error))?
        }
        Some(json) => json,
    };
    let serde_json::Value::Array(stages) = stages else { return Err(wrong("this is no list of stages".to_owned())) };
    let numbered = (1..).zip(stages);
    let stages = numbered.map(|(at, json)| stage(json).ok_or_else(|| wrong(format!("stage {at} is no document"))));
    let stages = stages.collect::<Result<Vec<_>>>()?;
    // Read again from the text, since documents with their fields in another order are not equal to a server: a $match on
    // {"db": …, "coll": …} would match nothing.
    Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(stages))
}

/// A document of (extended) JSON.
fn stage(json: serde_json::Value) -> Option<Document> {
    serde_json::from_value(json).ok()
}

const AS_MONGODB_TAKES_IT: &str =
    "write pipeline = '[{\"$match\": {\"operationType\": \"insert\"}}]', and collation = { locale = \"de\" }";
