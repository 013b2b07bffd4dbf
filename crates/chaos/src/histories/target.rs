//! What a target holds.

use std::path::Path;

use futures_util::TryStreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use watchkeeper_mongodb::mongodb::bson::{Bson, Document, doc};
use watchkeeper_mongodb::mongodb::{self, Database};
use watchkeeper_postgres::tokio_postgres;
use watchkeeper_sqlite::rusqlite::{self, Connection};
use watchkeeper_testkit::histories::{Column, Plan, SchemaChange, Sink, Source};

use super::Trouble;
use super::config::{Paths, TARGET, key_name};
use super::events::{Event, Rows, replay};
use super::extjson::{self, relaxed};
use super::literal::Dialect;
use super::source::{connect_mongodb, connect_postgres, postgres_database};

/// The form of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// JSON.
    Json,
    /// Documents with all their types, as the driver shows them.
    Bson,
}

/// What a target holds.
#[derive(Debug, Clone)]
pub(super) struct Content {
    pub(super) form: Form,
    pub(super) rows: Rows,
    /// All events, where it keeps them.
    pub(super) events: Vec<Event>,
}

impl Content {
    fn of_rows(form: Form, rows: Rows) -> Self {
        Self { form, rows, events: Vec::new() }
    }

    /// How much it is: of events all, of rows those that are there.
    pub(super) fn size(&self) -> usize {
        self.events.len() + self.rows.values().map(Vec::len).sum::<usize>()
    }

    fn of_events(events: Vec<Event>) -> Self {
        Self { form: Form::Json, rows: replay(&events), events }
    }
}

fn to_trouble(error: impl std::fmt::Display) -> Trouble {
    format!("the target: {error}")
}

/// Makes what a sink does not make itself.
pub(super) async fn create(plan: &Plan, places: &Paths) -> Result<(), Trouble> {
    if plan.sink == Sink::File {
        return std::fs::create_dir_all(places.folder.join("lines")).map_err(to_trouble);
    }
    if !plan.sink.is_postgres() {
        return Ok(());
    }
    postgres_database(&places.target).await.map_err(to_trouble)?;
    if plan.sink.has_typed_columns() {
        let create = Dialect::Postgres.create(&plan.tables[0], key_name(plan.source));
        connect_postgres(&places.target).await.map_err(to_trouble)?.batch_execute(&create).await.map_err(to_trouble)?;
    }
    Ok(())
}

/// Changes typed columns before the source's are changed, as the guide advises.
pub(super) async fn prepare_for(plan: &Plan, places: &Paths, change: &SchemaChange) -> Result<(), Trouble> {
    if !plan.sink.has_typed_columns() {
        return Ok(());
    }
    let statement = match change {
        SchemaChange::AddColumn { table, column: Column { name, kind } } => {
            format!("ALTER TABLE \"{table}\" ADD \"{name}\" {}", Dialect::Postgres.name(*kind))
        }
        SchemaChange::DropColumn { table, column } => format!("ALTER TABLE \"{table}\" DROP \"{column}\""),
        _ => return Ok(()),
    };
    connect_postgres(&places.target).await.map_err(to_trouble)?.batch_execute(&statement).await.map_err(to_trouble)
}

/// Reads all of it.
pub(super) async fn read(plan: &Plan, places: &Paths) -> Result<Content, Trouble> {
    match plan.sink {
        Sink::File => lines(plan, &places.folder.join("lines")).map(Content::of_events),
        Sink::SqliteEvents | Sink::SqliteMirror => sqlite(plan, &places.folder.join("copy.db")),
        Sink::MongodbEvents | Sink::MongodbMirror | Sink::MongodbVersioned => mongodb(plan, places).await,
        _ => postgres(plan, places).await,
    }
}

/// A line of a file about a row.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "operationType")]
    operation: String,
    ns: String,
    document: Option<Box<RawValue>>,
}

fn lines(plan: &Plan, folder: &Path) -> Result<Vec<Event>, Trouble> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).map_err(to_trouble)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
    paths.sort();
    let mut events = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).map_err(to_trouble)?;
        // A line that is being written has no end yet.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            events.push(match plan.source {
                Source::Mongodb => Event::of_document(line)?,
                _ => {
                    let line: Line = serde_json::from_str(line).map_err(to_trouble)?;
                    let document = line.document.as_ref().map_or("", |document| document.get());
                    Event::of_row(&line.ns, &line.operation, document)?
                }
            });
        }
    }
    Ok(events)
}

