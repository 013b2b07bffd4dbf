//! The formats for other systems' consumers, byte for byte, and the images that they are made of.

use std::sync::Arc;

use watchkeeper_core::format::{self, CloudEvents, Debezium, Format, JsonWriter};
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    BatchBuilder, Change, Image, Operation, Payload, Result, RowParts, SourceTime, ValueRef, Version, Visit,
};

use crate::support::{batch, builder_of, change, end, parts};

fn text(format: &dyn Format, change: &Change) -> String {
    let mut out = Vec::new();
    format.write(change, &mut out).expect("the change can be written");
    let line = String::from_utf8(out).expect("the format is text");
    serde_json::from_str::<serde_json::Value>(&line).expect("a line is JSON");
    assert!(!line.contains('\n'), "{line}");
    line
}

/// What stands around the images of the change that `parts` makes.
fn envelope(images: &str, op: &str) -> String {
    let snapshot = op == "r";
    let version = env!("CARGO_PKG_VERSION");
    format!(
        concat!(
            r#"{{{},"source":{{"version":"{}","connector":"watchkeeper","name":"log","ts_ms":1700000000007,"#,
            r#""snapshot":"{}","db":"shop","table":"orders","sequence":"[\"3\",\"4\"]","position":"07","id":"log:07"}},"#,
            r#""op":"{}","ts_ms":1700000000007,"transaction":null}}"#
        ),
        images, version, snapshot, op
    )
}

fn debezium(operation: Operation, body: &[u8]) -> String {
    text(&Debezium, &change(RowParts { operation, body, ..parts() }))
}

