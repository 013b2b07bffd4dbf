//! The order that a server keeps values of mixed types in, in an index without a collation.

use std::cmp::Ordering;

use mongodb::bson::{RawBsonRef, RawDocument};

use crate::payload::Decimal;

/// The place of a type among the others; numbers share one, and so do texts and symbols.
fn rank(value: &RawBsonRef<'_>) -> u8 {
    match value {
        RawBsonRef::MinKey => 0,
        RawBsonRef::Undefined => 1,
        RawBsonRef::Null => 2,
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => 3,
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => 4,
        RawBsonRef::Document(_) => 5,
        RawBsonRef::Array(_) => 6,
        RawBsonRef::Binary(_) => 7,
        RawBsonRef::ObjectId(_) => 8,
        RawBsonRef::Boolean(_) => 9,
        RawBsonRef::DateTime(_) => 10,
        RawBsonRef::Timestamp(_) => 11,
        RawBsonRef::RegularExpression(_) => 12,
        RawBsonRef::DbPointer(_) => 13,
        RawBsonRef::JavaScriptCode(_) => 14,
        RawBsonRef::JavaScriptCodeWithScope(_) => 15,
        RawBsonRef::MaxKey => 16,
    }
}

/// Which of two values comes first; `None` for types that no `_id` has in practice.
pub(super) fn compare(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Option<Ordering> {
    let ranks = rank(&a).cmp(&rank(&b));
    if ranks != Ordering::Equal {
        return Some(ranks);
    }
    Some(match (a, b) {
        (RawBsonRef::MinKey | RawBsonRef::MaxKey | RawBsonRef::Null | RawBsonRef::Undefined, _) => Ordering::Equal,
        (RawBsonRef::ObjectId(a), RawBsonRef::ObjectId(b)) => a.bytes().cmp(&b.bytes()),
        (RawBsonRef::Boolean(a), RawBsonRef::Boolean(b)) => a.cmp(&b),
        (RawBsonRef::DateTime(a), RawBsonRef::DateTime(b)) => a.cmp(&b),
        (RawBsonRef::Timestamp(a), RawBsonRef::Timestamp(b)) => a.cmp(&b),
        (RawBsonRef::Binary(a), RawBsonRef::Binary(b)) => {
            let parts = |binary: mongodb::bson::RawBinaryRef<'_>| (binary.bytes.len(), u8::from(binary.subtype));
            parts(a).cmp(&parts(b)).then_with(|| a.bytes.cmp(b.bytes))
        }
        (RawBsonRef::RegularExpression(a), RawBsonRef::RegularExpression(b)) => {
            (a.pattern.as_str(), a.options.as_str()).cmp(&(b.pattern.as_str(), b.options.as_str()))
        }
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) => return documents(a, b),
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            let whole = |bytes| RawDocument::from_bytes(bytes).ok();
            return documents(whole(a.as_bytes())?, whole(b.as_bytes())?);
        }
        (a, b) => match (Decimal::of(a), Decimal::of(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => text(a)?.cmp(text(b)?),
        },
    })
}

fn text(value: RawBsonRef<'_>) -> Option<&str> {
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) => Some(text),
        _ => None,
    }
}

/// Field by field: types first, then names, then values. Who ends first is less.
fn documents(a: &RawDocument, b: &RawDocument) -> Option<Ordering> {
    let (mut a, mut b) = (a.iter(), b.iter());
    loop {
        let ((name_a, value_a), (name_b, value_b)) = match (a.next(), b.next()) {
            (None, None) => return Some(Ordering::Equal),
            (None, Some(_)) => return Some(Ordering::Less),
            (Some(_), None) => return Some(Ordering::Greater),
            (Some(a), Some(b)) => (a.ok()?, b.ok()?),
        };
        let heads = (rank(&value_a), name_a.as_str()).cmp(&(rank(&value_b), name_b.as_str()));
        match heads {
            Ordering::Equal => match compare(value_a, value_b)? {
                Ordering::Equal => {}
                order => return Some(order),
            },
            order => return Some(order),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime, Decimal128, RawDocumentBuf, doc, oid::ObjectId};

    use super::*;

    fn decimal(digits: &str) -> Bson {
        digits.parse::<Decimal128>().expect("a decimal number").into()
    }

    fn order(a: &Bson, b: &Bson) -> Option<Ordering> {
        let raw = |value: &Bson| RawDocumentBuf::try_from(&doc! { "_id": value.clone() }).expect("a document");
        let (a, b) = (raw(a), raw(b));
        let value = |raw: &RawDocumentBuf| raw.get("_id").expect("BSON").is_some();
        assert!(value(&a) && value(&b));
        compare(a.get("_id").ok()??, b.get("_id").ok()??)
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
