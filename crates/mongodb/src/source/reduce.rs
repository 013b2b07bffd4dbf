//! Events that cannot be told whole, told with what there is.
//!
//! An event may be larger than a server answers with, or lack an image that is required. Then the stream is read through stages
//! that leave out what does not fit, and name what is missing in the event's field `degraded`. Every other event passes
//! them as it is.

use mongodb::bson::{Bson, Document, doc};

use super::pipeline::{ASIDE, kept, stages_keeping};
use super::view::{Before, Shown, View};

/// The largest sum of an event's fields that surely makes an answer: the server's limit of 16 MiB and 16 KiB, less room for the
/// names of the fields.
const FIELDS_BYTES_MAX: i32 = 16 * 1024 * 1024 + 12 * 1024;

/// What names a change, and stays in the largest event.
const NAMING: [&str; 12] = [
    "_id",
    "operationType",
    "clusterTime",
    "wallTime",
    "ns",
    "nsType",
    "to",
    "documentKey",
    "collectionUUID",
    "txnNumber",
    "lsid",
    ASIDE,
];

/// The key of an event, which is left out only where what names the change is too large by itself.
const KEY: &str = "documentKey";

const BEFORE: &str = "fullDocumentBeforeChange";
const AFTER: &str = "fullDocument";
const DIFFERENCE: &str = "updateDescription";

/// The view and the stages behind its `$changeStream` that show every event, if need be reduced. Something is always kept aside.
pub(super) fn reduced(view: &View) -> (View, Vec<Document>) {
    let mut aside = kept();
    aside.insert("missing", missing(view));
    let mut stages = stages_keeping(view, Some(aside));
    stages.extend(leave_out());
    let mut view = view.clone();
    if view.full_document == Shown::Required {
        view.full_document = Shown::WhenAvailable;
    }
    if view.full_document_before_change == Before::Required {
        view.full_document_before_change = Before::WhenAvailable;
    }
    (view, stages)
}

/// The names of required images that an event lacks.
fn missing(view: &View) -> Document {
    let lacks = |image: &str, operations: &[&str]| {
        let none = doc! { "$eq": [{ "$ifNull": [format!("${image}"), null] }, null] };
        let concerned = doc! { "$and": [{ "$in": ["$operationType", operations] }, none] };
        doc! { "$cond": [concerned, [image], []] }
    };
    let mut images = Vec::new();
    if view.full_document == Shown::Required {
        images.push(lacks(AFTER, &["update"]));
    }
    if view.full_document_before_change == Before::Required {
        images.push(lacks(BEFORE, &["update", "replace", "delete"]));
    }
    doc! { "$concatArrays": images }
}

/// Stages that leave out what does not fit, and name it together with the missing images.
fn leave_out() -> [Document; 4] {
    // One by one: all fields together may be larger than what can be measured.
    let sizes = doc! { "$map": {
        "input": { "$objectToArray": "$$ROOT" }, "as": "field",
        "in": { "name": "$$field.k", "bytes": { "$bsonSize": { "v": "$$field.v" } } },
    } };
    let names = |condition: Document| {
        let some = doc! { "$filter": { "input": "$$sizes", "as": "size", "cond": condition } };
        doc! { "$map": { "input": some, "as": "size", "in": "$$size.name" } }
    };
    let named = |any: &[&str]| doc! { "$in": ["$$size.name", any] };
    let but_for = |any: &[&str]| doc! { "$not": [named(any)] };
    let fits = |condition: Bson| {
        let some = doc! { "$filter": { "input": "$$sizes", "as": "size", "cond": condition } };
        let bytes = doc! { "$map": { "input": some, "as": "size", "in": "$$size.bytes" } };
        doc! { "$lte": [{ "$sum": bytes }, FIELDS_BYTES_MAX] }
    };
    let but_for_key = doc! { "$concatArrays": [names(but_for(&NAMING)), [KEY]] };
    let choice = doc! { "$switch": {
        "branches": [
            { "case": fits(Bson::Boolean(true)), "then": [] },
            { "case": fits(but_for(&[BEFORE]).into()), "then": names(named(&[BEFORE])) },
            { "case": fits(but_for(&[BEFORE, DIFFERENCE]).into()), "then": names(named(&[BEFORE, DIFFERENCE])) },
        ],
        "default": { "$cond": [fits(named(&NAMING).into()), names(but_for(&NAMING)), but_for_key] },
    } };
    let left_out = doc! { "$let": { "vars": { "sizes": sizes }, "in": choice } };
    let all = doc! { "$setUnion": [format!("${ASIDE}.missing"), format!("${ASIDE}.left")] };
    // A field of that name which a pipeline has added stays, as long as nothing is missing.
    let degraded = doc! { "$cond": [{ "$eq": [all.clone(), []] }, "$degraded", all] };
    let stays = doc! { "$not": [{ "$in": ["$$field.k", format!("${ASIDE}.left")] }] };
    let rest = doc! { "$filter": { "input": { "$objectToArray": "$$ROOT" }, "as": "field", "cond": stays } };
    let lacks_key = doc! { "$in": [KEY, format!("${ASIDE}.left")] };
    let kept_key = doc! { "$cond": [lacks_key, "$$REMOVE", format!("${ASIDE}.k")] };
    [
        doc! { "$addFields": { ASIDE: { "left": left_out } } },
        doc! { "$addFields": { ASIDE: { "k": kept_key } } },
        doc! { "$replaceWith": { "$arrayToObject": rest } },
        doc! { "$addFields": { "degraded": degraded } },
    ]
}
