//! Whether a pipeline hides changes that a copy of documents needs.
//!
//! The conditions of all `$match` stages are evaluated for made-up events: every operation, for every collection that a condition
//! names and for one that none names. A collection of which one change passes has to show all of them, and the renames of others
//! to its name.

mod condition;
mod document;

use mongodb::bson::{Bson, Document, doc};
use watchkeeper_core::{Error, Result};

use self::condition::{Event, Name, Verdict, names_in, passes};
pub(crate) use self::document::FullDocument;
use super::pipeline::{may_drop, parts};
use super::view::{Shown, View};

/// A name that no condition mentions.
const UNNAMED: &str = "\u{1}another";

/// Another one, which is renamed to a name or gets it.
const UNNAMED_TOO: &str = "\u{2}another";

/// At most so many names are looked at: the effort grows with their square.
const NAMES_MAX: usize = 256;

/// The operations of single documents.
const OF_DOCUMENTS: [&str; 4] = ["insert", "update", "replace", "delete"];

/// Refuses a pipeline that hides changes, or their documents, from a sink that mirrors what it lets through.
///
/// # Errors
/// `Config`, with what is hidden.
pub(crate) fn require_all_changes(view: &View) -> Result<()> {
    require_documents(view)?;
    let Some(conditions) = conditions(&view.pipeline)? else { return Ok(()) };
    let conditions = Conditions { conditions, are_collated: view.collation.as_ref().is_some_and(may_equate) };
    let names = names_in(&conditions.conditions);
    if names.len() > NAMES_MAX {
        return Err(refused("names too many collections to tell what it hides").remedy(NO_PIPELINE));
    }
    for name in &names {
        // A pattern that this name may fit is taken to fit it, and then not to.
        for fits in [true, false] {
            let name = Name { fits, ..name.clone() };
            // A rename stays within its database: between two of them, servers copy the documents.
            let is_other = |other: &&Name| other.database == name.database && other.collection != name.collection;
            let mut others: Vec<Name> = names.iter().filter(is_other).map(Name::unfit).collect();
            others.push(Name { collection: UNNAMED_TOO.to_owned(), ..name.unfit() });
            require_all_of(&conditions, &name, &others)?;
        }
    }
    Ok(())
}

/// Refuses a pipeline that leaves no document in `fullDocument`, or perhaps none where null would say that it was deleted since.
fn require_documents(view: &View) -> Result<()> {
    let is_looked_up = view.full_document == Shown::UpdateLookup;
    match FullDocument::behind(&view.pipeline) {
        FullDocument::Removed => Err(refused("drops fullDocument or sets it to null").remedy(DOCUMENTS)),
        FullDocument::Uncertain if is_looked_up => {
            Err(refused("may set fullDocument to null, as if the document had been deleted").remedy(DOCUMENTS))
        }
        _ => Ok(()),
    }
}

/// Whether a collation may take different texts for equal.
fn may_equate(collation: &Document) -> bool {
    collation.get_str("locale").ok() != Some("simple")
}

/// What `$match` stages choose by.
struct Conditions {
    conditions: Bson,
    /// Whether texts are compared by a collation.
    are_collated: bool,
}

/// The conditions of all `$match` stages; `None` if there are none.
///
/// # Errors
/// `Config` for stages of which it cannot be told what they hide.
fn conditions(pipeline: &[Document]) -> Result<Option<Bson>> {
    let (mut conditions, mut is_changed) = (Vec::new(), false);
    for stage in pipeline {
        match parts(stage) {
            Some(("$match", condition)) if !is_changed => conditions.push(condition.clone()),
            Some(("$match", _)) => {
                return Err(refused("has a $match behind a stage that changes what events tell")
                    .remedy("put every $match before the stages that change events"));
            }
            Some(("$redact", rule)) if rule.as_str() != Some("$$KEEP") => {
                return Err(refused("has a $redact, which may hide whole events").remedy(NO_PIPELINE));
            }
            _ => is_changed |= may_drop(stage) || changes_conditions(stage),
        }
    }
    Ok((!conditions.is_empty()).then(|| Bson::Document(doc! { "$and": conditions })))
}

