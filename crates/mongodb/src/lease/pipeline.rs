//! The rules of leases as update pipelines, so that the server decides by its own clock and in one step.
//!
//! A pipeline that leaves the document as it is writes nothing: asking for a lease that is held costs no write.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc, serialize_to_document};
use watchkeeper_core::{AcquireRequest, Error, Grant, Result};

use crate::client::number_bson;

/// All of a document that is as it should be, and the server's time beside it.
pub(super) fn seen() -> Document {
    let mut seen = sound();
    seen.insert("now", "$$NOW");
    seen
}

/// The fields of a lease, without those that someone edited into something else. A lease decides about nobody's writes, so what it
/// has lost counts as forgotten: the claim of the checkpoint answers with the newest epoch.
fn sound() -> Document {
    let is = |path: &str, kind: &str| doc! { "$eq": [{ "$type": path }, kind] };
    let only = |field: &str, condition: Document| doc! { "$cond": [condition, field, "$$REMOVE"] };
    doc! {
        "epoch": only("$epoch", doc! { "$isNumber": "$epoch" }),
        "holder": only("$holder", doc! { "$or": [is("$holder", "null"), is("$holder.tenure", "string")] }),
        "until": only("$until", is("$until", "date")),
        "previous": only("$previous", doc! { "$or": [
            is("$previous", "null"),
            { "$and": [is("$previous.candidate.tenure", "string"), { "$isNumber": "$previous.epoch" }] },
        ] }),
    }
}

/// Whose it is, exactly.
pub(super) fn held_by(grant: &Grant) -> Document {
    doc! {
        "_id": grant.key.as_str(),
        "holder.tenure": grant.tenure.to_string(),
        "epoch": number_bson(grant.epoch.0),
    }
}

fn millis(duration: Duration) -> Bson {
    Bson::Int64(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4))
}

pub(super) fn prolong(ttl: Duration) -> Vec<Document> {
    vec![doc! { "$set": { "until": { "$add": ["$$NOW", millis(ttl)] } } }]
}

pub(super) fn release() -> Vec<Document> {
    let story = doc! { "candidate": "$holder", "epoch": "$epoch", "ending": "released", "vacant_ms": Bson::Int64(0) };
    vec![doc! { "$set": { "previous": story, "holder": null_value(), "until": "$$NOW" } }]
}

/// A null that is a value: a bare one would be one too, but this cannot be mistaken for a missing field.
fn null_value() -> Document {
    doc! { "$literal": Bson::Null }
}

/// Grants, prolongs, or leaves as it is.
///
/// After what is no lease was taken away, the next stage looks (`ask.*`), others decide, and the last takes away what was noted.
pub(super) fn acquire(ask: &AcquireRequest) -> Result<Vec<Document>> {
    let candidate = serialize_to_document(&ask.candidate)
        .map_err(|error| Error::internal("a candidate cannot be stored").caused_by(error))?;
    let tenure = ask.candidate.tenure.to_string();
    let floor = number_bson(ask.floor.0);
    let expires = doc! { "$add": ["$$NOW", millis(ask.ttl)] };
    Ok(vec![
        doc! { "$set": sound() },
        doc! { "$set": { "ask": lease_state(&tenure, ask) } },
        doc! { "$set": { "ask.same": {
            "$and": ["$ask.alive", "$ask.own", { "$gt": ["$ask.epoch", floor.clone()] }]
        } } },
        doc! { "$set": { "ask.grant": {
            "$and": [{ "$not": ["$ask.same"] }, { "$or": [{ "$not": ["$ask.alive"] }, "$ask.own", "$ask.break"] }]
        } } },
        doc! { "$set": {
            "epoch": { "$cond": ["$ask.grant", { "$add": [{ "$max": ["$ask.epoch", floor] }, Bson::Int64(1)] }, "$epoch"] },
            "holder": { "$cond": ["$ask.grant", { "$literal": candidate }, "$holder"] },
            "until": { "$cond": [{ "$or": ["$ask.grant", "$ask.same"] }, expires, "$until"] },
            "previous": { "$cond": ["$ask.grant", previous(), "$previous"] },
        } },
        doc! { "$unset": "ask" },
    ])
}

/// What stands in the document: whether someone holds, who, and since when nobody does.
fn lease_state(tenure: &str, ask: &AcquireRequest) -> Document {
    let (broken_tenure, broken_epoch) = match &ask.break_holder {
        Some((tenure, epoch)) => (Bson::String(tenure.to_string()), number_bson(epoch.0)),
        None => (Bson::Null, Bson::Null),
    };
    let someone = doc! { "$ne": [{ "$ifNull": ["$holder", Bson::Null] }, Bson::Null] };
    doc! {
        "epoch": { "$ifNull": ["$epoch", Bson::Int64(0)] },
        "someone": someone.clone(),
        "alive": { "$and": [someone.clone(), { "$gt": ["$until", "$$NOW"] }] },
        "own": { "$eq": ["$holder.tenure", tenure] },
        "break": { "$and": [
            someone,
            { "$eq": ["$holder.tenure", broken_tenure] },
            { "$eq": ["$epoch", broken_epoch] },
        ] },
        "vacant_ms": { "$max": [Bson::Int64(0), { "$subtract": ["$$NOW", { "$ifNull": ["$until", "$$NOW"] }] }] },
    }
}

/// The tenure that a grant follows.
fn previous() -> Document {
    let story = |ending: &str, vacant: Bson| {
        doc! { "candidate": "$holder", "epoch": "$ask.epoch", "ending": ending, "vacant_ms": vacant }
    };
    let known = doc! { "$ne": [{ "$ifNull": ["$previous", Bson::Null] }, Bson::Null] };
    let released = doc! { "$mergeObjects": ["$previous", { "vacant_ms": "$ask.vacant_ms" }] };
    doc! { "$switch": {
        "branches": [
            { "case": { "$not": ["$ask.someone"] }, "then": { "$cond": [known, released, null_value()] } },
            { "case": { "$not": ["$ask.alive"] }, "then": story("expired", "$ask.vacant_ms".into()) },
            { "case": "$ask.break", "then": story("broken", Bson::Int64(0)) },
        ],
        // The same tenure above a higher floor: nobody came in between.
        "default": { "$ifNull": ["$previous", null_value()] },
    } }
}
