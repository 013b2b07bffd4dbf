//! From collections of MongoDB: by a change stream and by a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use watchkeeper::core::Payload;
use watchkeeper::core::format::JsonWriter;
use watchkeeper::mongodb::BsonPayload;
use watchkeeper::mongodb::mongodb::bson::spec::BinarySubtype;
use watchkeeper::mongodb::mongodb::bson::{
    Binary, Bson, DateTime, Decimal128, Document, RawDocumentBuf, Regex, Timestamp, doc, oid::ObjectId, raw::CString,
};
use watchkeeper::mongodb::mongodb::{Client, Database};
use watchkeeper::sqlite::rusqlite::Connection;
use watchkeeper::{Batch, StartAt};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;
use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::carry::{Delivery, changes, cx, read, read_more, source};
use super::documents::{Documents, part};
use super::from_postgres::connect;
use super::generate::Run;

/// A value, the column of typed rows that it goes to (none for what PostgreSQL has no type for), and whether that has to reject it.
struct Value {
    field: &'static str,
    bson: Bson,
    rejects: bool,
}

fn binary(subtype: u8, bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::from(subtype), bytes: bytes.to_vec() })
}

fn values(run: &Run) -> Vec<Value> {
    let mut values = Vec::new();
    let mut add = |field, bson: Bson, rejects| values.push(Value { field, bson, rejects });
    for flag in [true, false] {
        add("b", flag.into(), false);
    }
    for whole in [0, i32::MIN, i32::MAX].into_iter().chain((0..run.cases).map(|_| run.bits() as i32)) {
        add("i", whole.into(), false);
    }
    for whole in [0, i64::MIN, i64::MAX].into_iter().chain((0..run.cases).map(|_| run.bits().cast_signed())) {
        add("l", whole.into(), false);
    }
    let reals = [-0.0, 0.1, 1e22, 5e-324, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for real in reals.into_iter().chain((0..run.cases * 2).map(|_| run.real())) {
        add("d", real.into(), false);
    }
    let decimals =
        ["0", "1.10", "-1E+3", "NaN", "Infinity", "-Infinity", "9.999999999999999999999999999999999E+6144", "1E-6176"];
    for digits in decimals.into_iter().map(str::to_owned).chain((0..run.cases).map(|_| run.decimal(17, 17))) {
        add("n", digits.parse::<Decimal128>().expect("34 digits fit").into(), false);
    }
    for text in ["", "null", "{\"a\":1}", "a\"b\\c", "line\nbreak", "é€𝄞"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..run.cases).map(|_| run.text()))
    {
        add("s", text.into(), false);
    }
    add("s", "a\0b".into(), true);
    for subtype in [0, 2, 3, 4, 5, 0x80, 0xff] {
        // The old kind of binary has its length twice, which the server checks.
        add("x", binary(subtype, &[0, 255, 16, 92, 120, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), false);
    }
    (0..run.cases).for_each(|_| add("x", binary(0, &run.bytes()), false));
    add("o", ObjectId::from_bytes([7; 12]).into(), false);
    for millis in [0, -1, 1_709_164_800_123, -62_135_596_800_001, 9_223_371_331_199_999, -210_866_803_200_000] {
        add("t", DateTime::from_millis(millis).into(), false);
    }
    for millis in [i64::MIN, i64::MAX] {
        add("t", DateTime::from_millis(millis).into(), true);
    }
    add("j", doc! { "a": [1, 2_i64, null, { "b": "c" }], "": "", "n": 0.5, "t": true }.into(), false);
    add("j", Bson::Array(vec![Bson::Array(vec![1.into()]), Bson::Array(vec![])]), false);
    add("j", "text".into(), false);
    add("j", doc! { "nul": "\0" }.into(), true);
    let text = |text: &str| CString::try_from(text).expect("it has no NUL");
    add("z", Bson::RegularExpression(Regex { pattern: text("^a/\"b"), options: text("im") }), false);
    add("z", Bson::Timestamp(Timestamp { time: 7, increment: 9 }), false);
    add("z", Bson::JavaScriptCode("f()".to_owned()), false);
    add("z", Bson::Symbol("s".to_owned()), false);
    add("z", Bson::MinKey, false);
    add("z", Bson::MaxKey, false);
    add("z", Bson::Undefined, false);
    add("z", Bson::Null, false);
    values
}

/// A document as this program's own JSON: what a target keeps is compared with it.
fn shown(document: &Document) -> String {
    let (raw, mut out) = (RawDocumentBuf::try_from(document).expect("it is BSON"), Vec::new());
    BsonPayload::default().walk(raw.as_bytes(), &mut JsonWriter::new(&mut out)).expect("it is BSON");
    String::from_utf8(out).expect("JSON is text")
}

/// The `_id` of each change's document.
fn ids(batches: &[Arc<Batch>]) -> Vec<usize> {
    let id = |change: &watchkeeper::Change| match change.batch().payload().get(change.body(), &["fullDocument", "_id"])
    {
        Ok(Some(watchkeeper::ValueRef::Int32(id))) => usize::try_from(id).expect("it is one of ours"),
        other => panic!("a change tells its document: {other:?}"),
    };
    changes(batches).iter().map(id).collect()
}

/// What a typed column is expected to show of a value, as an SQL expression of text.
fn expected(value: &Bson) -> String {
    match value {
        Bson::Boolean(flag) => format!("{flag}::bool::text"),
        Bson::Int32(whole) => format!("'{whole}'"),
        Bson::Int64(whole) => format!("'{whole}'"),
        Bson::Double(real) => format!("'{real:e}'::float8::text"),
        Bson::Decimal128(digits) => format!("'{digits}'::numeric::text"),
        Bson::Binary(binary) => {
            let hex: String = binary.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("'\\x{hex}'")
        }
        Bson::ObjectId(id) => format!("'{id}'"),
        Bson::DateTime(time) => {
            let (days, millis) =
                (time.timestamp_millis().div_euclid(86_400_000), time.timestamp_millis().rem_euclid(86_400_000));
            format!("('epoch'::timestamptz + make_interval(days => {days}) + {millis} * interval '1 ms')::text")
        }
        Bson::String(text) => format!("$wk${text}$wk$"),
        other => panic!("{other:?} has no column"),
    }
}

async fn into_rows(
    url: &str,
    mode: &str,
    tag: &str,
    values: &[Value],
    batches: &[Arc<Batch>],
    wrong: &mut Vec<String>,
) {
    let (table, application) = (format!("copy_{mode}_{tag}"), connect(url).await);
    let make = format!(
        "CREATE TABLE {table} (_id int PRIMARY KEY, b bool, i int, l bigint, d float8, n numeric, s text, x bytea, o text, t timestamptz, j jsonb)"
    );
    application.batch_execute(&make).await.expect("it is new");
    let mut delivery = Delivery::to(&[("url", url), ("mode", mode), ("table", &table)]).await;
    delivery.deliver(batches).await;
    for (at, id) in ids(batches).into_iter().enumerate() {
        let Value { field, bson, rejects } = &values[id];
        if *field == "z" {
            continue;
        }
        let same = match (*field, bson) {
            ("j", json) => {
                let json = part(&shown(&doc! { "v": json.clone() }), "v");
                format!("j = $wk${json}$wk$::jsonb")
            }
            (field, value) => format!("{field}::text = {}", expected(value)),
        };
        let is_rejected = delivery.rejected.contains_key(&at);
        let condition = if *rejects { "true".to_owned() } else { same };
        let sql = format!("SELECT {condition}, {field}::text FROM {table} WHERE _id = {id}");
        let rows = application.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let there: Option<(Option<bool>, Option<String>)> = rows.first().map(|row| (row.get(0), row.get(1)));
        let is_good = is_rejected == *rejects && there.as_ref().map_or(is_rejected, |(same, _)| *same == Some(true));
        if !is_good {
            let error = delivery.rejected.get(&at);
            wrong.push(format!("{bson:?} in {field} into {mode}: there {there:?}, rejected {error:?}"));
        }
    }
}

async fn insert(database: &Database, collection: &str, values: &[Value]) {
    let documents = values.iter().enumerate().map(|(id, value)| {
        doc! { "_id": id as i32, value.field: value.bson.clone() }
    });
    database.collection::<Document>(collection).insert_many(documents).await.expect("they are documents");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_mongodb_arrive_equal_or_are_rejected() {
    let (server, set) = (Server::start(Version::V18), ReplicaSet::start(1));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (url, from, run) = (server.url("postgres"), set.url("shop"), Run::new());
    let values = values(&run);
    let database = Client::with_uri_str(&from).await.expect("a URL").default_database().expect("it names one");
    let mut wrong = Vec::new();
    for tag in ["stream", "snapshot"] {
        let feed = source(&[("url", &from), ("collection", tag)]).await;
        let batches = if tag == "snapshot" {
            insert(&database, tag, &values).await;
            read(&*feed, StartAt::Snapshot, values.len()).await
        } else {
            database.create_collection(tag).await.expect("it is new");
            let mut stream = feed.open(&cx(), StartAt::Now).await.expect("it opens");
            insert(&database, tag, &values).await;
            read_more(&mut *stream, values.len()).await
        };
        for mode in ["rows", "versioned_rows"] {
            into_rows(&url, mode, tag, &values, &batches, &mut wrong).await;
        }
        for sink in Documents::all(folder.path(), &set) {
            let found = sink.carry(&url, tag, "fullDocument", &batches).await;
            let found: BTreeMap<usize, String> =
                found.into_iter().map(|json| (part(&json, "_id").parse().expect("its id"), json)).collect();
            for (id, value) in values.iter().enumerate() {
                let there = found.get(&id).map(|json| part(json, value.field));
                let is_there = part(&shown(&doc! { value.field: value.bson.clone() }), value.field);
                if there.as_ref() != Some(&is_there) {
                    wrong.push(format!("{is_there} from a {tag} into {}: there {there:?}", sink.name()));
                }
            }
        }
    }
    let (seed, count) = (run.seed, wrong.len());
    assert!(wrong.is_empty(), "seed {seed}: {count} values arrive different\n{}", wrong.join("\n"));
}

/// Servers store what drivers send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_of_mongodb_that_is_not_utf8_is_bytes_or_rejected() {
    let (server, set) = (Server::start(Version::V18), ReplicaSet::start(1));
    let (url, from) = (server.url("postgres"), set.url("shop"));
    let database = Client::with_uri_str(&from).await.expect("a URL").default_database().expect("it names one");
    database.create_collection("odd").await.expect("it is new");
    let feed = source(&[("url", &from), ("collection", "odd")]).await;
    let mut stream = feed.open(&cx(), StartAt::Now).await.expect("it opens");
    let documents = [doc! { "_id": 1, "s": "A???" }, doc! { "_id": 2, "x": "A???" }, doc! { "_id": 3, "j": ["A???"] }];
    let insert = RawDocumentBuf::try_from(&doc! { "insert": "odd", "documents": documents.to_vec() }).expect("BSON");
    let spoilt = insert.as_bytes().iter().map(|byte| if *byte == b'?' { 0xff } else { *byte }).collect();
    database.run_raw_command(RawDocumentBuf::from_bytes(spoilt).expect("BSON")).await.expect("servers take it");
    let batches = read_more(&mut *stream, 3).await;
    let application = connect(&url).await;
    let table = "CREATE TABLE odd (_id int PRIMARY KEY, s text, x bytea, j text[])";
    application.batch_execute(table).await.expect("it is new");
    let mut delivery = Delivery::to(&[("url", &url), ("mode", "rows"), ("table", "odd")]).await;
    delivery.deliver(&batches).await;
    assert_eq!(delivery.rejected.keys().copied().collect::<Vec<_>>(), [0, 2], "{:?}", delivery.rejected);
    let rows = application.query("SELECT _id, x FROM odd", &[]).await.expect("it can be read");
    let there: Vec<(i32, Vec<u8>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(there, [(2, b"A\xff\xff\xff".to_vec())]);
}

/// An update that tells only what differs would replace the whole document in the body of a mirror.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_in_sqlite_keeps_whole_documents_of_mongodb() {
    let (set, folder) = (ReplicaSet::start(1), tempfile::tempdir().expect("a folder can be made"));
    let from = set.url("shop");
    let database = Client::with_uri_str(&from).await.expect("a URL").default_database().expect("it names one");
    database.create_collection("things").await.expect("it is new");
    let collection = database.collection::<Document>("things");
    for (full_document, rejected) in [("default", 1), ("updateLookup", 0)] {
        let feed = source(&[("url", &from), ("collection", "things"), ("full_document", full_document)]).await;
        let mut stream = feed.open(&cx(), StartAt::Now).await.expect("it opens");
        collection.insert_one(doc! { "_id": 1, "a": 1, "b": 2 }).await.expect("it is new");
        collection.insert_one(doc! { "_id": 2, "a": 1 }).await.expect("it is new");
        collection.update_one(doc! { "_id": 1 }, doc! { "$set": { "a": 3 } }).await.expect("it is there");
        let file = folder.path().join(full_document);
        let url = format!("sqlite:{}", file.display());
        let mut delivery = Delivery::to(&[("url", &url), ("mode", "mirror"), ("table", "copy")]).await;
        delivery.deliver(&read_more(&mut *stream, 3).await).await;
        assert_eq!(delivery.rejected.len(), rejected, "{full_document}: {:?}", delivery.rejected);
        let mut expected = vec![format!("{} 2", if rejected > 0 { 1 } else { 3 }), "1 nothing".to_owned()];
        assert_eq!(documents_in(&file), expected, "{full_document}");
        if rejected == 0 {
            // It is deleted before the stream looks it up: what is left has to be what the source has.
            collection.update_one(doc! { "_id": 2 }, doc! { "$set": { "a": 4 } }).await.expect("it is there");
            collection.delete_one(doc! { "_id": 2 }).await.expect("it is there");
            delivery.deliver(&read_more(&mut *stream, 2).await).await;
            expected.pop();
            assert_eq!((documents_in(&file), &delivery.rejected), (expected, &BTreeMap::new()));
        }
        collection.delete_many(doc! {}).await.expect("it is there");
    }
}

/// The fields of the documents in a mirror, as SQL of its reader has them.
fn documents_in(file: &std::path::Path) -> Vec<String> {
    let connection = Connection::open(file).expect("the file is there");
    let sql =
        "SELECT (body ->> '$.fullDocument.a') || ' ' || coalesce(body ->> '$.fullDocument.b', 'nothing') FROM copy
        ORDER BY body ->> '$.fullDocument._id'";
    let mut statement = connection.prepare(sql).expect("it is there");
    let rows = statement.query_map([], |row| row.get(0)).expect("bodies are JSON");
    rows.collect::<Result<_, _>>().expect("bodies are JSON")
}
