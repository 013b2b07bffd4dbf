//! From tables of PostgreSQL: by triggers, by replication, and by a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchkeeper::postgres::changelog::{Wake, install};
use watchkeeper::postgres::tokio_postgres::{self, NoTls};
use watchkeeper::postgres::{Client, Config};
use watchkeeper::{Batch, StartAt, ValueRef};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::carry::{Delivery, changes, cx, read, read_more, source};
use super::documents::{self, Documents};
use super::generate::Run;
use super::types::{OWN, Quirk, Type, all};

/// Settings of the role that writes the target. None of them may change a value.
const HOSTILE: &str = "CREATE ROLE hostile LOGIN SUPERUSER;
ALTER ROLE hostile SET array_nulls = off;
ALTER ROLE hostile SET datestyle = 'SQL, DMY';
ALTER ROLE hostile SET intervalstyle = sql_standard;
ALTER ROLE hostile SET extra_float_digits = -10;
ALTER ROLE hostile SET bytea_output = escape;
ALTER ROLE hostile SET standard_conforming_strings = off;
ALTER ROLE hostile SET backslash_quote = off;
ALTER ROLE hostile SET timezone = 'Asia/Tokyo';
ALTER ROLE hostile SET xmloption = document;
ALTER ROLE hostile SET lc_monetary = 'C.utf8';
ALTER ROLE hostile SET quote_all_identifiers = on";

/// How changes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Log,
    Replication,
    Snapshot,
}

pub(super) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// A value that was stored: its type, what it is told to be, and the text that the server has for it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) column: usize,
    pub(super) sql: String,
    pub(super) quirk: Quirk,
    pub(super) text: String,
    /// The JSON that the server makes of it.
    pub(super) json: String,
}

/// A table with a column for each type, and rows with one value each.
pub(super) struct World {
    pub(super) run: Run,
    pub(super) types: Vec<Type>,
    pub(super) application: tokio_postgres::Client,
    pub(super) stored: BTreeMap<i64, Stored>,
    url: String,
    hostile: String,
}

impl World {
    async fn new(server: &Server) -> Self {
        let (url, run) = (server.url("postgres"), Run::new());
        let application = connect(&url).await;
        application.batch_execute(OWN).await.expect("they are new");
        application.batch_execute(HOSTILE).await.expect("the superuser may");
        let mut types = all(&run);
        if application.batch_execute("SELECT '<a/>'::xml").await.is_err() {
            types.retain(|kind| kind.name != "xml");
        }
        let columns: Vec<_> = types.iter().enumerate().map(|(n, kind)| format!("c{n} {}", kind.name)).collect();
        let table = format!("CREATE TABLE things (id bigint PRIMARY KEY, {})", columns.join(", "));
        application.batch_execute(&table).await.expect("it is new");
        Self { run, types, application, stored: BTreeMap::new(), url, hostile: server.url_of("hostile", "postgres") }
    }

    /// Stores all values, and asks the server for their texts.
    async fn store(&mut self) {
        let mut sql = String::from("BEGIN;");
        let mut id = 0;
        for (column, kind) in self.types.iter().enumerate() {
            for value in &kind.values {
                id += 1;
                sql += &format!("INSERT INTO things (id, c{column}) VALUES ({id}, {});\n", value.sql);
                let (text, json) = (String::new(), String::new());
                let stored = Stored { column, sql: value.sql.clone(), quirk: value.quirk, text, json };
                self.stored.insert(id, stored);
            }
        }
        self.application.batch_execute(&(sql + "COMMIT")).await.expect("the values are of their types");
        let texts = self.texts("things").await;
        for (id, stored) in &mut self.stored {
            stored.text = texts[id].clone().expect("no value is null");
        }
        let sql = format!("SELECT t.id, {} FROM things t", self.json_of("t"));
        for row in self.application.query(&sql, &[]).await.expect("it can be read") {
            let stored = self.stored.get_mut(&row.get(0)).expect("it is one of ours");
            stored.json = only(row.get(1)).expect("no value is null");
        }
    }

    /// The expression of a row's only value, as text in an array of all columns. The text of XML is what the server prints, which
    /// leaves out a declaration that says nothing.
    pub(super) fn texts_of(&self, row: &str) -> String {
        let text = |(n, kind): (usize, &Type)| match kind.name.as_str() {
            "xml" => format!("CASE WHEN {row}.c{n} IS NOT NULL THEN format('%s', {row}.c{n}) END"),
            _ => format!("{row}.c{n}::text"),
        };
        format!("ARRAY[{}]::text[]", self.types.iter().enumerate().map(text).collect::<Vec<_>>().join(","))
    }

