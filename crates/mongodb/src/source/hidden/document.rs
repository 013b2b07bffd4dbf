//! Whether the stages of a pipeline leave the document of an event in its field `fullDocument`.
//!
//! Beside an update whose document is looked up, null says that the document was deleted since. A pipeline that sets the field to
//! null would say the same of documents that live on.

use mongodb::bson::{Bson, Document};

use super::super::pipeline::{excludes, is_falsy, is_flag, parts};

const FIELD: &str = "fullDocument";

/// What a pipeline makes of `fullDocument` where the server has told a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FullDocument {
    /// It is a document still.
    Kept,
    /// It may be null, or missing.
    Uncertain,
    /// It is no document in any event.
    Removed,
}

impl FullDocument {
    /// Behind all of these stages.
    pub(crate) fn behind(pipeline: &[Document]) -> Self {
        pipeline.iter().fold(Self::Kept, |before, stage| before.behind_stage(stage))
    }

    fn behind_stage(self, stage: &Document) -> Self {
        match parts(stage) {
            // These pass events as they are; a $redact that does not is refused by itself.
            Some(("$match" | "$redact", _)) => self,
            Some(("$addFields" | "$set", Bson::Document(fields))) => {
                fields.get(FIELD).map_or(self, |value| self.computed(value))
            }
            Some(("$unset", Bson::String(path))) if path == FIELD => Self::Removed,
            Some(("$unset", Bson::Array(paths))) if paths.iter().any(|path| path.as_str() == Some(FIELD)) => {
                Self::Removed
            }
            Some(("$unset", _)) => self,
            Some(("$project", Bson::Document(fields))) => self.projected(fields),
            Some(("$replaceRoot", Bson::Document(spec))) => {
                spec.get("newRoot").map_or(Self::Uncertain, |root| self.in_root(root, Self::Removed))
            }
            Some(("$replaceWith", root)) => self.in_root(root, Self::Removed),
            _ => Self::Uncertain,
        }
    }

    fn projected(self, fields: &Document) -> Self {
        let names_a_part = fields.keys().any(|path| path.strip_prefix(FIELD).is_some_and(|rest| rest.starts_with('.')));
        match fields.get(FIELD) {
            None if names_a_part || excludes(fields) => self,
            None => Self::Removed,
            Some(Bson::Document(inner)) if operator(inner).is_none() => self,
            Some(value) if is_flag(value) => {
                if is_falsy(value) {
                    Self::Removed
                } else {
                    self
                }
            }
            Some(value) => self.computed(value),
        }
    }

    /// In a new root; `merged` says so of what that is merged into.
    fn in_root(self, root: &Bson, merged: Self) -> Self {
        match root {
            Bson::String(path) if path == "$$ROOT" || path == "$$CURRENT" => self,
            // It would have to have a field of this name by itself.
            Bson::String(_) => merged,
            Bson::Document(fields) => match operator(fields) {
                None => fields.get(FIELD).map_or(merged, |value| self.computed(value)),
                Some(("$mergeObjects", Bson::Array(parts))) => {
                    // What comes later wins.
                    parts.iter().fold(merged, |merged, part| self.in_root(part, merged))
                }
                Some(("$mergeObjects", part)) => self.in_root(part, merged),
                Some(("$setField", Bson::Document(spec))) => match (spec.get("field"), spec.get("value")) {
                    (Some(Bson::String(name)), Some(value)) if name == FIELD => self.computed(value),
                    (Some(Bson::String(_)), Some(_)) => self.in_root(spec.get("input").unwrap_or(&Bson::Null), merged),
                    _ => Self::Uncertain,
                },
                Some(("$unsetField", Bson::Document(spec))) => match spec.get("field") {
                    Some(Bson::String(name)) if name == FIELD => Self::Removed,
                    Some(Bson::String(_)) => self.in_root(spec.get("input").unwrap_or(&Bson::Null), merged),
                    _ => Self::Uncertain,
                },
                _ => Self::Uncertain,
            },
            _ => Self::Uncertain,
        }
    }

    /// What an expression gives, when `fullDocument` is this before it.
    fn computed(self, expression: &Bson) -> Self {
        match expression {
            Bson::String(path) => self.at_path(path),
            Bson::Document(fields) => match operator(fields) {
                None => Self::Kept,
                Some((name, operand)) => self.applied(name, operand),
            },
            _ => Self::Removed,
        }
    }

