//! The condition of a `$match`, evaluated for an event of which only operation and names are known.

use mongodb::bson::{Bson, Document};

use super::super::pipeline::is_falsy;

/// A collection that an event may be about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) database: String,
    pub(super) collection: String,
    /// Whether it is taken to fit patterns, which are not evaluated here.
    pub(super) fits: bool,
}

impl Name {
    /// The same name, which is taken to fit no pattern.
    pub(super) fn unfit(&self) -> Self {
        Self { fits: false, ..self.clone() }
    }
}

/// An event as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) operation: &'static str,
    pub(super) name: &'a Name,
    /// The new name, of a rename.
    pub(super) to: Option<&'a Name>,
    /// Whether texts are compared by a collation, which may take different ones for equal.
    pub(super) is_collated: bool,
}

/// What a condition says of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Passes,
    Hidden,
    /// It depends on the `_id` of the document, which never changes.
    ByKey,
    /// It depends on what is at this path, which may be another with the next change of the same document.
    ByContent(String),
    /// It depends on whether a collation takes what is at this path for another text.
    ByCollation(String),
}

impl Verdict {
    fn of(passes: bool) -> Self {
        if passes { Self::Passes } else { Self::Hidden }
    }

    fn not(self) -> Self {
        match self {
            Self::Passes => Self::Hidden,
            Self::Hidden => Self::Passes,
            depends => depends,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Hidden, _) | (_, Self::Hidden) => Self::Hidden,
            (Self::Passes, other) => other,
            (depends @ (Self::ByContent(_) | Self::ByCollation(_)), _) => depends,
            (_, depends @ (Self::ByContent(_) | Self::ByCollation(_))) => depends,
            _ => Self::ByKey,
        }
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

/// The value of a field, as far as it is known.
enum Value<'a> {
    Missing,
    /// Any text, and whether it is taken to fit patterns; `None` where patterns decide something else.
    Text(&'a str, Option<bool>),
    Name(&'a Name),
    Unknown(Verdict),
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
struct Operand<'a> {
    path: &'a str,
    is_collated: bool,
}

impl Operand<'_> {
    /// What the comparison of two texts says.
    fn compare(self, text: &str, wanted: &str) -> Verdict {
        if text != wanted && self.is_collated && may_be_equal(text, wanted) {
            return Verdict::ByCollation(self.path.to_owned());
        }
        Verdict::of(text == wanted)
    }
}

/// Whether there may be a collation that takes these texts for equal.
fn may_be_equal(one: &str, other: &str) -> bool {
    // Case, punctuation and leading zeros may count for nothing, y for i in Lithuanian, and w for v in Estonian.
    let folded = |text: &str| -> String {
        let counts = text.chars().filter(|letter| letter.is_ascii_alphanumeric() && *letter != '0');
        counts
            .map(|letter| letter.to_ascii_lowercase())
            .map(|letter| match letter {
                'y' => 'i',
                'w' => 'v',
                letter => letter,
            })
            .collect()
    };
    !one.is_ascii() || !other.is_ascii() || folded(one) == folded(other)
}

/// Which events have which images.
fn has(operation: &str, root: &str) -> bool {
    match root {
        "fullDocument" => ["insert", "update", "replace"].contains(&operation),
        "updateDescription" => operation == "update",
        _ => ["insert", "update", "replace", "delete"].contains(&operation),
    }
}

fn value<'a>(event: &Event<'a>, path: &str) -> Value<'a> {
    let content = || Value::Unknown(Verdict::ByContent(path.to_owned()));
    let (root, rest) = path.split_once('.').unwrap_or((path, ""));
    let part = |name: Option<&'a Name>| match (name, rest) {
        (None, _) => Value::Missing,
        (Some(name), "") => Value::Name(name),
        (Some(name), "db") => Value::Text(&name.database, Some(name.fits)),
        (Some(name), "coll") => Value::Text(&name.collection, Some(name.fits)),
        _ => Value::Missing,
    };
    match root {
        "operationType" if rest.is_empty() => Value::Text(event.operation, None),
        "ns" => part(Some(event.name)),
        "to" => part(event.to),
        "documentKey" if has(event.operation, root) => match rest {
            "" | "_id" => Value::Unknown(Verdict::ByKey),
            _ => content(),
        },
        "documentKey" => Value::Missing,
        "fullDocument" | "fullDocumentBeforeChange" | "updateDescription" if !has(event.operation, root) => {
            Value::Missing
        }
        _ => content(),
    }
}

/// What a condition says of an event.
pub(super) fn passes(condition: &Bson, event: &Event<'_>) -> Verdict {
    // What is no condition is refused by the server.
    let Bson::Document(parts) = condition else { return Verdict::Passes };
    parts.iter().map(|(name, part)| part_passes(name, part, event)).fold(Verdict::Passes, Verdict::and)
}

