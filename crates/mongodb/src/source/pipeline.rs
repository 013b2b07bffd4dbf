//! The stages that a server applies: the user's, made so that nothing is lost that the stream needs.
//!
//! * `invalidate` passes every `$match`: without it a stream on a dropped collection would end without a word.
//! * Operation, namespace and key are kept aside under one name when a stage may drop them, and are taken out again before
//!   anyone sees the event.
//! * What Watchkeeper itself writes is left out of streams on a whole database or cluster, which would else feed on their own
//!   checkpoints for ever.

use mongodb::bson::{Bson, Decimal128, Document, doc};
use watchkeeper_core::{Error, Result};

use super::view::{Before, Scope, Shown, View};
use crate::client::STORED_IN;
use crate::payload::OF_EVENTS;

/// Where operation (`o`), namespace (`n`), key (`k`) and wall time (`w`) are kept aside.
pub(crate) const ASIDE: &str = "_watchkeeper";

/// What no event may lack, unless it is kept aside.
const NEEDED: [&str; 3] = ["operationType", "ns", "documentKey"];

/// The stages behind `$changeStream`, and whether something is kept aside in the events.
pub(crate) fn stages(view: &View) -> (Vec<Document>, bool) {
    let aside = view.pipeline.iter().any(may_drop);
    (stages_keeping(view, aside.then(kept)), aside)
}

/// What is kept aside of an event.
pub(super) fn kept() -> Document {
    doc! { "o": "$operationType", "n": "$ns", "k": "$documentKey", "w": "$wallTime" }
}

/// The stages behind `$changeStream`, with this kept aside in the events.
pub(super) fn stages_keeping(view: &View, kept: Option<Document>) -> Vec<Document> {
    let (mut stages, aside) = (Vec::new(), kept.is_some());
    if let Scope::Collections(names) = &view.scope
        && names.len() > 1
    {
        stages.push(namespaces(names));
    }
    if let Some(kept) = kept {
        stages.push(doc! { "$addFields": { ASIDE: kept } });
    }
    let invalidates = view.scope != Scope::Cluster;
    stages.extend(view.pipeline.iter().map(|stage| kept_whole(stage, aside, invalidates)));
    stages
}

/// The specification of `$changeStream`, but for where it starts.
pub(crate) fn change_stream(view: &View) -> Document {
    let mut spec = Document::new();
    match view.full_document {
        Shown::Default => {}
        Shown::UpdateLookup => drop(spec.insert("fullDocument", "updateLookup")),
        Shown::WhenAvailable => drop(spec.insert("fullDocument", "whenAvailable")),
        Shown::Required => drop(spec.insert("fullDocument", "required")),
    }
    match view.full_document_before_change {
        Before::Off => {}
        Before::WhenAvailable => drop(spec.insert("fullDocumentBeforeChange", "whenAvailable")),
        Before::Required => drop(spec.insert("fullDocumentBeforeChange", "required")),
    }
    if view.show_expanded_events {
        spec.insert("showExpandedEvents", true);
    }
    if view.scope == Scope::Cluster {
        spec.insert("allChangesForCluster", true);
    }
    spec
}

/// Lets through what happens to these collections, and what happens to all of them.
fn namespaces(names: &[String]) -> Document {
    let whole = doc! { "operationType": { "$in": ["dropDatabase", "invalidate"] } };
    doc! { "$match": { "$or": [{ "ns.coll": { "$in": names } }, { "to.coll": { "$in": names } }, whole] } }
}

/// Leaves out what happens to Watchkeeper's own collections, in whichever database they lie. Collections that are watched by
/// their names need no such stage.
///
/// It is no part of [`stages`], since checkpoints are recognised by those.
pub(super) fn but_for_own(view: &View) -> Option<Document> {
    let all = !matches!(view.scope, Scope::Collections(_));
    all.then(|| doc! { "$match": { "ns.coll": { "$nin": STORED_IN.to_vec() } } })
}

pub(super) fn parts(stage: &Document) -> Option<(&str, &Bson)> {
    stage.iter().next().map(|(name, spec)| (name.as_str(), spec))
}

