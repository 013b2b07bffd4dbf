//! Changes as types of their user.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use watchkeeper_core::decode::Unchangeable;
use watchkeeper_core::{Change, ErrorKind, Operation, Payload, Result, RowParts, ValueRef, Visit};

use crate::support::{builder_of, change, end, parts};

#[derive(Debug, PartialEq, Deserialize)]
struct Order {
    id: i64,
    item: String,
    #[serde(default)]
    price: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
}

fn json(operation: Operation, body: &'static str) -> Change {
    change(RowParts { operation, body: body.as_bytes(), ..parts() })
}

/// A payload whose row is whatever a test visits.
#[derive(Debug)]
struct Fixed(Vec<(&'static str, ValueRef<'static>)>);

impl Payload for Fixed {
    fn get<'a>(&self, _body: &'a [u8], _path: &[&str]) -> Result<Option<ValueRef<'a>>> {
        Ok(None)
    }

    fn walk(&self, _body: &[u8], visit: &mut dyn Visit) -> Result<()> {
        visit.begin_document();
        for (key, value) in &self.0 {
            visit.key(key);
            visit.value(value.clone());
        }
        visit.end_document();
        Ok(())
    }
}

fn fixed(fields: Vec<(&'static str, ValueRef<'static>)>) -> Change {
    let mut builder = builder_of(Arc::new(Fixed(fields)));
    builder.push(parts());
    Change::new(Arc::new(builder.finish(end())), 0)
}

