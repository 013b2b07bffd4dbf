//! From tables of SQLite, whose columns take values of every type.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use watchkeeper::sqlite::rusqlite::{Connection, types::Value};
use watchkeeper::sqlite::tools::install;
use watchkeeper::sqlite::{Client, Config};
use watchkeeper::{Batch, StartAt, ValueRef};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::carry::{Delivery, changes, cx, read, read_more, source};
use super::documents::{Documents, part};
use super::from_postgres::connect;
use super::generate::Run;
use super::json::decode_base64;

/// A value of SQLite. Text need not be UTF-8 there.
#[derive(Debug, Clone, PartialEq)]
enum Stored {
    Whole(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl Stored {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Real(one), Self::Real(other)) => one.to_bits() == other.to_bits(),
            _ => self == other,
        }
    }
}

/// A row with one value: the column it is in, and whether typed rows have to reject it.
struct Row {
    column: &'static str,
    value: Stored,
    rejects: bool,
}

fn rows(run: &Run) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |column, value, rejects| rows.push(Row { column, value, rejects });
    let wholes = [0, -1, i64::MIN, i64::MAX, 9_007_199_254_740_993];
    for whole in wholes.into_iter().chain((0..run.cases).map(|_| run.bits().cast_signed())) {
        add("i", Stored::Whole(whole), false);
    }
    // SQLite itself writes a negative zero as 0.0.
    let reals = [
        0.1,
        0.1 + 0.2,
        1.0,
        1e22,
        1e23,
        5e-324,
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1.234_567_890_123_456_7e300,
    ];
    for real in reals.into_iter().chain((0..run.cases * 4).map(|_| run.real() + 0.0)) {
        add("r", Stored::Real(real), false);
    }
    for text in ["", " ", "null", "NULL", "{}", "{\"a\":1}", "\\x41", "a\"b'c\\", "line\nbreak", "é€𝄞", "\u{1}\u{7f}"]
    {
        add("t", Stored::Text(text.into()), false);
    }
    for _ in 0..run.cases * 2 {
        add("t", Stored::Text(run.text().into_bytes()), false);
        add("b", Stored::Blob(run.bytes()), false);
        add("j", Stored::Text(run.json(4).into_bytes()), false);
    }
    // PostgreSQL has no text with a NUL in it, and none that is not UTF-8.
    for text in [&b"a\0b"[..], b"\0", b"A\xff", b"\xe2\x82", b"\xed\xa0\x80"] {
        add("t", Stored::Text(text.to_vec()), true);
    }
    for bytes in [&b""[..], b"\x00\xff\x10", b"\\x41", b"text", b"{\"$hex\":\"00\"}"] {
        add("b", Stored::Blob(bytes.to_vec()), false);
    }
    for text in [&b"A\xffB"[..], b"\\x41", b"\\101", b"a\\b", b"text", b"", b"12"] {
        add("b", Stored::Text(text.to_vec()), false);
    }
    add("b", Stored::Whole(12), true);
    add("b", Stored::Real(0.5), true);
    for relative in ["now", "TODAY", "tomorrow", "yesterday 12:00", "today allballs", "02/03/2024"] {
        add("m", Stored::Text(relative.into()), true);
    }
    add("t", Stored::Blob(b"bytes".to_vec()), true);
    add("u", Stored::Blob((0..16).collect()), false);
    for json in
        ["{\"a\": [1, 2.50, null]}", "\"text\"", "1e400", "null", " [ ] ", "-0", "{\"$hex\":\"00\"}", "\"\\\\\""]
    {
        add("j", Stored::Text(json.into()), false);
    }
    for text in ["text", "", "{\"a\":", "[1] 2", "\"\\u0000\""] {
        add("j", Stored::Text(text.into()), true);
    }
    add("j", Stored::Blob(b"{}".to_vec()), true);
    rows
}

/// Runs a statement with one value.
fn put(connection: &Connection, sql: &str, value: &Stored) {
    let (value, cast) = match value {
        Stored::Whole(whole) => (Value::Integer(*whole), "?1"),
        Stored::Real(real) => (Value::Real(*real), "?1"),
        Stored::Text(bytes) => (Value::Blob(bytes.clone()), "CAST(?1 AS TEXT)"),
        Stored::Blob(bytes) => (Value::Blob(bytes.clone()), "?1"),
    };
    connection.execute(&sql.replace("{value}", cast), [value]).expect("the application may");
}

