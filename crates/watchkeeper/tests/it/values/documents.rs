//! Targets that keep documents, and what their readers make of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use watchkeeper::Batch;
use watchkeeper::core::format::JsonWriter;
use watchkeeper::core::payload::JsonPayload;
use watchkeeper::core::{Payload, ValueRef};
use watchkeeper::mongodb::BsonPayload;
use watchkeeper::mongodb::mongodb::bson::{RawDocumentBuf, doc};
use watchkeeper::sqlite::rusqlite::Connection;
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::carry::Delivery;
use super::from_postgres::{Mode, Stored, World, connect, only};
use super::json::{Json, decode_base64};

/// A target of documents.
pub(super) enum Documents {
    /// A table of PostgreSQL: the mode of the sink, and the column of the documents.
    Postgres(&'static str, &'static str),
    /// A file of SQLite: the mode of the sink, whose table keeps bodies as JSON text.
    Sqlite(&'static str, PathBuf),
    /// A collection of MongoDB: the mode of the sink.
    MongoDb(&'static str, String),
    /// Lines in files: their format, and the folder of all of them.
    Lines(&'static str, PathBuf),
}

impl Documents {
    pub(super) fn all(folder: &Path, set: &ReplicaSet) -> Vec<Self> {
        let sqlite = |mode| Self::Sqlite(mode, folder.join(format!("{mode}.db")));
        let mongodb = |mode| Self::MongoDb(mode, set.url("values"));
        let others = [
            sqlite("events"),
            sqlite("mirror"),
            mongodb("events"),
            mongodb("mirror"),
            mongodb("audit"),
            mongodb("versioned"),
            Self::Lines("native", folder.to_owned()),
            Self::Lines("cloudevents", folder.to_owned()),
        ];
        Self::in_postgres().into_iter().chain(others).collect()
    }

    pub(super) fn in_postgres() -> Vec<Self> {
        let modes = [("events", "event"), ("mirror", "document"), ("versioned", "document")];
        modes.map(|(mode, column)| Self::Postgres(mode, column)).into()
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Postgres("events", _) => "PostgreSQL events",
            Self::Postgres("mirror", _) => "PostgreSQL mirror",
            Self::Postgres(..) => "PostgreSQL versioned",
            Self::Sqlite("events", _) => "SQLite events",
            Self::Sqlite(..) => "SQLite mirror",
            Self::MongoDb("events", _) => "MongoDB events",
            Self::MongoDb("mirror", _) => "MongoDB mirror",
            Self::MongoDb("audit", _) => "MongoDB audit",
            Self::MongoDb(..) => "MongoDB versioned",
            Self::Lines("native", _) => "lines of the format native",
            Self::Lines("cloudevents", _) => "lines of the format cloudevents",
            Self::Lines(..) => "lines of the format debezium",
        }
    }

    pub(super) fn is_mongodb(&self) -> bool {
        matches!(self, Self::MongoDb(..))
    }

    /// Delivers changes, and reads every row as JSON text. Events have it in the field `row`; `tag` keeps runs apart.
    pub(super) async fn carry(&self, url: &str, tag: &str, row: &str, batches: &[Arc<Batch>]) -> Vec<String> {
        let place = |mode: &str| format!("docs_{mode}_{tag}");
        match self {
            Self::Postgres(mode, document) => {
                let table = place(mode);
                deliver(&[("url", url), ("mode", mode), ("table", &table)], batches).await;
                let sql = format!("SELECT {document}::text FROM {table}");
                let rows = connect(url).await.query(&sql, &[]).await.expect("it can be read");
                let found = rows.iter().map(|row| row.get::<_, String>(0));
                found.map(|json| if *mode == "events" { part(&json, row) } else { json }).collect()
            }
            Self::Sqlite(mode, file) => {
                let (table, url) = (place(mode), format!("sqlite:{}", file.display()));
                deliver(&[("url", &url), ("mode", mode), ("table", &table)], batches).await;
                let connection = Connection::open(file).expect("the file is there");
                let mut statement = connection.prepare(&format!("SELECT body FROM {table}")).expect("it is there");
                let bodies = statement.query_map([], |row| row.get::<_, String>(0)).expect("it can be read");
                bodies.map(|body| part(&body.expect("a body is text"), row)).collect()
            }
            Self::MongoDb(mode, url) => {
                let collection = place(mode);
                deliver(&[("url", url), ("mode", mode), ("collection", &collection)], batches).await;
                let client = watchkeeper::mongodb::mongodb::Client::with_uri_str(url).await.expect("a URL");
                let database = client.default_database().expect("the URL names one");
                let documents = database.collection::<RawDocumentBuf>(&collection);
                let mut cursor = documents.find(doc! {}).await.expect("it is there");
                let mut found = Vec::new();
                while cursor.advance().await.expect("it can be read") {
                    let (mut out, document) = (Vec::new(), cursor.current());
                    BsonPayload::default()
                        .walk(document.as_bytes(), &mut JsonWriter::new(&mut out))
                        .expect("it is BSON");
                    let json = String::from_utf8(out).expect("JSON is text");
                    found.push(match *mode {
                        "events" => part(&part(&json, "event"), row),
                        "audit" => part(&json, "document"),
                        _ => json,
                    });
                }
                found
            }
            Self::Lines(format, folder) => {
                let folder = folder.join(format!("{format}_{tag}"));
                std::fs::create_dir(&folder).expect("it is new");
                let path = folder.to_str().expect("a path of this test is text");
                deliver(&[("type", "file"), ("format", format), ("folder", path)], batches).await;
                let is_whole_event = batches[0].payload().is_whole_event();
                let body = |line: &str| match *format {
                    "cloudevents" => part(line, "data"),
                    // The images of a row stand in its envelope.
                    "debezium" => line.to_owned(),
                    _ if is_whole_event => line.to_owned(),
                    _ => part(line, "document"),
                };
                lines(&folder).iter().map(|line| part(&body(line), row)).collect()
            }
        }
    }
}

/// The lines of all files in a folder.
fn lines(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("a file").path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
    let text: String = files.map(|path| std::fs::read_to_string(path).expect("lines are text")).collect();
    text.lines().map(str::to_owned).collect()
}

async fn deliver(settings: &[(&str, &str)], batches: &[Arc<Batch>]) {
    let mut delivery = Delivery::to(settings).await;
    delivery.deliver(batches).await;
    assert!(delivery.rejected.is_empty(), "{settings:?}: {:?}", delivery.rejected);
}

/// A field of a JSON document, as it is written there: no number is parsed, which might lose digits.
pub(super) fn part(json: &str, field: &str) -> String {
    let mut out = Vec::new();
    let found = JsonPayload.walk_field(json.as_bytes(), field, &mut Verbatim(JsonWriter::new(&mut out)));
    assert!(found.expect("it is JSON"), "{json} has no {field}");
    String::from_utf8(out).expect("JSON is text")
}

/// Writes JSON again as it was: numbers beyond 64 bits are no decimals with a mark.
struct Verbatim<'a>(JsonWriter<'a>);

impl watchkeeper::core::Visit for Verbatim<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        self.0.value(if let ValueRef::Decimal(digits) = value { ValueRef::Json(digits) } else { value });
    }
    fn begin_document(&mut self) {
        self.0.begin_document();
    }
    fn key(&mut self, key: &str) {
        self.0.key(key);
    }
    fn end_document(&mut self) {
        self.0.end_document();
    }
    fn begin_array(&mut self) {
        self.0.begin_array();
    }
    fn end_array(&mut self) {
        self.0.end_array();
    }
}