fn sqlite(plan: &Plan, path: &Path) -> Result<Content, Trouble> {
    let events = plan.sink == Sink::SqliteEvents;
    let sql = match events {
        true => format!("SELECT namespace, operation, body FROM {TARGET} ORDER BY number"),
        false => format!("SELECT namespace, 'insert', body FROM {TARGET}"),
    };
    let read = || -> rusqlite::Result<Vec<(String, String, String)>> {
        let connection = Connection::open(path)?;
        let mut statement = connection.prepare(&sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        rows.collect()
    };
    let found = match read() {
        Ok(found) => found,
        // The sink has not made it yet.
        Err(error) if error.to_string().contains("no such table") => Vec::new(),
        Err(error) if error.to_string().contains("locked") => Vec::new(),
        Err(error) => return Err(to_trouble(error)),
    };
    let event = |(namespace, operation, body): &(String, String, String)| match plan.source {
        Source::Mongodb => Event::of_document(body),
        _ => Event::of_row(namespace, operation, body),
    };
    let found = found.iter().map(event).collect::<Result<Vec<_>, _>>()?;
    Ok(if events { Content::of_events(found) } else { Content::of_rows(Form::Json, by_table(found)) })
}

/// The rows of events, of which there is one for each.
fn by_table(events: Vec<Event>) -> Rows {
    let mut rows = Rows::new();
    for event in events {
        rows.entry(event.table).or_default().extend(event.row);
    }
    rows
}

async fn postgres(plan: &Plan, places: &Paths) -> Result<Content, Trouble> {
    let client = connect_postgres(&places.target).await.map_err(to_trouble)?;
    let sql = match plan.sink {
        Sink::PostgresEvents => format!("SELECT namespace, operation, event::text FROM {TARGET} ORDER BY number"),
        Sink::PostgresRows | Sink::PostgresVersionedRows => {
            "SELECT 't0', 'insert', to_jsonb(t)::text FROM t0 t".to_owned()
        }
        _ => format!("SELECT namespace, 'insert', document::text FROM {TARGET} WHERE deleted IS NULL"),
    };
    let rows = match client.query(&sql, &[]).await {
        Ok(rows) => rows,
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::UNDEFINED_TABLE) => Vec::new(),
        Err(error) => return Err(to_trouble(error)),
    };
    let found: Vec<(String, String, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    if plan.sink == Sink::PostgresEvents {
        let event = |(namespace, operation, body): &(String, String, Option<String>)| {
            let body = body.as_deref().unwrap_or_default();
            match plan.source {
                Source::Mongodb => Event::of_document(body),
                _ => Event::of_row(namespace, operation, body),
            }
        };
        return found.iter().map(event).collect::<Result<_, _>>().map(Content::of_events);
    }
    let mut rows = Rows::new();
    for (namespace, _, row) in found {
        let table = namespace.rsplit('.').next().unwrap_or_default().to_owned();
        rows.entry(table).or_default().extend(row);
    }
    Ok(Content::of_rows(Form::Json, rows))
}

/// All documents of a collection, in the order of their keys.
pub(super) async fn all(
    database: &Database,
    collection: &str,
    filter: Document,
) -> Result<Vec<Document>, mongodb::error::Error> {
    let collection = database.collection::<Document>(collection);
    collection.find(filter).sort(doc! { "_id": 1 }).await?.try_collect().await
}

async fn mongodb(plan: &Plan, places: &Paths) -> Result<Content, Trouble> {
    let (_client, database) = connect_mongodb(&places.target).await.map_err(to_trouble)?;
    if plan.sink == Sink::MongodbEvents {
        let documents = all(&database, TARGET, doc! {}).await.map_err(to_trouble)?;
        let events = documents.into_iter().map(|document| stored_document(plan, document));
        return events.collect::<Result<_, _>>().map(Content::of_events);
    }
    let present = doc! { "_watchkeeper.deleted": { "$exists": false } };
    let mut rows = Rows::new();
    if plan.source == Source::Mongodb {
        for table in &plan.tables {
            let copy = format!("copy_{}", table.name);
            let documents = all(&database, &copy, present.clone()).await.map_err(to_trouble)?;
            let shown = documents.into_iter().map(|mut document| {
                document.remove("_watchkeeper");
                format!("{document:?}")
            });
            rows.insert(table.name.clone(), shown.collect());
        }
        return Ok(Content::of_rows(Form::Bson, rows));
    }
    let documents = all(&database, TARGET, present).await.map_err(to_trouble)?;
    let shown = documents.into_iter().map(|mut document| {
        document.remove("_watchkeeper");
        document.remove("_id");
        relaxed(&document).to_string()
    });
    rows.insert(plan.tables[0].name.clone(), shown.collect());
    Ok(Content::of_rows(Form::Json, rows))
}

fn stored_document(plan: &Plan, mut document: Document) -> Result<Event, Trouble> {
    let event = extjson::of(&document.remove("event").unwrap_or(Bson::Null)).to_string();
    match plan.source {
        Source::Mongodb => Event::of_document(&event),
        _ => {
            let text = |name: &str| document.get_str(name).unwrap_or_default().to_owned();
            let event = if event == "null" { String::new() } else { event };
            Event::of_row(&text("namespace"), &text("operation"), &event)
        }
    }
}
