//! The order that a server keeps values of mixed types in, in an index without a collation.

use std::cmp::Ordering;

use mongodb::bson::{Decimal128, RawBsonRef};

use crate::payload::Decimal;
use crate::payload::scan::{Field, Fields};

/// The place of a type among the others; numbers share one, and so do texts and symbols. Types are numbered as BSON does it.
fn rank(kind: u8) -> u8 {
    match kind {
        0xff => 0,
        0x06 => 1,
        0x0a => 2,
        0x01 | 0x10 | 0x12 | 0x13 => 3,
        0x02 | 0x0e => 4,
        0x03 => 5,
        0x04 => 6,
        0x05 => 7,
        0x07 => 8,
        0x08 => 9,
        0x09 => 10,
        0x11 => 11,
        0x0b => 12,
        0x0c => 13,
        0x0d => 14,
        0x0f => 15,
        // The largest of all values; fields have no other types.
        _ => 16,
    }
}

/// Which of two values comes first, by their bytes, since servers also store what the driver makes no value of; `None` for bytes that
/// are no value of their type.
pub(super) fn compare(a: &Field<'_>, b: &Field<'_>) -> Option<Ordering> {
    let ranks = rank(a.kind).cmp(&rank(b.kind));
    if ranks != Ordering::Equal {
        return Some(ranks);
    }
    Some(match rank(a.kind) {
        0..=2 | 16 => Ordering::Equal,
        3 => number(a)?.cmp(&number(b)?),
        4 => text(a)?.cmp(text(b)?),
        5 | 6 => return documents(a.value, b.value),
        7 => binary(a)?.cmp(&binary(b)?),
        // Identities, and true or false.
        8 | 9 => a.value.cmp(b.value),
        10 => a.millis()?.cmp(&b.millis()?),
        11 => time(a)?.cmp(&time(b)?),
        12 => expression(a)?.cmp(&expression(b)?),
        // A pointer has a length as texts have it, a name and an identity.
        13 => (a.value.len(), a.value).cmp(&(b.value.len(), b.value)),
        14 => text(a)?.cmp(text(b)?),
        15 => return scoped(a, b),
        _ => return None,
    })
}

/// Code with a scope: the code first, then the scope.
fn scoped(a: &Field<'_>, b: &Field<'_>) -> Option<Ordering> {
    let ((code_of_a, scope_of_a), (code_of_b, scope_of_b)) = (code_and_scope(a)?, code_and_scope(b)?);
    match code_of_a.cmp(code_of_b) {
        Ordering::Equal => documents(scope_of_a, scope_of_b),
        order => Some(order),
    }
}

/// The text of code with a scope, and the document that is its scope.
fn code_and_scope<'a>(field: &Field<'a>) -> Option<(&'a [u8], &'a [u8])> {
    // The length of all of it comes first, then that of the code.
    let (length, rest) = field.value.get(4..)?.split_first_chunk()?;
    let (code, scope) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((code.strip_suffix(&[0])?, scope))
}

fn number(field: &Field<'_>) -> Option<Decimal> {
    let value = match (field.kind, field.integer()) {
        (_, Some(whole)) => RawBsonRef::Int64(whole),
        (0x01, _) => RawBsonRef::Double(f64::from_le_bytes(field.value.try_into().ok()?)),
        _ => RawBsonRef::Decimal128(Decimal128::from_bytes(field.value.try_into().ok()?)),
    };
    Decimal::of(value)
}

/// The bytes of a text or a symbol.
fn text<'a>(field: &Field<'a>) -> Option<&'a [u8]> {
    match field.value {
        [_, _, _, _, text @ .., 0] => Some(text),
        _ => None,
    }
}

/// Length, subtype and content.
fn binary<'a>(field: &Field<'a>) -> Option<(usize, u8, &'a [u8])> {
    match field.value {
        [_, _, _, _, subtype, content @ ..] => Some((content.len(), *subtype, content)),
        _ => None,
    }
}

/// Seconds and increment.
fn time(field: &Field<'_>) -> Option<u64> {
    field.value.try_into().ok().map(u64::from_le_bytes)
}

/// Pattern and options.
fn expression<'a>(field: &Field<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let mut parts = field.value.split(|byte| *byte == 0);
    Some((parts.next()?, parts.next()?))
}