/// JSON without blanks between its parts.
pub(super) fn packed(json: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let keep = |sign: &char| {
        let blank = !quoted && sign.is_ascii_whitespace();
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            _ => {}
        }
        !blank
    };
    json.chars().filter(keep).collect()
}

/// Compares the JSON of a document with what is stored. The error is what was found instead.
pub(super) fn compare_json(mode: Mode, sink: &Documents, stored: &Stored, document: &str) -> Result<(), String> {
    let found = part(document, &format!("c{}", stored.column));
    let (expected, json) = (Json::parse(&stored.json), Json::parse(&found));
    let is_same = match (sink.is_mongodb(), mode) {
        (false, _) => expected == json,
        // The null of JSON is text there, as from replication.
        (true, Mode::Log) if expected == Json::Null => json == Json::Text("null".to_owned()),
        (true, Mode::Log) => expected.is_kept_as(&json.unmarked()),
        (true, Mode::Replication | Mode::Snapshot) => is_kept_as_text(&expected, &json.unmarked()),
    };
    if is_same { Ok(()) } else { Err(found) }
}

/// MongoDB has JSON that is a single value of its source as text, unless it is a number.
fn is_kept_as_text(expected: &Json, found: &Json) -> bool {
    match (expected, found) {
        (_, Json::Text(text)) => *expected == Json::parse(text),
        (Json::Array(items), Json::Array(others)) => {
            items.len() == others.len() && items.iter().zip(others).all(|(item, other)| is_kept_as_text(item, other))
        }
        _ => expected == found,
    }
}