    fn at_path(self, path: &str) -> Self {
        match path {
            "$fullDocument" | "$$ROOT.fullDocument" | "$$CURRENT.fullDocument" => self,
            "$$ROOT" | "$$CURRENT" => Self::Kept,
            "$$REMOVE" => Self::Removed,
            _ if path.starts_with('$') => Self::Uncertain,
            _ => Self::Removed,
        }
    }

    /// What an operator gives. Those that give null only for null are looked through.
    fn applied(self, name: &str, operand: &Bson) -> Self {
        let field = |name: &str| operand.as_document().and_then(|spec| spec.get(name));
        let part = |part: Option<&Bson>| part.map_or(Self::Uncertain, |part| self.computed(part));
        match name {
            "$literal" if matches!(operand, Bson::Document(_)) => Self::Kept,
            "$literal" => Self::Removed,
            "$mergeObjects" => Self::Kept,
            "$setField" | "$unsetField" | "$filter" | "$map" => part(field("input")),
            "$objectToArray" | "$arrayToObject" => self.of_items(operand),
            "$let" => part(field("in")),
            "$cond" => self.chosen(operand),
            "$ifNull" => operand.as_array().map_or(Self::Uncertain, |parts| self.first_of(parts)),
            "$switch" => {
                let branches = field("branches").and_then(Bson::as_array).into_iter().flatten();
                let results = branches.map(|branch| part(branch.as_document().and_then(|branch| branch.get("then"))));
                // Without a default the server fails where no branch is taken.
                field("default")
                    .map(|last| part(Some(last)))
                    .into_iter()
                    .chain(results)
                    .reduce(Self::either)
                    .unwrap_or(Self::Uncertain)
            }
            _ => Self::Uncertain,
        }
    }

    /// Of the operand of an operator between documents and arrays, which may stand in a list of its own.
    fn of_items(self, operand: &Bson) -> Self {
        match operand {
            Bson::Array(items) => match items.as_slice() {
                [one @ (Bson::String(_) | Bson::Document(_))] => self.computed(one),
                _ => Self::Kept,
            },
            operand => self.computed(operand),
        }
    }

    fn chosen(self, operand: &Bson) -> Self {
        let (condition, yes, no) = match operand {
            Bson::Array(parts) => (parts.first(), parts.get(1), parts.get(2)),
            Bson::Document(spec) => (spec.get("if"), spec.get("then"), spec.get("else")),
            _ => (None, None, None),
        };
        let (Some(condition), Some(yes), Some(no)) = (condition, yes, no) else { return Self::Uncertain };
        match asks_for_null(condition) {
            // Where the server has told a document, only one of the two is given.
            Some(true) if self == Self::Kept => self.computed(no),
            Some(false) if self == Self::Kept => self.computed(yes),
            _ => self.computed(yes).either(self.computed(no)),
        }
    }

    fn first_of(self, parts: &[Bson]) -> Self {
        let mut parts = parts.iter().map(|part| self.computed(part));
        if parts.clone().any(|part| part == Self::Kept) {
            return Self::Kept;
        }
        if parts.all(|part| part == Self::Removed) { Self::Removed } else { Self::Uncertain }
    }

    fn either(self, other: Self) -> Self {
        if self == other { self } else { Self::Uncertain }
    }
}

/// The operator of an expression, with its operand.
fn operator(expression: &Document) -> Option<(&str, &Bson)> {
    parts(expression).filter(|(name, _)| name.starts_with('$'))
}

