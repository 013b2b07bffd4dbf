//! The format `native`, byte for byte: consumers parse these lines.

use std::borrow::Cow;
use std::sync::Arc;

use watchkeeper_core::format::{Format, Native};
use watchkeeper_core::{Change, Operation, Payload, Result, RowParts, ValueRef, Visit};

use crate::support::{builder_of, change, end, parts};

/// A payload with one value of every kind, whatever the body is.
#[derive(Debug)]
struct EveryKind {
    whole_event: bool,
}

fn every_kind() -> Vec<(&'static str, ValueRef<'static>)> {
    vec![
        ("null", ValueRef::Null),
        ("unchanged", ValueRef::Unchanged),
        ("bool", ValueRef::Bool(true)),
        ("int32", ValueRef::Int32(-7)),
        ("int64", ValueRef::Int64(i64::MAX)),
        ("double", ValueRef::Double(1.0)),
        ("nan", ValueRef::Double(f64::NAN)),
        ("below", ValueRef::Double(f64::NEG_INFINITY)),
        ("above", ValueRef::Double(f64::INFINITY)),
        ("decimal", ValueRef::Decimal(Cow::Borrowed("1.10"))),
        ("text", ValueRef::Str(Cow::Borrowed("a \"b\"\n\u{e9}"))),
        ("binary", ValueRef::Binary(4, Cow::Borrowed(b"foobar"))),
        ("oid", ValueRef::ObjectId([0xab; 12])),
        ("date", ValueRef::DateTime(951_782_400_123)),
        ("before_1970", ValueRef::DateTime(-1)),
        ("timestamp", ValueRef::Timestamp(7, 8)),
        ("regex", ValueRef::Regex(Cow::Borrowed("^a\"b"), Cow::Borrowed("i"))),
        ("json", ValueRef::Json(Cow::Borrowed("{\"as\": \"is\"}"))),
        ("document", ValueRef::Document),
        ("array", ValueRef::Array),
    ]
}

impl Payload for EveryKind {
    fn get<'a>(&self, _body: &'a [u8], _path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        Ok(None)
    }

    fn walk(&self, _body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        visit.begin_document();
        for (key, value) in every_kind() {
            visit.key(key);
            visit.value(value);
        }
        visit.key("nested");
        visit.begin_array();
        visit.begin_document();
        visit.end_document();
        visit.begin_array();
        visit.value(ValueRef::Int32(1));
        visit.value(ValueRef::Int32(2));
        visit.end_array();
        visit.value(ValueRef::Null);
        visit.end_array();
        visit.end_document();
        Ok(())
    }

    fn is_whole_event(&self) -> bool {
        self.whole_event
    }
}

const EVERY_KIND: &str = concat!(
    r#"{"null":null,"unchanged":{"$unchanged":true},"bool":true,"int32":-7,"int64":9223372036854775807,"#,
    r#""double":1.0,"nan":{"$numberDouble":"NaN"},"below":{"$numberDouble":"-Infinity"},"#,
    r#""above":{"$numberDouble":"Infinity"},"decimal":{"$numberDecimal":"1.10"},"text":"a \"b\"\né","#,
    r#""binary":{"$binary":{"base64":"Zm9vYmFy","subType":"04"}},"oid":{"$oid":"abababababababababababab"},"#,
    r#""date":{"$date":"2000-02-29T00:00:00.123Z"},"before_1970":{"$date":{"$numberLong":"-1"}},"#,
    r#""timestamp":{"$timestamp":{"t":7,"i":8}},"#,
    r#""regex":{"$regularExpression":{"pattern":"^a\"b","options":"i"}},"json":{"as": "is"},"#,
    r#""document":{},"array":[],"nested":[{},[1,2],null]}"#,
);

fn native(change: &Change) -> String {
    let mut out = Vec::new();
    Native.write(change, &mut out).expect("the change can be written");
    String::from_utf8(out).expect("the format is text")
}

fn of(payload: EveryKind) -> Change {
    let mut builder = builder_of(Arc::new(payload));
    builder.push(parts());
    Change::new(Arc::new(builder.finish(end())), 0)
}

#[test]
fn every_kind_of_value_has_its_golden_form() {
    let line = native(&of(EveryKind { whole_event: false }));
    let envelope = concat!(
        r#"{"_id":"log:07","operationType":"insert","ns":"shop.orders","#,
        r#""wallTime":{"$date":"2023-11-14T22:13:20.007Z"},"document":"#,
    );
    assert_eq!(line, format!("{envelope}{EVERY_KIND}}}"));
    serde_json::from_str::<serde_json::Value>(&line).expect("a line is JSON");
}

#[test]
fn a_whole_event_is_written_as_it_came() {
    assert_eq!(native(&of(EveryKind { whole_event: true })), EVERY_KIND);
}

#[test]
fn a_barrier_without_a_body_has_a_null_document() {
    let line = native(&change(RowParts { operation: Operation::DropDatabase, key: None, body: b"", ..parts() }));
    let expected = concat!(
        r#"{"_id":"log:07","operationType":"dropDatabase","ns":"shop.orders","#,
        r#""wallTime":{"$date":"2023-11-14T22:13:20.007Z"},"document":null}"#,
    );
    assert_eq!(line, expected);
}

#[test]
fn the_halves_of_a_key_update_have_one_position_and_two_ids() {
    let delete = RowParts { operation: Operation::Delete, half: 0, committable: false, ..parts() };
    let insert = RowParts { key: Some(b"new"), half: 1, body: br#"{"a":1}"#, ..parts() };
    let batch = Arc::new(crate::support::batch(&[delete, insert]));
    let [first, second] = [0, 1].map(|row| Change::new(Arc::clone(&batch), row));
    assert!(native(&first).starts_with(r#"{"_id":"log:07","operationType":"delete""#), "{}", native(&first));
    assert!(native(&second).starts_with(r#"{"_id":"log:07.1","operationType":"insert""#), "{}", native(&second));
    assert!(native(&second).ends_with(r#""document":{"a":1}}"#), "{}", native(&second));
}

#[test]
fn a_change_is_appended_to_what_is_there() {
    let mut out = b"line\n".to_vec();
    Native.write(&change(parts()), &mut out).expect("the change can be written");
    assert!(out.starts_with(b"line\n{\"_id\":"));
}

#[test]
fn a_body_that_cannot_be_decoded_is_an_error() {
    let broken = change(RowParts { body: b"{\"a\":", ..parts() });
    assert!(Native.write(&broken, &mut Vec::new()).is_err());
}