    /// The same as the JSON that the server makes of it.
    pub(super) fn json_of(&self, row: &str) -> String {
        let each: Vec<_> = (0..self.types.len()).map(|n| format!("to_json({row}.c{n})::text")).collect();
        format!("ARRAY[{}]::text[]", each.join(","))
    }

    /// The texts of a table's values.
    async fn texts(&self, table: &str) -> BTreeMap<i64, Option<String>> {
        let sql = format!("SELECT t.id, {} FROM {table} t", self.texts_of("t"));
        let rows = self.application.query(&sql, &[]).await.expect("it can be read");
        rows.iter().map(|row| (row.get(0), only(row.get(1)))).collect()
    }

    async fn read(&self, mode: Mode) -> Vec<Arc<Batch>> {
        let count = self.stored.len();
        let replication = [("url", self.url.as_str()), ("mode", "replication"), ("table", "things")];
        match mode {
            Mode::Log => read(&*source(&[("url", &self.url)]).await, StartAt::Oldest, count).await,
            Mode::Snapshot => read(&*source(&replication).await, StartAt::Snapshot, count).await,
            Mode::Replication => {
                // The same rows once more, in the log that is read.
                let aside = "CREATE TEMP TABLE all_things AS TABLE things; TRUNCATE things";
                self.application.batch_execute(aside).await.expect("the application may");
                let source = source(&replication).await;
                let mut stream = source.open(&cx(), StartAt::Now).await.expect("the stream opens");
                let again = "INSERT INTO things TABLE all_things; DROP TABLE all_things";
                self.application.batch_execute(again).await.expect("the application may");
                read_more(&mut *stream, count).await
            }
        }
    }

    /// Says what is known of a value that did not arrive as it was.
    fn blame(&self, mode: Mode, sink: &str, id: i64, outcome: &str) -> String {
        let Stored { column, sql, text, .. } = &self.stored[&id];
        let name = &self.types[*column].name;
        format!("{name} from {mode:?} into {sink}: {sql} is {text:?}, and {outcome}")
    }

    /// Whether a change may be rejected: see docs/guide/values.md, which lists these.
    fn may_be_rejected(&self, mode: Mode, stored: &Stored) -> bool {
        match stored.quirk {
            Quirk::NulInJson => true,
            Quirk::NestedJson => mode == Mode::Log,
            Quirk::None | Quirk::JsonNull | Quirk::Bounds => false,
        }
    }

    /// Whether two texts of a value are equal. The log tells JSON as the server's functions write it, which is without blanks.
    pub(super) fn same(&self, stored: &Stored, text: &str) -> bool {
        let packed = match self.types[stored.column].name.as_str() {
            // No JSON of these arrays has a blank in a string.
            "json[]" => |text: &str| text.replace([' ', '\n'], ""),
            "json" => documents::packed,
            _ => str::to_owned,
        };
        packed(&stored.text) == packed(text)
    }

    /// Whether documents have JSON of a value, which can be compared as such. The change log has it for `hstore`, too. An array of JSON that
    /// does not count from 1 is the server's text, as is, from a change log, one with a null of JSON in it.
    fn is_json(&self, mode: Mode, stored: &Stored) -> bool {
        let name = self.types[stored.column].name.as_str();
        let has_null = mode == Mode::Log && stored.quirk == Quirk::JsonNull && name.ends_with("[]");
        if has_null || stored.quirk == Quirk::Bounds {
            return false;
        }
        let is_json = name != "jsonpath" && (name.starts_with("json") || name == "d_json");
        is_json || mode == Mode::Log && name.starts_with("hstore")
    }

    /// Typed rows: what the copy holds is what the table holds.
    async fn compare_rows(&self, mode: Mode, sink: &str, batches: &[Arc<Batch>], wrong: &mut Vec<String>) {
        let table = format!("copy_{sink}_{mode:?}").to_lowercase();
        let make = format!("CREATE TABLE {table} (LIKE things INCLUDING ALL)");
        self.application.batch_execute(&make).await.expect("it is new");
        let settings = [("url", self.hostile.as_str()), ("mode", sink), ("table", &table)];
        let mut delivery = Delivery::to(&settings).await;
        delivery.deliver(batches).await;
        let (ids, texts) = (ids(batches), self.texts(&table).await);
        for (at, id) in ids.iter().enumerate() {
            let stored = &self.stored[id];
            let outcome = match (delivery.rejected.get(&at), texts.get(id)) {
                (Some(_), Some(_)) => "it is rejected and there".to_owned(),
                (Some(error), None) if !self.may_be_rejected(mode, stored) => format!("it is rejected: {error}"),
                (Some(_), None) => continue,
                (None, None) => "it is neither there nor rejected".to_owned(),
                (None, Some(text)) if text.as_deref().is_some_and(|text| self.same(stored, text)) => continue,
                (None, Some(text)) => format!("arrives as {text:?}"),
            };
            wrong.push(self.blame(mode, sink, *id, &outcome));
        }
    }