/// Whether a stage sets or drops a field by which conditions choose, beside those that every event needs.
fn changes_conditions(stage: &Document) -> bool {
    let is_one = |path: &str| {
        let root = path.split('.').next().unwrap_or_default();
        ["to", "fullDocument", "fullDocumentBeforeChange", "updateDescription"].contains(&root)
    };
    match parts(stage) {
        Some((_, Bson::String(path))) => is_one(path),
        Some((_, Bson::Array(paths))) => paths.iter().filter_map(Bson::as_str).any(is_one),
        Some((_, Bson::Document(fields))) => fields.keys().any(|path| is_one(path)),
        _ => false,
    }
}

/// Refuses conditions that hide some changes of this collection and let others through. `others` are names of other collections.
fn require_all_of(choice: &Conditions, name: &Name, others: &[Name]) -> Result<()> {
    let event = |operation, name, to| {
        passes(&choice.conditions, &Event { operation, name, to, is_collated: choice.are_collated })
    };
    let verdict = |operation: &'static str| event(operation, name, None);
    if OF_DOCUMENTS.into_iter().all(|operation| verdict(operation) == Verdict::Hidden) {
        return Ok(());
    }
    for operation in OF_DOCUMENTS.into_iter().chain(["drop"]) {
        require(verdict(operation), || format!("hides every {operation}{}", of(name)))?;
    }
    for other in others {
        let rename = |name, to| event("rename", name, Some(to));
        require(rename(name, other), || format!("hides every rename{}", of(name)))
            .map_err(|error| error.remedy(BOTH_NAMES))?;
        let cause = || format!("hides the rename of {} to {}", shown(other), shown(name));
        require(rename(other, name), cause).map_err(|error| error.remedy(BOTH_NAMES))?;
    }
    Ok(())
}

fn require(verdict: Verdict, hidden: impl FnOnce() -> String) -> Result<()> {
    match verdict {
        Verdict::Passes | Verdict::ByKey => Ok(()),
        Verdict::Hidden => Err(refused(&hidden()).remedy(NO_PIPELINE)),
        Verdict::ByContent(path) => {
            let cause = format!("chooses by {path}: what no longer matches would stay in the copy as it was");
            Err(refused(&cause).remedy(NO_PIPELINE))
        }
        Verdict::ByCollation(path) => {
            let cause =
                format!("compares {path} by a collation, which may take other texts for the one that is written");
            Err(refused(&cause).remedy(EXACT))
        }
    }
}

/// What to write where a collation may let a condition match more than it says.
const EXACT: &str =
    "leave the collation out, or write operations and collections in the condition exactly as events have them";

/// What to write where a pipeline takes the documents away.
const DOCUMENTS: &str = "keep fullDocument, and leave out single fields of it, as in {\"$unset\": \"fullDocument.secret\"}; \
     or keep the changes as events (mode = \"events\")";

/// What to write instead where a pipeline hides changes.
const NO_PIPELINE: &str = "choose by `collection`, by `namespaces` in the filter of the sink, or by a $match on ns, to and documentKey._id that drops \
     pass; or keep the changes as events (mode = \"events\")";

/// What to write where a rename does not pass.
const BOTH_NAMES: &str = "name the collections in `collection`, or let renames pass, as in \
     {\"$or\": [{\"ns.coll\": \"orders\"}, {\"to.coll\": \"orders\"}]} or {\"$or\": [YOUR CONDITION, {\"operationType\": \"rename\"}]}";

fn refused(what: &str) -> Error {
    Error::config(format!("the pipeline {what}, which a sink that mirrors needs"))
}

fn shown(name: &Name) -> &str {
    if is_named(name) { &name.collection } else { "another collection" }
}

fn of(name: &Name) -> String {
    if is_named(name) { format!(" of {}", name.collection) } else { String::new() }
}