#[test]
fn debezium_has_a_letter_and_the_images_of_every_change_of_a_row() {
    let both = br#"{"before":{"n":1},"after":{"n":[2,{"after":3}]}}"#;
    let reported = r#""before":{"n":1},"after":{"n":[2,{"after":3}]}"#;
    let cases: [(Operation, &[u8], &str, &str); 8] = [
        (Operation::Insert, br#"{"n":2}"#, r#""before":null,"after":{"n":2}"#, "c"),
        (Operation::Insert, br#"{"before":null,"after":{"n":2}}"#, r#""before":null,"after":{"n":2}"#, "c"),
        (Operation::Update, both, reported, "u"),
        (Operation::Replace, both, reported, "u"),
        (Operation::Delete, br#"{"before":{"n":1}}"#, r#""before":{"n":1},"after":null"#, "d"),
        (Operation::Delete, br#"{"n":1}"#, r#""before":{"n":1},"after":null"#, "d"),
        (Operation::Delete, b"", r#""before":null,"after":null"#, "d"),
        (Operation::Read, br#"{"n":2}"#, r#""before":null,"after":{"n":2}"#, "r"),
    ];
    for (operation, body, images, op) in cases {
        assert_eq!(debezium(operation, body), envelope(images, op), "{operation}");
    }
}

#[test]
fn debezium_tells_what_has_no_row_without_images() {
    let truncated = RowParts { operation: Operation::Truncate, key: None, body: br#"{"n":1}"#, ..parts() };
    assert_eq!(text(&Debezium, &change(truncated)), envelope(r#""before":null,"after":null"#, "t"));
    let dropped = RowParts { operation: Operation::Drop, key: None, body: b"", ..parts() };
    let expected = envelope(r#""message":{"prefix":"watchkeeper.drop","content":""}"#, "m");
    assert_eq!(text(&Debezium, &change(dropped)), expected);
}

/// A gap as the engine tells it: without key, namespace and perhaps time.
fn gap() -> Change {
    let mut builder = BatchBuilder::new("gap".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace("");
    let body = br#"{"cause":"history is gone"}"#;
    let (time, version) = (SourceTime(0), Version::default());
    builder.push(RowParts { operation: Operation::Gap, namespace, key: None, body, time, version, ..parts() });
    Change::new(Arc::new(builder.finish(end())), 0)
}

#[test]
fn a_gap_is_a_message_that_says_its_cause() {
    let line = text(&Debezium, &gap());
    let content = "eyJjYXVzZSI6Imhpc3RvcnkgaXMgZ29uZSJ9";
    let start = format!(r#"{{"message":{{"prefix":"watchkeeper.gap","content":"{content}"}},"source":{{"#);
    assert!(line.starts_with(&start), "{line}");
    assert!(line.contains(r#""db":"","table":"","#), "{line}");
    assert!(line.ends_with(r#""op":"m","ts_ms":0,"transaction":null}"#), "{line}");

    let expected = concat!(
        r#"{"specversion":"1.0","id":"gap:07","source":"/gap","type":"watchkeeper.gap","#,
        r#""datacontenttype":"application/json","data":{"cause":"history is gone"}}"#
    );
    assert_eq!(text(&CloudEvents, &gap()), expected);
}

#[test]
fn a_row_with_a_column_named_as_an_image_is_still_a_row() {
    let line = debezium(Operation::Insert, br#"{"after":"noon","n":1}"#);
    assert_eq!(line, envelope(r#""before":null,"after":{"after":"noon","n":1}"#, "c"));
    let line = debezium(Operation::Insert, br#"[1]"#);
    assert_eq!(line, envelope(r#""before":null,"after":[1]"#, "c"));
}

#[test]
fn the_halves_of_a_key_update_are_a_delete_and_an_insert_with_ids_of_their_own() {
    let old = RowParts { operation: Operation::Delete, committable: false, key: Some(b"old"), ..parts() };
    let new = RowParts { key: Some(b"new"), half: 1, body: br#"{"a":1}"#, ..parts() };
    let batch = Arc::new(batch(&[old, new]));
    let [first, second] = [0, 1].map(|row| Change::new(Arc::clone(&batch), row));
    for (half, id, op, subject) in [(&first, "log:07", "d", "old"), (&second, "log:07.1", "c", "new")] {
        let line = text(&Debezium, half);
        assert!(line.contains(&format!(r#""position":"07","id":"{id}"}},"op":"{op}""#)), "{line}");
        let event = text(&CloudEvents, half);
        assert!(event.contains(&format!(r#""id":"{id}""#)), "{event}");
        assert!(event.contains(&format!(r#""subject":"{subject}""#)), "{event}");
    }
}

#[test]
fn a_cloud_event_has_the_attributes_of_version_1() {
    let cases: [(Operation, &[u8], &str); 5] = [
        (Operation::Insert, br#"{"n":2}"#, r#"{"n":2}"#),
        (Operation::Update, br#"{"before":{"n":1},"after":{"n":2}}"#, r#"{"before":{"n":1},"after":{"n":2}}"#),
        (Operation::Replace, br#"{"n":2}"#, r#"{"n":2}"#),
        (Operation::Delete, b"null", "null"),
        (Operation::Read, br#"{"n":2}"#, r#"{"n":2}"#),
    ];
    for (operation, body, data) in cases {
        let expected = format!(
            concat!(
                r#"{{"specversion":"1.0","id":"log:07","source":"/log/shop.orders","type":"watchkeeper.{}","#,
                r#""time":"2023-11-14T22:13:20.007Z","subject":"k","datacontenttype":"application/json","data":{}}}"#
            ),
            operation, data
        );
        assert_eq!(text(&CloudEvents, &change(RowParts { operation, body, ..parts() })), expected);
    }
}

#[test]
fn a_cloud_event_of_a_barrier_has_neither_subject_nor_data() {
    let truncated = RowParts { operation: Operation::Truncate, key: None, body: b"", ..parts() };
    let expected = concat!(
        r#"{"specversion":"1.0","id":"log:07","source":"/log/shop.orders","type":"watchkeeper.truncate","#,
        r#""time":"2023-11-14T22:13:20.007Z"}"#
    );
    assert_eq!(text(&CloudEvents, &change(truncated)), expected);
}

#[test]
fn subjects_of_different_keys_never_look_alike() {
    let subject = |key: &[u8]| {
        let line = text(&CloudEvents, &change(RowParts { key: Some(key), ..parts() }));
        let event: serde_json::Value = serde_json::from_str(&line).expect("a line is JSON");
        event["subject"].as_str().map(str::to_owned)
    };
    let shown = |text: &str| Some(text.to_owned());
    assert_eq!(subject("Zoë ☃".as_bytes()), shown("Zoë ☃"));
    assert_eq!(subject(&[0, 0, 1]), shown("0x000001"));
    assert_eq!(subject(&[0xff]), shown("0xff"));
    assert_eq!(subject(b"0xff"), shown("0x30786666"));
    assert_eq!(subject(b""), None);
}

#[test]
fn unicode_comes_out_as_it_went_in_but_for_uris() {
    let body = r#"{"naïve":"☃ \u0000 \" 𝄞\n"}"#;
    let mut builder = BatchBuilder::new("läger 1".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace("shop.größen/a");
    builder.push(RowParts { namespace, body: body.as_bytes(), ..parts() });
    let change = Change::new(Arc::new(builder.finish(end())), 0);
    for format in format::NAMES.map(|name| format::named(name).expect("a listed name is known")) {
        let line = text(&*format, &change);
        assert!(line.contains(body), "{line}");
    }
    let line = text(&CloudEvents, &change);
    assert!(line.contains(r#""source":"/l%C3%A4ger%201/shop.gr%C3%B6%C3%9Fen%2Fa""#), "{line}");
    assert!(text(&Debezium, &change).contains(r#""db":"shop","table":"größen/a""#));
}

/// Whole events with names of their own for the images, as a source of documents has them.
#[derive(Debug)]
struct Events;

impl Payload for Events {
    fn get<'a>(&self, body: &'a [u8], path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        JsonPayload.get(body, path)
    }

    fn walk(&self, body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        JsonPayload.walk(body, visit)
    }

    fn is_whole_event(&self) -> bool {
        true
    }

    fn image(&self, body: &[u8], _operation: Operation, image: Image, visit: &mut dyn Visit) -> Result<bool> {
        let key = match image {
            Image::Before => "fullDocumentBeforeChange",
            Image::After => "fullDocument",
            Image::Difference => "updateDescription",
            Image::Added => "computed",
            other => panic!("{other:?} is not among these events"),
        };
        self.walk_field(body, key, visit)
    }
}

#[test]
fn a_payload_may_name_its_images_otherwise() {
    let body = br#"{"after":1,"updateDescription":{"updatedFields":{"n":2}},"fullDocument":{"fullDocument":{"n":2}},"computed":{"x":3}}"#;
    let mut builder = builder_of(Arc::new(Events));
    builder.push(RowParts { operation: Operation::Update, body, ..parts() });
    let change = Change::new(Arc::new(builder.finish(end())), 0);
    let images = concat!(
        r#""before":null,"after":{"fullDocument":{"n":2}},"updateDescription":{"updatedFields":{"n":2}},"#,
        r#""added":{"x":3}"#
    );
    assert_eq!(text(&Debezium, &change), envelope(images, "u"));
}

/// A row of the values that Debezium shows in another way than extended JSON.
#[derive(Debug)]
struct Values;

impl Payload for Values {
    fn get<'a>(&self, _body: &'a [u8], _path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        Ok(None)
    }

    fn walk(&self, _body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        visit.begin_document();
        for (key, value) in [
            ("unchanged", ValueRef::Unchanged),
            ("decimal", ValueRef::Decimal("1.10".into())),
            ("binary", ValueRef::Binary(0, b"foobar".into())),
            ("date", ValueRef::DateTime(-5)),
            ("oid", ValueRef::ObjectId([1; 12])),
        ] {
            visit.key(key);
            visit.value(value);
        }
        visit.end_document();
        Ok(())
    }
}

#[test]
fn debezium_shows_values_as_its_consumers_expect_them() {
    let mut builder = builder_of(Arc::new(Values));
    builder.push(parts());
    let change = Change::new(Arc::new(builder.finish(end())), 0);
    let after = concat!(
        r#"{"unchanged":"__debezium_unavailable_value","decimal":"1.10","binary":"Zm9vYmFy","date":-5,"#,
        r#""oid":{"$oid":"010101010101010101010101"}}"#
    );
    assert_eq!(text(&Debezium, &change), envelope(&format!(r#""before":null,"after":{after}"#), "c"));
}

#[test]
fn a_field_is_the_first_of_its_name_at_the_outermost_level_only() {
    let field = |body: &[u8], key: &str| {
        let mut out = Vec::new();
        let found = JsonPayload.walk_field(body, key, &mut JsonWriter::new(&mut out)).expect("the body is JSON");
        (found, String::from_utf8(out).expect("JSON is text"))
    };
    let body = br#"{"x":{"a":[{"a":0}]},"a":[{"a":1},[2]],"b":null,"a":3}"#;
    assert_eq!(field(body, "a"), (true, r#"[{"a":1},[2]]"#.to_owned()));
    assert_eq!(field(body, "b"), (true, "null".to_owned()));
    assert_eq!(field(body, "c"), (false, String::new()));
    assert_eq!(field(b"[{\"a\":1}]", "a"), (false, String::new()));
    assert_eq!(field(b"7", "a"), (false, String::new()));
}

#[test]
fn formats_are_found_by_the_names_that_they_give_themselves() {
    for name in format::NAMES {
        assert_eq!(format::named(name).map(|format| format.name()), Some(name));
    }
    assert!(format::named("avro").is_none());
}

#[test]
fn a_body_that_cannot_be_decoded_is_an_error_in_every_format() {
    let broken = change(RowParts { body: b"{\"a\":", ..parts() });
    for name in format::NAMES {
        let format = format::named(name).expect("a listed name is known");
        assert!(format.write(&broken, &mut Vec::new()).is_err(), "{name}");
    }
}

/// The names of all fields of a line, in order, with those of documents within it.
fn fields(line: &str) -> Vec<String> {
    fn collect(value: &serde_json::Value, path: &str, names: &mut Vec<String>) {
        for (name, inner) in value.as_object().into_iter().flatten() {
            let path = format!("{path}/{name}");
            collect(inner, &path, names);
            names.push(path);
        }
    }
    let mut names = Vec::new();
    collect(&serde_json::from_str(line).expect("a line is JSON"), "", &mut names);
    names
}

#[test]
fn the_lines_in_the_guide_have_the_fields_of_real_ones() {
    let guide = include_str!("../../../../docs/guide/formats.md");
    let body = br#"{"before":{"id":1,"item":"rope","amount":2},"after":{"id":1,"item":"rope","amount":3},"changed":["amount"]}"#;
    let update = change(RowParts { operation: Operation::Update, body, ..parts() });
    let examples: Vec<&str> = guide.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(examples.len(), format::NAMES.len(), "one example for each format");
    for (name, example) in format::NAMES.iter().zip(examples) {
        let format = format::named(name).expect("it is listed");
        assert_eq!(fields(example), fields(&text(&*format, &update)), "{name}");
        assert!(guide.contains(&format!("## {name}\n")), "{name} has a heading");
    }
}