async fn logged(file: &Path, table: &str, sql: &str) -> Connection {
    let connection = Connection::open(file).expect("a new file");
    connection.execute_batch(sql).expect("it is new");
    let client = Client::open(&cx(), Config::new(file)).await.expect("it opens");
    install(&cx(), &client, &[table]).await.expect("it can be logged");
    connection
}

fn ids(batches: &[Arc<Batch>]) -> Vec<usize> {
    let id = |change: &watchkeeper::Change| match change.batch().payload().get(change.body(), &["after", "id"]) {
        Ok(Some(ValueRef::Int64(id))) => usize::try_from(id).expect("it is one of ours"),
        other => panic!("a change tells its id: {other:?}"),
    };
    changes(batches).iter().map(id).collect()
}

/// What typed rows hold of each row.
async fn held(url: &str, table: &str) -> BTreeMap<usize, (Option<Stored>, Option<String>)> {
    let sql = format!("SELECT id, i, r, t, b, uuid_send(u), j::text FROM {table}");
    let rows = connect(url).await.query(&sql, &[]).await.expect("it can be read");
    let held = rows.iter().map(|row| {
        let value = row.get::<_, Option<i64>>(1).map(Stored::Whole);
        let value = value.or_else(|| row.get::<_, Option<f64>>(2).map(Stored::Real));
        let value = value.or_else(|| row.get::<_, Option<String>>(3).map(|text| Stored::Text(text.into())));
        let value = value.or_else(|| row.get::<_, Option<Vec<u8>>>(4).map(Stored::Blob));
        let value = value.or_else(|| row.get::<_, Option<Vec<u8>>>(5).map(Stored::Blob));
        (usize::try_from(row.get::<_, i64>(0)).expect("it is one of ours"), (value, row.get(6)))
    });
    held.collect()
}

async fn into_rows(url: &str, mode: &str, stored: &[Row], batches: &[Arc<Batch>], wrong: &mut Vec<String>) {
    let (table, application) = (format!("copy_{mode}"), connect(url).await);
    let make = format!(
        "CREATE TABLE {table} (id bigint PRIMARY KEY, i bigint, r float8, t text, b bytea, u uuid, j jsonb, m timestamptz)"
    );
    application.batch_execute(&make).await.expect("it is new");
    let mut delivery = Delivery::to(&[("url", url), ("mode", mode), ("table", &table)]).await;
    delivery.deliver(batches).await;
    let held = held(url, &table).await;
    for (at, id) in ids(batches).into_iter().enumerate() {
        let Row { column, value, rejects } = &stored[id];
        let is_rejected = delivery.rejected.contains_key(&at);
        let is_equal = match (held.get(&id), value) {
            (None, _) => is_rejected,
            (Some((None, Some(json))), Stored::Text(text)) if *column == "j" => {
                let text = std::str::from_utf8(text).expect("JSON is text");
                let same = application.query_one("SELECT $1::text::jsonb::text", &[&text]).await;
                same.is_ok_and(|same| *json == same.get::<_, String>(0))
            }
            // Text that is no text to PostgreSQL is bytes to it.
            (Some((Some(Stored::Blob(bytes)), None)), Stored::Text(text)) => bytes == text,
            (Some((Some(there), None)), value) => there.is_same(value),
            (Some(_), _) => false,
        };
        if !is_equal || is_rejected != *rejects {
            let (there, error) = (held.get(&id), delivery.rejected.get(&at));
            wrong.push(format!("{value:?} in {column} into {mode}: there {there:?}, rejected {error:?}"));
        }
    }
}

