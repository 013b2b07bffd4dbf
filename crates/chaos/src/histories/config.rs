//! The configuration file of a history's instance.

use std::path::Path;

use watchkeeper_testkit::histories::{Plan, Sink, Source, Start};

/// Where everything is.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    /// The folder of the history.
    pub(super) folder: std::path::PathBuf,
    /// The addresses of source and target.
    pub(super) source: String,
    pub(super) target: String,
}

/// The name of a column or field by which rows are told apart.
pub(super) fn key_name(source: Source) -> &'static str {
    if source == Source::Mongodb { "_id" } else { "id" }
}

/// The name of the target's table or collection. Typed rows have the name of their source.
pub(super) const TARGET: &str = "target";

pub(super) fn text(plan: &Plan, places: &Paths) -> String {
    let Paths { folder, .. } = places;
    let state = folder.join("state.db");
    let start = match plan.start {
        Start::Oldest => "oldest",
        Start::Snapshot => "snapshot",
    };
    let (state, source, sink) = (state.display(), source(plan, places), sink(plan, places, folder));
    let Plan { concurrency, batch_rows, .. } = plan;
    format!(
        "[group]
name = \"histories\"
store = \"sqlite:{state}\"
lease = \"1s\"
heartbeat_every = \"1s\"

[[stream]]
name = \"history\"
start = \"{start}\"
concurrency = {concurrency}
checkpoint = {{ every = \"20ms\" }}
batch = {{ rows = {batch_rows} }}

[stream.source]
{source}

[[stream.sink]]
{sink}
"
    )
}

fn source(plan: &Plan, places: &Paths) -> String {
    let names: Vec<_> = plan.tables.iter().map(|table| format!("\"{}\"", table.name)).collect();
    let (url, names) = (&places.source, names.join(", "));
    match plan.source {
        Source::Sqlite | Source::ChangeLog => format!("url = \"{url}\"\ntables = [{names}]"),
        Source::Replication => {
            // A server has its slots for all databases.
            let slot = url.rsplit('/').next().unwrap_or_default();
            format!(
                "url = \"{url}\"\nmode = \"replication\"\ntables = [{names}]\nslot = \"{slot}\"\npublication = \"{slot}\""
            )
        }
        Source::Mongodb => {
            format!("url = \"{url}\"\ncollection = [{names}]\nwait = true\nfull_document = \"updateLookup\"")
        }
    }
}

fn sink(plan: &Plan, places: &Paths, folder: &Path) -> String {
    let url = &places.target;
    let table = |mode: &str| format!("url = \"{url}\"\nmode = \"{mode}\"\ntable = \"{TARGET}\"");
    let missing = if plan.keeps_missing { "keep" } else { "refuse" };
    let typed = |mode: &str| format!("url = \"{url}\"\nmode = \"{mode}\"\ntable = \"t0\"\nmissing = \"{missing}\"");
    let collection = |mode: &str| {
        // Every collection has a copy of its own.
        let name = if plan.source == Source::Mongodb { "copy_{collection}" } else { TARGET };
        format!("url = \"{url}\"\nmode = \"{mode}\"\ncollection = \"{name}\"")
    };
    match plan.sink {
        Sink::File => {
            format!("type = \"file\"\nfolder = \"{}\"\nprefix = \"{TARGET}\"", folder.join("lines").display())
        }
        Sink::SqliteEvents | Sink::PostgresEvents => table("events"),
        Sink::SqliteMirror | Sink::PostgresMirror => table("mirror"),
        Sink::PostgresVersioned => table("versioned"),
        Sink::PostgresRows => typed("rows"),
        Sink::PostgresVersionedRows => typed("versioned_rows"),
        Sink::MongodbEvents => format!("url = \"{url}\"\nmode = \"events\"\ncollection = \"{TARGET}\""),
        Sink::MongodbMirror => collection("mirror"),
        Sink::MongodbVersioned => collection("versioned"),
    }
}
