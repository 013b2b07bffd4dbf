//! Lazy payloads, on bodies that are JSON.

use std::borrow::Cow;

use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{ErrorKind, Payload, RowParts, ValueRef, Visit};

use crate::support::{change, parts};

const BODY: &[u8] = br#"{"z":1,"a":{"list":[true,null,{"deep":"x"}]},"real":1.5,"huge":18446744073709551615}"#;

fn get(path: &[&str]) -> Option<ValueRef<'static>> {
    JsonPayload.get(BODY, path).expect("the body is JSON")
}

#[test]
fn a_path_leads_through_documents_and_arrays() {
    assert_eq!(get(&["z"]), Some(ValueRef::Int64(1)));
    assert_eq!(get(&["real"]), Some(ValueRef::Double(1.5)));
    assert_eq!(get(&["a", "list", "0"]), Some(ValueRef::Bool(true)));
    assert_eq!(get(&["a", "list", "1"]), Some(ValueRef::Null));
    assert_eq!(get(&["a", "list", "2", "deep"]), Some(ValueRef::Str(Cow::Borrowed("x"))));
    assert_eq!(get(&["a"]), Some(ValueRef::Document));
    assert_eq!(get(&["a", "list"]), Some(ValueRef::Array));
    assert_eq!(get(&[]), Some(ValueRef::Document));
}

#[test]
fn a_number_beyond_64_bits_with_sign_keeps_its_digits() {
    assert_eq!(get(&["huge"]), Some(ValueRef::Decimal(Cow::Borrowed("18446744073709551615"))));
}

#[test]
fn a_path_that_leads_nowhere_gives_nothing() {
    for path in [&["b"][..], &["a", "list", "3"], &["a", "list", "first"], &["z", "deeper"]] {
        assert_eq!(get(path), None, "{path:?}");
    }
}

#[test]
fn a_change_decodes_its_own_body() {
    let change = change(RowParts { body: BODY, ..parts() });
    assert_eq!(change.get(&["a", "list", "2", "deep"]).expect("JSON"), Some(ValueRef::Str(Cow::Borrowed("x"))));
}

/// Writes down what it visits, a word per part.
#[derive(Default)]
struct Words(Vec<String>);

impl Visit for Words {
    fn value(&mut self, value: ValueRef<'_>) {
        self.0.push(format!("{value:?}"));
    }
    fn begin_document(&mut self) {
        self.0.push("{".to_owned());
    }
    fn key(&mut self, key: &str) {
        self.0.push(format!("{key}:"));
    }
    fn end_document(&mut self) {
        self.0.push("}".to_owned());
    }
    fn begin_array(&mut self) {
        self.0.push("[".to_owned());
    }
    fn end_array(&mut self) {
        self.0.push("]".to_owned());
    }
}

fn walked(body: &[u8]) -> String {
    let mut words = Words::default();
    JsonPayload.walk(body, &mut words).expect("the body is JSON");
    words.0.join(" ")
}

#[test]
fn a_walk_keeps_the_order_of_the_body() {
    let expected = r#"{ z: Int64(1) a: { list: [ Bool(true) Null { deep: Str("x") } ] } real: Double(1.5) huge: Json("18446744073709551615") }"#;
    assert_eq!(walked(BODY), expected);
}

#[test]
fn a_body_may_be_a_single_value() {
    assert_eq!(walked(b"-3"), "Int64(-3)");
    assert_eq!(walked(br#""a\u0041""#), r#"Str("aA")"#);
    assert_eq!(walked(b" [ ] "), "[ ]");
}

#[test]
fn a_walk_keeps_every_digit_of_a_number() {
    let body = br#"[1.50,-0,1e5,12345678901234567890123456789.10,1e999,0.1,-9223372036854775808]"#;
    let reported = r#"[ Json("1.50") Json("-0") Json("1e5") Json("12345678901234567890123456789.10") Json("1e999") Double(0.1) Int64(-9223372036854775808) ]"#;
    assert_eq!(walked(body), reported);
}

#[test]
fn signs_of_json_inside_of_text_are_text() {
    let body = br#"{"a\\":"}{][,:","\"b":{"":"\\\""},"c":["\u007d",{}]}"#;
    assert_eq!(walked(body), r#"{ a\: Str("}{][,:") "b: { : Str("\\\"") } c: [ Str("}") { } ] }"#);
}

#[test]
fn what_is_not_json_is_corrupt() {
    let deep = ["[".repeat(128), "]".repeat(128)].concat();
    for body in [&b"{\"a\":"[..], b"{} trailing", b"", b"\xff", b"\"\xff\"", b"\"\\ud800\"", deep.as_bytes()] {
        let walked = JsonPayload.walk(body, &mut Words::default()).expect_err("not JSON");
        assert_eq!(walked.kind(), ErrorKind::Corrupt, "{body:?}");
        assert_eq!(JsonPayload.get(body, &["a"]).expect_err("not JSON").kind(), ErrorKind::Corrupt, "{body:?}");
    }
}