fn part_passes(name: &str, part: &Bson, event: &Event<'_>) -> Verdict {
    let each = || part.as_array().into_iter().flatten().map(|condition| passes(condition, event));
    match name {
        "$and" => each().fold(Verdict::Passes, Verdict::and),
        "$or" => each().fold(Verdict::Hidden, Verdict::or),
        "$nor" => each().fold(Verdict::Hidden, Verdict::or).not(),
        "$comment" => Verdict::Passes,
        _ if name.starts_with('$') => Verdict::ByContent(name.to_owned()),
        path => meets(&value(event, path), part, Operand { path, is_collated: event.is_collated }),
    }
}

/// The operators of a condition on one field; `None` for a value that it has to be equal to.
fn operators(condition: &Bson) -> Option<&Document> {
    condition.as_document().filter(|parts| parts.keys().next().is_some_and(|name| name.starts_with('$')))
}

fn meets(value: &Value<'_>, condition: &Bson, of: Operand<'_>) -> Verdict {
    match (value, operators(condition)) {
        (Value::Unknown(verdict), _) => verdict.clone(),
        (_, None) => equals(value, condition, of),
        (_, Some(operators)) => {
            let each = operators.iter().map(|(name, operand)| operator(value, name, operand, of));
            each.fold(Verdict::Passes, Verdict::and)
        }
    }
}

fn operator(value: &Value<'_>, name: &str, operand: &Bson, of: Operand<'_>) -> Verdict {
    let among = || {
        let listed = operand.as_array().into_iter().flatten().map(|one| equals(value, one, of));
        listed.fold(Verdict::Hidden, Verdict::or)
    };
    match name {
        "$eq" => equals(value, operand, of),
        "$ne" => equals(value, operand, of).not(),
        "$in" => among(),
        "$nin" => among().not(),
        "$exists" => Verdict::of(matches!(value, Value::Missing) == is_falsy(operand)),
        "$not" => meets(value, operand, of).not(),
        "$regex" => fits(value, of),
        // Belongs to $regex.
        "$options" => Verdict::Passes,
        // What is missing is neither more nor less than anything.
        "$gt" | "$gte" | "$lt" | "$lte" if matches!(value, Value::Missing) && *operand != Bson::Null => Verdict::Hidden,
        _ => Verdict::ByContent(of.path.to_owned()),
    }
}

/// Whether a value is this one, or fits it if it is a pattern.
fn equals(value: &Value<'_>, wanted: &Bson, of: Operand<'_>) -> Verdict {
    match (value, wanted) {
        (Value::Unknown(verdict), _) => verdict.clone(),
        (_, Bson::RegularExpression(_)) => fits(value, of),
        (Value::Missing, wanted) => Verdict::of(*wanted == Bson::Null),
        (Value::Text(text, _), Bson::String(wanted)) => of.compare(text, wanted),
        (Value::Text(..), _) => Verdict::Hidden,
        (Value::Name(name), Bson::Document(wanted)) => {
            let part = |part: &str, is: &str| wanted.get_str(part).map_or(Verdict::Hidden, |text| of.compare(is, text));
            let parts = part("db", &name.database).and(part("coll", &name.collection));
            Verdict::of(wanted.len() == 2).and(parts)
        }
        (Value::Name(_), _) => Verdict::Hidden,
    }
}

fn fits(value: &Value<'_>, of: Operand<'_>) -> Verdict {
    match value {
        Value::Text(_, Some(fits)) => Verdict::of(*fits),
        Value::Text(_, None) => Verdict::ByContent(of.path.to_owned()),
        Value::Unknown(verdict) => verdict.clone(),
        Value::Missing | Value::Name(_) => Verdict::Hidden,
    }
}

/// The names of databases and collections in a condition, each combined with each other and with those that none mentions.
pub(super) fn names_in(condition: &Bson) -> Vec<Name> {
    let (mut databases, mut collections) = (vec![super::UNNAMED.to_owned()], vec![super::UNNAMED.to_owned()]);
    collect(condition, "", &mut databases, &mut collections);
    let mut names = Vec::new();
    for database in &databases {
        for collection in &collections {
            names.push(Name { database: database.clone(), collection: collection.clone(), fits: false });
        }
    }
    names
}

/// Collects texts that stand below `ns` and `to`.
fn collect(part: &Bson, path: &str, databases: &mut Vec<String>, collections: &mut Vec<String>) {
    let mut note = |text: &str| {
        let names = match path {
            "ns.db" | "to.db" => &mut *databases,
            "ns.coll" | "to.coll" => &mut *collections,
            _ => return,
        };
        if !names.iter().any(|known| known == text) {
            names.push(text.to_owned());
        }
    };
    match part {
        Bson::String(text) => note(text),
        Bson::Array(parts) => parts.iter().for_each(|part| collect(part, path, databases, collections)),
        Bson::Document(parts) => {
            for (name, part) in parts {
                let path = match (name.starts_with('$'), path) {
                    (true, path) => path.to_owned(),
                    (false, "") => name.clone(),
                    (false, path) => format!("{path}.{name}"),
                };
                collect(part, &path, databases, collections);
            }
        }
        _ => {}
    }
}