fn is_named(name: &Name) -> bool {
    ![UNNAMED, UNNAMED_TOO].contains(&name.collection.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(pipeline: &str) -> View {
        let pipeline = serde_json::from_str(pipeline).expect("stages");
        View { pipeline, full_document: Shown::UpdateLookup, ..View::collection("orders") }
    }

    fn refusal_text(pipeline: &str) -> Option<String> {
        said_of(&view(pipeline))
    }

    fn said_of(view: &View) -> Option<String> {
        let error = require_all_changes(view).err()?;
        assert!(error.advice().is_some(), "{error}");
        Some(error.message().to_owned())
    }

    #[test]
    fn pipelines_that_hide_nothing_are_taken() {
        for pipeline in [
            "[]",
            r#"[{"$match": {}}]"#,
            r#"[{"$unset": "fullDocument.secret"}]"#,
            r#"[{"$project": {"fullDocument": 1, "operationType": 1}}]"#,
            r#"[{"$redact": "$$KEEP"}]"#,
            r#"[{"$match": {"operationType": {"$in": ["insert", "update", "replace", "delete", "drop", "rename"]}}}]"#,
            r#"[{"$match": {"operationType": {"$nin": ["create", "modify"]}}}]"#,
            r#"[{"$match": {"operationType": {"$exists": true}}}]"#,
            r#"[{"$match": {"$or": [{"ns.coll": "orders"}, {"to.coll": "orders"}]}}]"#,
            r#"[{"$match": {"$or": [{"ns.coll": {"$in": ["a", "b"]}}, {"to.coll": {"$in": ["a", "b"]}}]}}]"#,
            r#"[{"$match": {"$or": [{"ns": {"db": "s", "coll": "a"}}, {"to": {"db": "s", "coll": "a"}}]}}]"#,
            r#"[{"$match": {"$or": [{"ns.coll": {"$regex": "^o"}}, {"to.coll": {"$regex": "^o"}}]}}]"#,
            r#"[{"$match": {"$or": [{"ns.coll": {"$ne": "copy"}}, {"operationType": "rename"}]}}]"#,
            r#"[{"$match": {"$or": [{"documentKey._id": {"$gte": 5}}, {"documentKey": {"$exists": false}}]}}]"#,
            r#"[{"$match": {"$nor": [{"operationType": "create"}], "$comment": "all"}}]"#,
            r#"[{"$match": {"operationType": {"$not": {"$in": ["create"]}}}}]"#,
            r#"[{"$match": {"ns.db": {"$nin": ["other"]}}}]"#,
            // Nothing passes, so nothing is copied wrongly.
            r#"[{"$match": {"operationType": "create"}}]"#,
        ] {
            assert_eq!(refusal_text(pipeline), None, "{pipeline}");
        }
    }

    #[test]
    fn pipelines_that_hide_something_are_refused_by_what_they_hide() {
        for (pipeline, cause) in [
            (r#"[{"$match": {"operationType": {"$in": ["insert", "update", "delete"]}}}]"#, "hides every replace"),
            (r#"[{"$match": {"operationType": "insert"}}]"#, "hides every update"),
            (r#"[{"$match": {"operationType": {"$ne": "delete"}}}]"#, "hides every delete"),
            (r#"[{"$match": {"operationType": {"$nin": ["drop", "rename"]}}}]"#, "hides every drop"),
            (r#"[{"$match": {"operationType": {"$not": {"$eq": "rename"}}}}]"#, "hides every rename"),
            (r#"[{"$match": {"$nor": [{"operationType": "replace"}]}}]"#, "hides every replace"),
            (r#"[{"$match": {}}, {"$match": {"operationType": {"$ne": "delete"}}}]"#, "hides every delete"),
            (r#"[{"$match": {"fullDocument.total": {"$gte": 100}}}]"#, "chooses by fullDocument.total"),
            (
                r#"[{"$match": {"$or": [{"fullDocument.tenant": 7}, {"operationType": {"$nin": ["insert", "update", "replace"]}}]}}]"#,
                "chooses by fullDocument.tenant",
            ),
            (r#"[{"$match": {"fullDocument": {"$exists": true}}}]"#, "chooses by fullDocument"),
            (
                r#"[{"$match": {"updateDescription.updatedFields.n": {"$exists": false}}}]"#,
                "chooses by updateDescription",
            ),
            (r#"[{"$match": {"$expr": {"$eq": ["$operationType", "insert"]}}}]"#, "chooses by $expr"),
            (r#"[{"$match": {"documentKey._id": 7}}]"#, "hides every drop"),
            (r#"[{"$match": {"ns.coll": "orders"}}]"#, "hides the rename of another collection to orders"),
            (r#"[{"$match": {"ns.coll": {"$regex": "^o"}}}]"#, "hides"),
            (r#"[{"$match": {"ns.coll": {"$ne": "copy"}}}]"#, "hides the rename of copy to another collection"),
            (
                r#"[{"$match": {"$or": [{"ns.coll": "a", "operationType": "insert"}, {"ns.coll": "b"}, {"operationType": {"$in": ["rename", "drop"]}}]}}]"#,
                "hides every update of a",
            ),
            (
                r#"[{"$match": {"$or": [{"ns.coll": "a"}, {"to.coll": "b"}]}}]"#,
                "hides the rename of another collection to a",
            ),
            (r#"[{"$match": {"to": {"$exists": 0.0}}}]"#, "hides every rename"),
            (r#"[{"$match": {"to": {"$exists": {"$numberDecimal": "0"}}}}]"#, "hides every rename"),
            (r#"[{"$match": {"to": {"$exists": {"$undefined": true}}}}]"#, "hides every rename"),
            (r#"[{"$match": {"to": {"$exists": {"$numberLong": "0"}}}}]"#, "hides every rename"),
            (r#"[{"$redact": "$$PRUNE"}]"#, "$redact"),
            (
                r#"[{"$set": {"operationType": "x"}}, {"$match": {"operationType": "x"}}]"#,
                "behind a stage that changes",
            ),
            (r#"[{"$unset": "to"}, {"$match": {"ns.coll": "a"}}]"#, "behind a stage that changes"),
        ] {
            let said = refusal_text(pipeline);
            assert!(said.as_ref().is_some_and(|said| said.contains(cause)), "{pipeline}: {said:?}");
        }
    }

    #[test]
    fn pipelines_that_take_the_documents_away_are_refused() {
        for (pipeline, cause) in [
            (r#"[{"$set": {"fullDocument": null}}]"#, "drops fullDocument or sets it to null"),
            (r#"[{"$project": {"fullDocument": null, "ns": 1}}]"#, "drops fullDocument or sets it to null"),
            (r#"[{"$unset": "fullDocument"}]"#, "drops fullDocument or sets it to null"),
            (
                r#"[{"$set": {"fullDocument": {"$cond": ["$fullDocument.open", "$fullDocument", null]}}}]"#,
                "may set fullDocument to null",
            ),
        ] {
            let said = refusal_text(pipeline);
            assert!(said.as_ref().is_some_and(|said| said.contains(cause)), "{pipeline}: {said:?}");
        }
        // Without a lookup null says nothing, and the change is rejected when it comes.
        let uncertain = view(r#"[{"$set": {"fullDocument": "$other"}}]"#);
        assert_eq!(said_of(&View { full_document: Shown::Required, ..uncertain }), None);
    }

    #[test]
    fn a_collation_lets_conditions_match_more_than_they_say() {
        let collated = |pipeline: &str, locale: &str| {
            said_of(&View { collation: Some(doc! { "locale": locale, "strength": 2 }), ..view(pipeline) })
        };
        for pipeline in [
            r#"[{"$match": {"operationType": {"$ne": "DELETE"}}}]"#,
            r#"[{"$match": {"operationType": {"$nin": ["create", "de-lete"]}}}]"#,
            r#"[{"$match": {"operationType": {"$in": ["INSERT", "UPDATE"]}}}]"#,
            r#"[{"$match": {"operationType": {"$ne": "délete"}}}]"#,
            r#"[{"$match": {"$or": [{"ns": {"db": "s", "coll": "a"}, "operationType": "insert"}, {"ns": {"db": "s", "coll": "A"}}]}}]"#,
        ] {
            let said = collated(pipeline, "en");
            assert!(said.as_ref().is_some_and(|said| said.contains("by a collation")), "{pipeline}: {said:?}");
            let exactly = collated(pipeline, "simple");
            assert!(exactly.as_ref().is_none_or(|said| !said.contains("by a collation")), "{pipeline}: {exactly:?}");
        }
        for pipeline in [
            r#"[{"$match": {"operationType": {"$nin": ["create", "modify"]}}}]"#,
            r#"[{"$match": {"$or": [{"ns.coll": "orders"}, {"to.coll": "orders"}]}}]"#,
            r#"[{"$match": {"operationType": {"$in": ["insert", "update", "replace", "delete", "drop", "rename"]}}}]"#,
        ] {
            assert_eq!(collated(pipeline, "en"), None, "{pipeline}");
        }
        let hidden = collated(r#"[{"$match": {"operationType": {"$ne": "delete"}}}]"#, "en");
        assert!(hidden.as_ref().is_some_and(|said| said.contains("hides every delete")), "{hidden:?}");
    }

    #[test]
    fn a_condition_that_is_none_is_left_to_the_server() {
        assert_eq!(refusal_text(r#"[{"$match": 7}]"#), None);
    }
}