/// Bytes as Debezium writes them, in the form that the server reads. An array that does not begin at 1 is the server's text.
fn from_base64(value: &Json, is_array: bool) -> String {
    match value {
        Json::Text(base64) if !is_array => {
            let hex: String = decode_base64(base64).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("\"\\\\x{hex}\"")
        }
        Json::Array(items) => {
            format!("[{}]", items.iter().map(|item| from_base64(item, false)).collect::<Vec<_>>().join(","))
        }
        other => other.plain(),
    }
}

/// The texts of documents' values, once they are stored in rows again.
pub(super) async fn restored(
    world: &World,
    mode: Mode,
    sink: &Documents,
    documents: &BTreeMap<i64, String>,
) -> BTreeMap<i64, String> {
    let mut rows = Vec::new();
    for (id, document) in documents {
        let column = world.stored[id].column;
        let name = world.types[column].name.as_str();
        let value = part(document, &format!("c{column}"));
        let is_bytes = ["bytea", "d_bytes", "bytea[]"].contains(&name);
        if matches!(sink, Documents::Lines("debezium", _)) && mode != Mode::Log && is_bytes {
            rows.push(format!(
                "{{\"id\":{id},\"c{column}\":{}}}",
                from_base64(&Json::parse(&value), name == "bytea[]")
            ));
            continue;
        }
        let value = match Json::parse(&value) {
            // These are no arrays to the server's functions. Its own JSON has the numbers of an oidvector as texts.
            Json::Array(numbers) if name == "int2vector" || name == "oidvector" => {
                let numbers: Vec<_> = numbers.iter().map(|number| number.plain().replace('"', "")).collect();
                format!("\"{}\"", numbers.join(" "))
            }
            parsed if value.contains("\"$") => parsed.plain(),
            _ => value,
        };
        rows.push(format!("{{\"id\":{id},\"c{column}\":{value}}}"));
    }
    let sql = format!(
        "SELECT r.id, {} FROM unnest($1::text[]) AS d (json) CROSS JOIN LATERAL json_populate_record(NULL::things, d.json::json) AS r",
        world.texts_of("r")
    );
    let rows = world.application.query(&sql, &[&rows]).await;
    let rows = rows.unwrap_or_else(|error| panic!("{} from {mode:?} cannot be read again: {error:?}", sink.name()));
    let found = |values: Vec<Option<String>>| only(values).unwrap_or_else(|| "nothing".to_owned());
    rows.iter().map(|row| (row.get(0), found(row.get(1)))).collect()
}
