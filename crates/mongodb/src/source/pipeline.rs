//! The stages that a server applies: the user's, made so that nothing is lost that the stream needs.
//!
//! * `invalidate` passes every `$match`: without it a stream on a dropped collection would end without a word.
//! * Operation, namespace and key are kept aside under one name when a stage may drop them, and are taken out again before
//!   anyone sees the event.
//! * What Watchkeeper itself writes is left out of streams on a whole database or cluster, which would else feed on their own
//!   checkpoints for ever.

use mongodb::bson::{Bson, Document, doc};

use super::view::{Before, Scope, Shown, View};
use crate::client::STORED_IN;

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

fn parts(stage: &Document) -> Option<(&str, &Bson)> {
    stage.iter().next().map(|(name, spec)| (name.as_str(), spec))
}

fn is_needed(path: &str) -> bool {
    NEEDED.contains(&path.split('.').next().unwrap_or_default())
}

/// Whether a stage may change or drop what is needed.
fn may_drop(stage: &Document) -> bool {
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

/// Whether a `$project` names what to leave out, and not what to keep.
fn excludes(fields: &Document) -> bool {
    let none = |value: &Bson| match value {
        Bson::Int32(number) => *number == 0,
        Bson::Int64(number) => *number == 0,
        Bson::Double(number) => *number == 0.0,
        Bson::Boolean(keep) => !keep,
        _ => false,
    };
    fields.iter().any(|(path, value)| path != "_id" && none(value))
}

/// A stage of the user's that lets `invalidate` pass and leaves alone what is kept aside.
fn kept_whole(stage: &Document, aside: bool, invalidates: bool) -> Document {
    let kept = format!("${ASIDE}");
    let merged = |root: &Bson| doc! { "$mergeObjects": [root.clone(), { ASIDE: &kept }] };
    match parts(stage) {
        Some(("$match", condition)) if invalidates => {
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

    #[test]
    fn an_invalidate_passes_every_match() {
        let (made, aside) = stages(&view(vec![doc! { "$match": { "operationType": "insert" } }]));
        let expected = doc! { "$match": { "$or": [{ "operationType": "insert" }, { "operationType": "invalidate" }] } };
        assert_eq!((made, aside), (vec![expected], false));
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
            doc! { "$unset": ["lsid", "txnNumber"] },
        ];
        for stage in harmless {
            assert_eq!(stages(&view(vec![stage.clone()])), (vec![stage], false));
        }
        let harmful = [
            doc! { "$project": { "fullDocument": 1 } },
            doc! { "$project": { "ns.db": 0 } },
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