/// Whether a condition holds only where `fullDocument` is null (`true`), or only where it is not.
fn asks_for_null(condition: &Bson) -> Option<bool> {
    let (name, operand) = operator(condition.as_document()?)?;
    let sides = operand.as_array()?.as_slice();
    let compares = match sides {
        [Bson::String(path), Bson::Null] | [Bson::Null, Bson::String(path)] => path == "$fullDocument",
        _ => false,
    };
    match name {
        "$eq" if compares => Some(true),
        "$ne" if compares => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(pipeline: &str) -> FullDocument {
        let stages: Vec<Document> = serde_json::from_str(pipeline).expect("stages");
        FullDocument::behind(&stages)
    }

    #[test]
    fn a_pipeline_that_leaves_the_document_or_changes_it_keeps_it() {
        for pipeline in [
            "[]",
            r#"[{"$match": {"operationType": "insert"}}]"#,
            r#"[{"$set": {"fullDocument.open": true, "added": null}}]"#,
            r#"[{"$set": {"fullDocument": {"total": "$fullDocument.total"}}}]"#,
            r#"[{"$set": {"fullDocument": {"$mergeObjects": ["$fullDocument", {"a": 1}]}}}]"#,
            r#"[{"$set": {"fullDocument": {"$unsetField": {"field": "a", "input": "$fullDocument"}}}}]"#,
            r#"[{"$set": {"fullDocument": {"$arrayToObject": {"$filter": {
                "input": {"$objectToArray": "$fullDocument"}, "cond": {"$ne": ["$$this.k", "a"]}}}}}}]"#,
            r#"[{"$set": {"fullDocument": {"$arrayToObject": [{"$objectToArray": "$fullDocument"}]}}}]"#,
            r#"[{"$set": {"fullDocument": {"$ifNull": ["$fullDocument", null]}}}]"#,
            r#"[{"$set": {"fullDocument": {"$cond": [{"$eq": ["$fullDocument", null]}, null, {"a": 1}]}}}]"#,
            r#"[{"$set": {"fullDocument": {"$cond": {"if": {"$ne": [null, "$fullDocument"]}, "then": {"a": 1}, "else": null}}}}]"#,
            r#"[{"$unset": ["fullDocument.secret", "lsid"]}]"#,
            r#"[{"$project": {"fullDocument": 1, "operationType": 1}}]"#,
            r#"[{"$project": {"fullDocument.total": 1}}]"#,
            r#"[{"$project": {"fullDocument": {"secret": 0}}}]"#,
            r#"[{"$project": {"lsid": 0}}]"#,
            r#"[{"$replaceWith": "$$ROOT"}]"#,
            r#"[{"$replaceWith": {"_id": "$_id", "fullDocument": "$fullDocument"}}]"#,
            r#"[{"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"more": 1}]}}}]"#,
            r#"[{"$replaceWith": {"$unsetField": {"field": "lsid", "input": "$$ROOT"}}}]"#,
        ] {
            assert_eq!(behind(pipeline), FullDocument::Kept, "{pipeline}");
        }
    }

    #[test]
    fn a_pipeline_that_sets_the_document_to_null_or_drops_it_removes_it() {
        for pipeline in [
            r#"[{"$set": {"fullDocument": null}}]"#,
            r#"[{"$addFields": {"fullDocument": {"$literal": null}}}]"#,
            r#"[{"$set": {"fullDocument": "$$REMOVE"}}]"#,
            r#"[{"$set": {"fullDocument": 7}}]"#,
            r#"[{"$set": {"fullDocument": {"$cond": [true, null, "$$REMOVE"]}}}]"#,
            r#"[{"$unset": "fullDocument"}]"#,
            r#"[{"$unset": ["lsid", "fullDocument"]}]"#,
            r#"[{"$project": {"fullDocument": 0}}]"#,
            r#"[{"$project": {"fullDocument": {"$numberDecimal": "0.0"}}}]"#,
            r#"[{"$project": {"fullDocument": null, "operationType": 1}}]"#,
            r#"[{"$project": {"operationType": 1, "documentKey": 1}}]"#,
            r#"[{"$replaceWith": {"_id": "$_id", "total": "$fullDocument.total"}}]"#,
            r#"[{"$replaceWith": {"$mergeObjects": ["$fullDocument", {"_id": "$_id"}]}}]"#,
            r#"[{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"fullDocument": null}]}}]"#,
            r#"[{"$replaceWith": {"$setField": {"field": "fullDocument", "input": "$$ROOT", "value": null}}}]"#,
            r#"[{"$set": {"fullDocument": null}}, {"$set": {"fullDocument": "$fullDocument"}}]"#,
        ] {
            assert_eq!(behind(pipeline), FullDocument::Removed, "{pipeline}");
        }
    }

    #[test]
    fn a_pipeline_of_which_it_cannot_be_reported_is_uncertain() {
        for pipeline in [
            r#"[{"$set": {"fullDocument": "$fullDocumentBeforeChange"}}]"#,
            r#"[{"$set": {"fullDocument": {"$cond": ["$fullDocument.open", "$fullDocument", null]}}}]"#,
            r#"[{"$set": {"fullDocument": {"$switch": {
                "branches": [{"case": "$fullDocument.open", "then": "$fullDocument"}], "default": null}}}}]"#,
            r#"[{"$set": {"fullDocument": {"$function": {}}}}]"#,
            r#"[{"$replaceWith": {"$getField": "wrapped"}}]"#,
            r#"[{"$changeStreamSomething": {}}]"#,
        ] {
            assert_eq!(behind(pipeline), FullDocument::Uncertain, "{pipeline}");
        }
    }
}