#[test]
fn a_row_is_read_as_a_struct() {
    let order: Order = json(Operation::Insert, r#"{"id":7,"item":"rope","price":1.20,"tags":["a","b"],"more":{}}"#)
        .after()
        .expect("it fits")
        .expect("an insert has an image");
    let price = Some("1.20".to_owned());
    assert_eq!(order, Order { id: 7, item: "rope".to_owned(), price, tags: vec!["a".to_owned(), "b".to_owned()] });
}

#[test]
fn a_decimal_is_the_same_from_json_digits_and_from_a_decimal_column() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Amounts {
        text: String,
        float: f64,
        whole: u32,
    }
    let expected = Amounts { text: "1.20".to_owned(), float: 1.2, whole: 3 };
    let log = json(Operation::Insert, r#"{"text":1.20,"float":1.20,"whole":3.00}"#);
    let decimal = |digits| ValueRef::Decimal(Cow::Borrowed(digits));
    let typed = fixed(vec![("text", decimal("1.20")), ("float", decimal("1.20")), ("whole", decimal("3.00"))]);
    assert_eq!(log.after::<Amounts>().expect("it fits"), Some(expected));
    assert_eq!(typed.after::<Amounts>().expect("it fits").map(|amounts| amounts.text).as_deref(), Some("1.20"));
}

#[test]
fn bytes_are_bytes_in_every_form_that_sources_have() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Blob {
        blob: Vec<u8>,
    }
    let expected = Some(Blob { blob: vec![0, 255, 16] });
    let binary = fixed(vec![("blob", ValueRef::Binary(0, Cow::Borrowed(&[0, 255, 16])))]);
    for change in [
        binary,
        json(Operation::Insert, r#"{"blob":"\\x00ff10"}"#),
        json(Operation::Insert, r#"{"blob":{"$hex":"00FF10"}}"#),
    ] {
        assert_eq!(change.after::<Blob>().expect("it fits"), expected);
    }
}

#[test]
fn values_of_documents_have_a_form_that_types_read() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Document {
        _id: String,
        at: String,
        millis: i64,
        stamp: BTreeMap<String, u32>,
        nested: serde_json::Value,
        large: Unchangeable<Option<String>>,
        small: Unchangeable<Option<String>>,
    }
    let document = fixed(vec![
        ("_id", ValueRef::ObjectId([0x65; 12])),
        ("at", ValueRef::DateTime(951_782_400_123)),
        ("millis", ValueRef::DateTime(951_782_400_123)),
        ("stamp", ValueRef::Timestamp(7, 2)),
        ("nested", ValueRef::Json(Cow::Borrowed(r#"{"a":[1,2.50,0.12345678901234567890]}"#))),
        ("large", ValueRef::Unchanged),
        ("small", ValueRef::Null),
    ]);
    let read: Document = document.after().expect("it fits").expect("it has an image");
    assert_eq!(read._id, "65".repeat(12));
    assert_eq!((read.at.as_str(), read.millis), ("2000-02-29T00:00:00.123Z", 951_782_400_123));
    assert_eq!(read.stamp, BTreeMap::from([("t".to_owned(), 7), ("i".to_owned(), 2)]));
    assert_eq!(read.nested, serde_json::json!({ "a": [1, 2.5, "0.12345678901234567890"] }));
    assert_eq!((read.large, read.small), (Unchangeable::Unchanged, Unchangeable::Value(None)));
}

#[test]
fn enums_and_newtypes_are_read() {
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum State {
        Open,
        Closed,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    struct Id(u64);
    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        id: Id,
        state: State,
    }
    let row = json(Operation::Insert, r#"{"id":1,"state":"closed"}"#).after::<Row>().expect("it fits");
    assert_eq!(row, Some(Row { id: Id(1), state: State::Closed }));
    let refused = json(Operation::Insert, r#"{"id":1,"state":"lost"}"#).after::<Row>().expect_err("no such state");
    assert!(refused.to_string().contains("state: unknown variant `lost`"), "{refused}");
}

#[test]
fn what_does_not_fit_names_the_change_and_the_field() {
    #[derive(Debug, Deserialize)]
    struct Cart {
        #[expect(dead_code, reason = "it is never read")]
        items: Vec<Order>,
    }
    let body = r#"{"items":[{"id":1,"item":"rope"},{"id":"x","item":"lamp"}]}"#;
    let error = json(Operation::Insert, body).after::<Cart>().expect_err("x is no number");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("change log:07 of shop.orders") && text.contains("items[1].id: invalid type"), "{text}");
    let null = json(Operation::Insert, r#"{"id":null,"item":"rope"}"#).after::<Order>().expect_err("an id is no null");
    assert!(null.to_string().contains("id: it is null, expected i64; an Option takes both"), "{null}");
}

#[test]
fn numbers_that_a_type_cannot_hold_are_refused() {
    #[derive(Debug, Deserialize)]
    struct Small {
        #[expect(dead_code, reason = "it is never read")]
        n: u8,
    }
    for body in [r#"{"n":256}"#, r#"{"n":-1}"#, r#"{"n":1.5}"#, r#"{"n":18446744073709551616}"#] {
        json(Operation::Insert, body).after::<Small>().expect_err(body);
    }
}

#[test]
fn a_delete_has_the_row_before_and_none_after() {
    let gone = json(Operation::Delete, r#"{"id":7,"item":"rope"}"#);
    assert_eq!(gone.after::<Order>().expect("nothing to decode"), None);
    assert_eq!(gone.before::<Order>().expect("it fits").map(|order| order.id), Some(7));
}

#[test]
fn an_update_is_the_difference_of_its_images() {
    let body = r#"{"before":{"id":7,"item":"rope","old":1},"after":{"id":7,"item":"lamp"}}"#;
    let update = json(Operation::Update, body).update::<BTreeMap<String, String>>().expect("it fits");
    let update = update.expect("both images are there");
    assert_eq!(update.set, BTreeMap::from([("item".to_owned(), "lamp".to_owned())]));
    assert_eq!(update.removed, ["old"]);
    let alone = json(Operation::Update, r#"{"id":7}"#);
    assert_eq!(alone.update::<BTreeMap<String, String>>().expect("nothing to decode"), None);
}

#[test]
fn the_payload_is_shown_as_json() {
    let shown = fixed(vec![("id", ValueRef::Int32(7)), ("at", ValueRef::DateTime(0))]).json().expect("it is readable");
    assert_eq!(shown, r#"{"id":7,"at":{"$date":"1970-01-01T00:00:00.000Z"}}"#);
    assert_eq!(json(Operation::Truncate, "").json().expect("there is nothing to read"), "null");
}

#[test]
fn a_value_that_was_not_sent_is_an_error_and_no_missing_one() {
    #[derive(Debug, Deserialize)]
    struct Article {
        #[serde(default)]
        text: Option<String>,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    struct Title {
        id: i64,
    }
    let article = || fixed(vec![("id", ValueRef::Int64(1)), ("text", ValueRef::Unchanged)]);
    let answer = article().after::<Article>().map(|article| article.map(|article| article.text));
    let error = answer.expect_err("it is not known");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("text: the source did not send this value"), "{error}");
    assert!(error.advice().is_some_and(|advice| advice.contains("REPLICA IDENTITY FULL")), "{error}");
    article().after::<BTreeMap<String, Option<String>>>().expect_err("a map would lack it without a word");
    assert_eq!(article().after::<Title>().expect("it asks for nothing else"), Some(Title { id: 1 }));
}
