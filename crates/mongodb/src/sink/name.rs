//! Names of the collections that a sink writes to.
//!
//! Watchkeeper's own collections are refused as targets. Streams on a database or cluster leave them out by a stage
//! that is not part of the hash in the pedigree.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use watchkeeper_core::{Change, Error, Operation, Result};

/// What stands for the source's collection in the name of a mirror's.
const COLLECTION: &str = "{collection}";

/// What stands for the database of the source's collection.
const DATABASE: &str = "{database}";

/// A name of a collection that is not one of ours. What it may stand for depends on the change.
#[derive(Debug, Clone)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for many collections.
    pub(crate) fn is_pattern(&self) -> bool {
        [COLLECTION, DATABASE].iter().any(|part| self.0.contains(part))
    }

    /// Whether collections of one name in several databases have one name here.
    pub(crate) fn mixes_databases(&self) -> bool {
        self.0.contains(COLLECTION) && !self.0.contains(DATABASE)
    }

    /// Whether each collection of the source is to have one of its own.
    fn distinguishes_collections(&self) -> bool {
        self.0.contains(COLLECTION)
    }

    /// The collection for changes of this namespace.
    ///
    /// # Errors
    /// `Config` when it is one that a sink may not write to.
    pub(crate) fn name_for(&self, namespace: &str) -> Result<String> {
        if !self.is_pattern() {
            return Ok(self.0.clone());
        }
        let (database, collection) = namespace.split_once('.').unwrap_or(("", namespace));
        let name = rendered(&self.0, database, collection);
        require_usable(&name).map_err(|error| {
            let cause = format!("{:?} for changes of {namespace}: {}", self.0, error.message());
            Error::config(cause)
                .remedy("begin `collection` with a word of your own, as in \"copy_of_{database}_{collection}\"")
        })?;
        Ok(name)
    }

    pub(crate) fn new(collection: &str) -> Result<Self> {
        require_usable(collection)?;
        Ok(Self(collection.to_owned()))
    }
}

/// A pattern with names in the place of what stands for them. Names may hold what looks like a placeholder.
fn rendered(pattern: &str, database: &str, collection: &str) -> String {
    let (mut name, mut rest) = (String::new(), pattern);
    while let Some(at) = rest.find('{') {
        name.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix(COLLECTION) {
            name.push_str(collection);
            rest = behind;
        } else if let Some(behind) = rest.strip_prefix(DATABASE) {
            name.push_str(database);
            rest = behind;
        } else {
            name.push('{');
            rest = &rest[1..];
        }
    }
    name + rest
}

/// What the names of Watchkeeper's own collections begin with.
const OWN: &str = "watchkeeper_";

/// Refuses a name that a sink may not write to.
fn require_usable(collection: &str) -> Result<()> {
    let wrong = |cause: String| Err(Error::config(cause).remedy("choose another name"));
    if collection.starts_with(OWN) {
        return wrong(format!("{collection:?} is a name of Watchkeeper's own collections, which begin with {OWN:?}"));
    }
    if collection.is_empty() || collection.starts_with("system.") || collection.contains(['\0', '$']) {
        return wrong(format!("{collection:?} cannot be a collection of a sink"));
    }
    Ok(())
}

/// Of which namespaces documents lie in each collection of a mirror, as far as changes have come.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    /// Whether changes of several namespaces may come.
    pub(super) are_several: bool,
    /// The namespaces by collection; `None` of one that has several.
    known: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

impl Origins {
    /// Notes that a change is written to the collection `target`, which has this name.
    ///
    /// # Errors
    /// `Config` when documents of different collections would be taken for one another.
    pub(super) fn note(&self, name: &Name, target: &str, change: &Change) -> Result<()> {
        let namespace = change.namespace();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(target) {
            None => drop(known.insert(target.to_owned(), Some(namespace.to_owned()))),
            Some(Some(other)) if other != namespace && name.distinguishes_collections() => {
                let cause = format!("{target:?} has the documents of {other}, and would get those of {namespace} too");
                return Err(Error::config(cause)
                    .remedy("tell the names apart: write \"{database}.{collection}\" as the collection of the sink"));
            }
            Some(origin) => *origin = origin.take().filter(|other| other == namespace),
        }
        let clears = matches!(change.operation(), Operation::Drop | Operation::Truncate);
        let is_shared = self.are_several || known.get(target).is_some_and(Option::is_none);
        if clears && is_shared && !name.distinguishes_collections() {
            let operation = change.operation();
            let cause = format!(
                "the {operation} of {namespace} would clear {target:?}, which has documents of other collections too"
            );
            return Err(Error::config(cause).remedy("delete the documents of that collection from the mirror and skip this change; a mirror of one collection each, \"{collection}\", does so by itself"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_in_as_they_are() {
        let name = |pattern: &str, namespace: &str| {
            Name::new(pattern).and_then(|name| name.name_for(namespace)).map_err(|error| error.message().to_owned())
        };
        assert_eq!(name("copy", "shop.orders"), Ok("copy".to_owned()));
        assert_eq!(name("{database}.{collection}", "shop.orders.old"), Ok("shop.orders.old".to_owned()));
        assert_eq!(name("a{collection}b{x}{", "shop.{database}"), Ok("a{database}b{x}{".to_owned()));
        assert_eq!(name("{collection}", "orders"), Ok("orders".to_owned()));
        for (pattern, namespace) in [
            ("{database}_{collection}", "watchkeeper.checkpoints"),
            ("{collection}", "shop.watchkeeper_leases"),
            ("{database}{collection}", "watch.keeper_x"),
            ("{collection}", "shop.system.views"),
            ("{database}.{collection}", "system.x"),
            ("{collection}", "public.a$b"),
            ("{collection}", "shop."),
        ] {
            assert!(name(pattern, namespace).is_err(), "{pattern} {namespace}");
        }
        for constant in ["watchkeeper_x", "watchkeeper_{collection}", "system.x", "", "a$b"] {
            assert!(Name::new(constant).is_err(), "{constant}");
        }
    }
}