fn is_needed(path: &str) -> bool {
    NEEDED.contains(&path.split('.').next().unwrap_or_default())
}

/// Whether a stage may change or drop what is needed.
pub(super) fn may_drop(stage: &Document) -> bool {
    match parts(stage) {
        Some(("$match", _)) => false,
        Some(("$addFields" | "$set", Bson::Document(fields))) => fields.keys().any(|path| is_needed(path)),
        Some(("$unset", Bson::String(path))) => is_needed(path),
        Some(("$unset", Bson::Array(paths))) => paths.iter().filter_map(Bson::as_str).any(is_needed),
        Some(("$project", Bson::Document(fields))) if excludes(fields) => fields.keys().any(|path| is_needed(path)),
        // A stage that is not known, or that makes new documents.
        _ => true,
    }
}

/// Whether a `$project` names what to leave out, and not what to keep. Either may be said of fields within fields.
pub(super) fn excludes(fields: &Document) -> bool {
    fields.iter().any(|(path, value)| path != "_id" && leaves_out(value))
}

/// Whether a `$project` says by this value that something is left out.
fn leaves_out(value: &Bson) -> bool {
    match value {
        // To a $project these are values.
        Bson::Null | Bson::Undefined => false,
        Bson::Document(inner) => inner.iter().any(|(name, value)| !name.starts_with('$') && leaves_out(value)),
        value => is_falsy(value),
    }
}

/// Whether servers take a value for false where they want a flag.
pub(super) fn is_falsy(value: &Bson) -> bool {
    match value {
        Bson::Boolean(flag) => !flag,
        Bson::Int32(number) => *number == 0,
        Bson::Int64(number) => *number == 0,
        Bson::Double(number) => *number == 0.0,
        Bson::Decimal128(number) => is_zero(number),
        Bson::Null | Bson::Undefined => true,
        _ => false,
    }
}

/// Whether a decimal is zero, whatever its sign and its exponent.
fn is_zero(number: &Decimal128) -> bool {
    let text = number.to_string();
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    digits.chars().all(|digit| matches!(digit, '-' | '+' | '0' | '.'))
}

/// Refuses stages that surely change or drop `_id`, which is the position of an event: servers take them, and fail with the
/// first event.
///
/// # Errors
/// `Config`, with the stage.
pub(super) fn keeps_positions(pipeline: &[Document]) -> Result<()> {
    let Some(stage) = pipeline.iter().find(|stage| loses_position(stage)) else { return Ok(()) };
    let name = parts(stage).map_or("", |(name, _)| name);
    let cause = format!("the pipeline changes or drops _id, which is the position of an event, by its stage {name}");
    Err(Error::config(cause).remedy("keep _id as it is: \"_id\": 1 in a $project, \"_id\": \"$_id\" in a new document"))
}

fn is_position(path: &str) -> bool {
    path == "_id" || path.starts_with("_id.")
}

/// Whether a field that is set is `_id`, and to something else.
fn sets_position((path, value): (&String, &Bson)) -> bool {
    is_position(path) && value.as_str() != Some("$_id")
}

fn loses_position(stage: &Document) -> bool {
    match parts(stage) {
        Some(("$addFields" | "$set", Bson::Document(fields))) => fields.iter().any(sets_position),
        Some(("$unset", Bson::String(path))) => is_position(path),
        Some(("$unset", Bson::Array(paths))) => paths.iter().filter_map(Bson::as_str).any(is_position),
        Some(("$project", Bson::Document(fields))) => fields.iter().any(|(path, value)| {
            let kept = path == "_id" && (keeps(value) || value.as_str() == Some("$_id"));
            is_position(path) && !kept
        }),
        Some(("$replaceRoot", Bson::Document(spec))) => {
            spec.get("newRoot").is_some_and(|root| !may_have_position(root, false))
        }
        Some(("$replaceWith", root)) => !may_have_position(root, false),
        _ => false,
    }
}

/// Whether a `$project` says by this value that a field is kept.
fn keeps(value: &Bson) -> bool {
    is_flag(value) && !is_falsy(value)
}

/// Whether a `$project` takes a value for "keep" or "leave out".
pub(super) fn is_flag(value: &Bson) -> bool {
    matches!(value, Bson::Boolean(_) | Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_))
}