    /// Documents: each is read as whoever uses it would, and stored again in a row of the table's type.
    async fn compare_documents(&self, mode: Mode, sink: &Documents, batches: &[Arc<Batch>], wrong: &mut Vec<String>) {
        let found = sink.carry(&self.hostile, &format!("{mode:?}").to_lowercase(), "after", batches).await;
        assert_eq!(found.len(), self.stored.len(), "{}: as many documents as changes", sink.name());
        let documents: BTreeMap<i64, String> = found
            .into_iter()
            .map(|document| (documents::part(&document, "id").parse().expect("it has its id"), document))
            .collect();
        let (json, rows): (BTreeMap<_, _>, _) =
            documents.into_iter().partition(|(id, _)| self.is_json(mode, &self.stored[id]));
        for (id, document) in json {
            if let Err(found) = documents::compare_json(mode, sink, &self.stored[&id], &document) {
                wrong.push(self.blame(mode, sink.name(), id, &format!("arrives as {found}")));
            }
        }
        for (id, text) in documents::restored(self, mode, sink, &rows).await {
            if !self.same(&self.stored[&id], &text) {
                wrong.push(self.blame(mode, sink.name(), id, &format!("arrives as {text:?}")));
            }
        }
    }
}

/// The only value of a row; nothing if all are null.
pub(super) fn only(values: Vec<Option<String>>) -> Option<String> {
    values.into_iter().flatten().next()
}

/// Which rows changes are of.
fn ids(batches: &[Arc<Batch>]) -> Vec<i64> {
    let id = |change: &watchkeeper::Change| match change.batch().payload().get(change.body(), &["after", "id"]) {
        Ok(Some(ValueRef::Int64(id))) => id,
        other => panic!("a change tells its id: {other:?}"),
    };
    changes(batches).iter().map(id).collect()
}

async fn arrive_equal_or_not_at_all(version: Version) {
    let server = Server::start(version);
    // Targets of other systems see changes, whichever version of the server they are from.
    let set = (version == Version::V18).then(|| ReplicaSet::start(1));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut world = World::new(&server).await;
    let client = Client::open(&cx(), Config::new(&world.url).expect("a URL")).await.expect("the server is there");
    install(&cx(), &client, &["things"], Wake::Silent).await.expect("it can be logged");
    world.store().await;
    let mut sinks = set.as_ref().map_or_else(Documents::in_postgres, |set| Documents::all(folder.path(), set));
    sinks.push(Documents::Lines("debezium", folder.path().to_owned()));
    let mut wrong = Vec::new();
    for mode in [Mode::Log, Mode::Snapshot, Mode::Replication] {
        let batches = world.read(mode).await;
        for sink in ["rows", "versioned_rows"] {
            world.compare_rows(mode, sink, &batches, &mut wrong).await;
        }
        for sink in &sinks {
            world.compare_documents(mode, sink, &batches, &mut wrong).await;
        }
    }
    let seed = world.run.seed;
    let count = wrong.len();
    assert!(wrong.is_empty(), "seed {seed}: {count} values arrive different\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_postgresql_18_arrive_equal_or_are_rejected() {
    arrive_equal_or_not_at_all(Version::V18).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_postgresql_15_arrive_equal_or_are_rejected() {
    arrive_equal_or_not_at_all(Version::V15).await;
}

/// Replication leaves out large values that did not change: without them a body would be another row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_in_sqlite_rejects_an_update_that_leaves_values_out() {
    let (server, folder) = (Server::start(Version::V18), tempfile::tempdir().expect("a folder can be made"));
    let url = server.url("postgres");
    let application = connect(&url).await;
    let table =
        "CREATE TABLE large (id int PRIMARY KEY, big text, n int); ALTER TABLE large ALTER big SET STORAGE EXTERNAL;
        INSERT INTO large VALUES (1, repeat('large', 10000), 1)";
    application.batch_execute(table).await.expect("it is new");
    let source = source(&[("url", &url), ("mode", "replication"), ("table", "large")]).await;
    let mut stream = source.open(&cx(), StartAt::Now).await.expect("the stream opens");
    application.batch_execute("UPDATE large SET n = 2").await.expect("the application may");
    let file = format!("sqlite:{}", folder.path().join("copy.db").display());
    let mut delivery = Delivery::to(&[("url", &file), ("mode", "mirror"), ("table", "copy")]).await;
    delivery.deliver(&read_more(&mut *stream, 1).await).await;
    assert_eq!(delivery.rejected.len(), 1, "{:?}", delivery.rejected);
}