/// A value of a document, as its marks say.
fn decoded(json: &str) -> Stored {
    if let Ok(whole) = json.parse() {
        return Stored::Whole(whole);
    }
    if let Ok(real) = json.parse() {
        return Stored::Real(real);
    }
    let value: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
    if let Some(text) = value.as_str() {
        return Stored::Text(text.into());
    }
    if let Some(real) = value["$numberDouble"].as_str() {
        return Stored::Real(real.parse().expect("it is a number"));
    }
    let bytes = decode_base64(value["$binary"]["base64"].as_str().unwrap_or_else(|| panic!("{json} is no value")));
    match value["$binary"]["subType"].as_str() {
        Some("80") => Stored::Text(bytes),
        _ => Stored::Blob(bytes),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_sqlite_arrive_equal_or_are_rejected() {
    let (server, set) = (Server::start(Version::V18), ReplicaSet::start(1));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (url, run) = (server.url("postgres"), Run::new());
    let file = folder.path().join("app.db");
    let table = "CREATE TABLE things (id INTEGER PRIMARY KEY, i, r, t, b, u, j, m)";
    let application = logged(&file, "things", table).await;
    let stored = rows(&run);
    for (id, Row { column, value, .. }) in stored.iter().enumerate() {
        put(&application, &format!("INSERT INTO things (id, {column}) VALUES ({id}, {{value}})"), value);
    }
    let log = source(&[("url", &format!("sqlite:{}", file.display()))]).await;
    let batches = read(&*log, StartAt::Oldest, stored.len()).await;
    let mut wrong = Vec::new();
    for mode in ["rows", "versioned_rows"] {
        into_rows(&url, mode, &stored, &batches, &mut wrong).await;
    }
    for sink in Documents::all(folder.path(), &set) {
        let found = sink.carry(&url, "sqlite", "after", &batches).await;
        assert_eq!(found.len(), stored.len(), "{}: as many documents as changes", sink.name());
        for document in found {
            let id: usize = part(&document, "id").parse().expect("it has its id");
            let Row { column, value, .. } = &stored[id];
            let there = decoded(&part(&document, column));
            if !there.is_same(value) {
                wrong.push(format!("{value:?} into {}: there {there:?}", sink.name()));
            }
        }
    }
    let (seed, count) = (run.seed, wrong.len());
    assert!(wrong.is_empty(), "seed {seed}: {count} values arrive different\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_keys_of_sqlite_are_bytes_in_keys_of_postgresql() {
    let server = Server::start(Version::V18);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (url, run) = (server.url("postgres"), Run::new());
    let file = folder.path().join("app.db");
    let application = logged(&file, "keyed", "CREATE TABLE keyed (k BLOB PRIMARY KEY, n INTEGER)").await;
    let mut keys: BTreeSet<Vec<u8>> = (0..run.cases * 4).map(|_| run.bytes()).collect();
    keys.extend([&b""[..], b"\x00\xff\x10", b"\\x41", b"key"].map(<[u8]>::to_vec));
    let log = source(&[("url", &format!("sqlite:{}", file.display()))]).await;
    let mut stream = log.open(&cx(), StartAt::Oldest).await.expect("it opens");
    for mode in ["rows", "versioned_rows"] {
        let (table, postgres) = (format!("keyed_{mode}"), connect(&url).await);
        let make = format!("CREATE TABLE {table} (k bytea PRIMARY KEY, n bigint)");
        postgres.batch_execute(&make).await.expect("it is new");
        let mut delivery = Delivery::to(&[("url", &url), ("mode", mode), ("table", &table)]).await;
        // Some of them are text that is not UTF-8.
        for (n, key) in keys.iter().enumerate() {
            let is_text = n % 3 == 0 && std::str::from_utf8(key).is_err();
            let value = if is_text { Stored::Text(key.clone()) } else { Stored::Blob(key.clone()) };
            put(&application, "INSERT INTO keyed VALUES ({value}, 1)", &value);
        }
        delivery.deliver(&read_more(&mut *stream, keys.len()).await).await;
        application.execute("UPDATE keyed SET n = 2", []).expect("the application may");
        delivery.deliver(&read_more(&mut *stream, keys.len()).await).await;
        let rows = postgres.query(&format!("SELECT k FROM {table} WHERE n = 2"), &[]).await.expect("it is there");
        let there: BTreeSet<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(there, keys, "seed {}: {mode}", run.seed);
        application.execute("DELETE FROM keyed", []).expect("the application may");
        delivery.deliver(&read_more(&mut *stream, keys.len()).await).await;
        let left = postgres.query(&format!("SELECT FROM {table}"), &[]).await.expect("it is there");
        assert_eq!((left.len(), &delivery.rejected), (0, &BTreeMap::new()), "seed {}: {mode}", run.seed);
    }
}