/// Field by field: types first, then names, then values. Who ends first is less.
fn documents(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let (mut a, mut b) = (Fields::of(a).ok()?, Fields::of(b).ok()?);
    loop {
        let (a, b) = match (a.next(), b.next()) {
            (None, None) => return Some(Ordering::Equal),
            (None, Some(_)) => return Some(Ordering::Less),
            (Some(_), None) => return Some(Ordering::Greater),
            (Some(a), Some(b)) => (a.ok()?, b.ok()?),
        };
        match (rank(a.kind), a.name).cmp(&(rank(b.kind), b.name)) {
            Ordering::Equal => match compare(&a, &b)? {
                Ordering::Equal => {}
                order => return Some(order),
            },
            order => return Some(order),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{
        Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, RawDocumentBuf, doc, oid::ObjectId,
    };

    use super::*;

    fn code(text: &str) -> Bson {
        Bson::JavaScriptCode(text.to_owned())
    }

    fn scoped_code(text: &str, scope: Document) -> Bson {
        Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code: text.to_owned(), scope })
    }

    fn pointer(name: &str, last: u8) -> Bson {
        let id = ObjectId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]).to_hex();
        let pointer = serde_json::json!({ "$dbPointer": { "$ref": name, "$id": { "$oid": id } } });
        serde_json::from_value(pointer).expect("a pointer")
    }

    fn decimal(digits: &str) -> Bson {
        digits.parse::<Decimal128>().expect("a decimal number").into()
    }

    fn order(a: &Bson, b: &Bson) -> Option<Ordering> {
        let raw = |value: &Bson| RawDocumentBuf::try_from(&doc! { "_id": value.clone() }).expect("a document");
        let (a, b) = (raw(a), raw(b));
        compare(&id(a.as_bytes()), &id(b.as_bytes()))
    }

    fn id(document: &[u8]) -> Field<'_> {
        Fields::of(document).and_then(|fields| fields.find(b"_id")).expect("BSON").expect("it is there")
    }

    #[test]
    fn texts_that_are_no_utf8_are_ordered_by_their_bytes() {
        let spoilt = |value: Bson| {
            let document = RawDocumentBuf::try_from(&doc! { "_id": value }).expect("a document");
            document.into_bytes().into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect::<Vec<u8>>()
        };
        let ascending = ["a", "z", "z?", "?", "?a", "??"];
        for of in [Bson::from, |text: &str| Bson::from(doc! { "a": text })] {
            for (n, a) in ascending.iter().enumerate() {
                for (m, b) in ascending.iter().enumerate() {
                    let (a, b) = (spoilt(of(a)), spoilt(of(b)));
                    assert_eq!(compare(&id(&a), &id(&b)), Some(n.cmp(&m)));
                }
            }
        }
    }

    #[test]
    fn values_are_ordered_as_a_server_orders_them() {
        let ascending = [
            Bson::MinKey,
            Bson::Null,
            Bson::Double(f64::NAN),
            Bson::Double(f64::NEG_INFINITY),
            decimal("-1E+40"),
            Bson::Int64(-7),
            Bson::Double(-0.5),
            Bson::Int32(0),
            decimal("0.1"),
            Bson::Double(0.1),
            Bson::Int32(1),
            Bson::Double(1.5),
            Bson::Int64(10),
            Bson::Int64(9_007_199_254_740_993),
            Bson::Double(1e300),
            decimal("Infinity"),
            Bson::from("Z"),
            Bson::from("a"),
            Bson::from("aa"),
            doc! { "a": 1 }.into(),
            doc! { "a": 1, "b": 1 }.into(),
            doc! { "b": 0 }.into(),
            doc! { "a": "x" }.into(),
            ObjectId::from_bytes([1; 12]).into(),
            ObjectId::from_bytes([2; 12]).into(),
            Bson::Boolean(false),
            Bson::Boolean(true),
            DateTime::from_millis(-1).into(),
            DateTime::from_millis(1).into(),
            pointer("z", 9),
            pointer("db.a", 1),
            pointer("db.a", 2),
            pointer("db.b", 1),
            code(""),
            code("f()"),
            code("f(1)"),
            scoped_code("f()", doc! {}),
            scoped_code("f()", doc! { "x": 1 }),
            scoped_code("f()", doc! { "x": code("g()") }),
            scoped_code("g()", doc! {}),
            Bson::MaxKey,
        ];
        for (n, a) in ascending.iter().enumerate() {
            for (m, b) in ascending.iter().enumerate() {
                assert_eq!(order(a, b), Some(n.cmp(&m)), "{a} against {b}");
            }
        }
        assert_eq!(order(&Bson::Int32(1), &decimal("1.00")), Some(Ordering::Equal));
    }
}