/// Parts of an event that have an `_id` of their own.
const WITH_OTHER_ID: [&str; 3] = ["fullDocument", "fullDocumentBeforeChange", "documentKey"];

/// Whether a new root may have the `_id` of the event; `before` says so of what it is merged into. Of most expressions that is
/// not known, and then it may.
fn may_have_position(root: &Bson, before: bool) -> bool {
    match root {
        Bson::String(path) => match path.strip_prefix('$') {
            Some(part) if WITH_OTHER_ID.contains(&part) => false,
            // Another part of the event has none. What a stage before has added may have anything.
            Some(part) if OF_EVENTS.contains(&part.split('.').next().unwrap_or_default()) => before,
            _ => true,
        },
        Bson::Document(fields) => match fields.get("$mergeObjects") {
            // What comes later wins.
            Some(Bson::Array(parts)) => parts.iter().fold(before, |before, part| may_have_position(part, before)),
            Some(part) => may_have_position(part, before),
            None if fields.keys().any(|name| name.starts_with('$')) => true,
            None => fields.get("_id").map_or(before, |id| id.as_str() == Some("$_id")),
        },
        _ => true,
    }
}

/// A stage of the user's that lets `invalidate` pass and leaves alone what is kept aside.
fn kept_whole(stage: &Document, aside: bool, invalidates: bool) -> Document {
    let kept = format!("${ASIDE}");
    let merged = |root: &Bson| doc! { "$mergeObjects": [root.clone(), { ASIDE: &kept }] };
    match parts(stage) {
        // What is no condition is left to the server, which says so.
        Some(("$match", condition @ Bson::Document(_))) if invalidates => {
            let operation = if aside { format!("{ASIDE}.o") } else { "operationType".to_owned() };
            doc! { "$match": { "$or": [condition.clone(), { operation: "invalidate" }] } }
        }
        Some(("$project", Bson::Document(fields))) if aside && !excludes(fields) => {
            let mut fields = fields.clone();
            fields.insert(ASIDE, 1);
            doc! { "$project": fields }
        }
        Some(("$replaceRoot", Bson::Document(spec))) if aside => {
            let root = spec.get("newRoot").cloned().unwrap_or(Bson::Null);
            doc! { "$replaceRoot": { "newRoot": merged(&root) } }
        }
        Some(("$replaceWith", root)) if aside => doc! { "$replaceWith": merged(root) },
        _ => stage.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(pipeline: Vec<Document>) -> View {
        View { pipeline, ..View::collection("orders") }
    }

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().expect("a number"))
    }

    #[test]
    fn a_flag_is_false_as_servers_have_it() {
        let falsy = [Bson::Boolean(false), Bson::Int32(0), Bson::Int64(0), Bson::Double(0.0), Bson::Double(-0.0)];
        for value in falsy.into_iter().chain([Bson::Null, Bson::Undefined, decimal("0"), decimal("-0E+7")]) {
            assert!(is_falsy(&value), "{value}");
        }
        let truthy = [Bson::Boolean(true), Bson::Int32(-1), Bson::Int64(1 << 40), Bson::Double(f64::NAN)];
        let texts = [Bson::from(""), Bson::from("0"), Bson::Array(Vec::new()), Bson::Document(doc! {})];
        let decimals = [decimal("0.1"), decimal("NaN"), decimal("Infinity"), decimal("1E-6176")];
        for value in truthy.into_iter().chain(texts).chain(decimals) {
            assert!(!is_falsy(&value), "{value}");
        }
    }

    #[test]
    fn an_invalidate_passes_every_match() {
        let (made, aside) = stages(&view(vec![doc! { "$match": { "operationType": "insert" } }]));
        let expected = doc! { "$match": { "$or": [{ "operationType": "insert" }, { "operationType": "invalidate" }] } };
        assert_eq!((made, aside), (vec![expected], false));
    }

    #[test]
    fn stages_that_surely_lose_the_position_are_refused() {
        for stage in [
            doc! { "$project": { "_id": 0 } },
            doc! { "$project": { "_id": { "_data": 1 }, "ns": 1 } },
            doc! { "$project": { "_id": "$fullDocument._id" } },
            doc! { "$unset": "_id" },
            doc! { "$unset": ["ns", "_id._data"] },
            doc! { "$set": { "_id": 1 } },
            doc! { "$addFields": { "_id.more": 1 } },
            doc! { "$replaceWith": "$fullDocument" },
            doc! { "$replaceWith": { "total": "$fullDocument.total" } },
            doc! { "$replaceRoot": { "newRoot": "$fullDocument" } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", "$fullDocument"] } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "_id": 5 }] } },
            doc! { "$replaceWith": { "$mergeObjects": ["$fullDocument", "$ns", { "more": 1 }] } },
        ] {
            let refused = keeps_positions(&[doc! { "$match": {} }, stage.clone()]);
            assert!(refused.is_err_and(|error| error.advice().is_some()), "{stage}");
        }
        for stage in [
            doc! { "$project": { "_id": 1, "ns": 1 } },
            doc! { "$project": { "fullDocument": { "_id": 0 } } },
            doc! { "$project": { "_id": "$_id" } },
            doc! { "$set": { "_id": "$_id", "_idle": 1 } },
            doc! { "$unset": "_idle" },
            doc! { "$replaceWith": { "_id": "$_id" } },
            doc! { "$replaceWith": "$$ROOT" },
            doc! { "$replaceWith": "$wrapped" },
            doc! { "$replaceWith": { "$mergeObjects": ["$fullDocument", { "_id": "$_id" }] } },
            doc! { "$replaceWith": { "$mergeObjects": ["$fullDocument", "$$ROOT"] } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", "$ns", { "more": 1 }] } },
            doc! { "$replaceWith": { "$setField": { "field": "ns", "input": "$$ROOT", "value": 1 } } },
            doc! { "$redact": "$$KEEP" },
        ] {
            assert!(keeps_positions(std::slice::from_ref(&stage)).is_ok(), "{stage}");
        }
    }

    #[test]
    fn own_collections_are_left_out_beside_the_stages_that_checkpoints_are_recognised_by() {
        for scope in [Scope::Cluster, Scope::Database] {
            assert_eq!(stages(&View::of(scope.clone())), (Vec::new(), false));
            let own = but_for_own(&View::of(scope)).expect("there is such a stage").to_string();
            assert!(own.contains("watchkeeper_checkpoints") && own.contains("watchkeeper_pulses"), "{own}");
        }
        assert_eq!(but_for_own(&View::collection("orders")), None);
    }

    #[test]
    fn what_is_needed_is_kept_aside_only_when_it_may_be_dropped() {
        let harmless = [
            doc! { "$addFields": { "isHighValue": true } },
            doc! { "$project": { "fullDocument.secret": 0 } },
            doc! { "$project": { "fullDocument": { "secret": 0 } } },
            doc! { "$project": { "fullDocument": { "_id": false, "card": { "number": 0.0 } } } },
            doc! { "$project": { "fullDocument.secret": decimal("-0.00E+3") } },
            doc! { "$unset": ["lsid", "txnNumber"] },
        ];
        for stage in harmless {
            assert_eq!(stages(&view(vec![stage.clone()])), (vec![stage], false));
        }
        let harmful = [
            doc! { "$project": { "fullDocument": 1 } },
            doc! { "$project": { "ns.db": 0 } },
            doc! { "$project": { "ns": { "db": 0 } } },
            doc! { "$project": { "fullDocument": { "total": { "$add": ["$fullDocument.a", 0] } } } },
            doc! { "$unset": "documentKey" },
            doc! { "$set": { "operationType": "x" } },
            doc! { "$replaceWith": { "_id": "$_id" } },
            doc! { "$redact": "$$KEEP" },
        ];
        for stage in harmful {
            let (made, aside) = stages(&view(vec![stage.clone()]));
            assert!(aside && made[0].contains_key("$addFields"), "{stage} drops something");
        }
        let (made, _) = stages(&view(vec![doc! { "$project": { "a": 1 } }]));
        assert_eq!(made[1], doc! { "$project": { "a": 1, ASIDE: 1 } });
    }
}
