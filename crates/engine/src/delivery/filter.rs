//! Which changes a sink gets.

use std::fmt;
use std::sync::Arc;

use watchkeeper_core::{Batch, Error, Operation, Result};

use super::routes::{Operations, Pattern};

/// Decides row by row. What it does not keep counts as delivered, so it must always decide alike:
/// after a failover the same changes are asked about again.
///
/// Any `Fn(&Batch, u32) -> bool` is one, and so are [`Operations`].
pub trait Filter: Send + Sync {
    /// Whether row `row` of `batch` is for the sink.
    fn keeps(&self, batch: &Batch, row: u32) -> bool;

    /// What it decides of every row of which this is known; `None` where that depends on more.
    fn foresees(&self, _known: RowSummary<'_>) -> Option<bool> {
        None
    }
}

/// What is known of a row before it is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSummary<'a> {
    /// Its operation.
    pub operation: Option<Operation>,
    /// Its namespace.
    pub namespace: Option<&'a str>,
}

impl<F: Fn(&Batch, u32) -> bool + Send + Sync> Filter for F {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self(batch, row)
    }
}

impl fmt::Debug for dyn Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}

/// Keeps changes with one of these operations.
impl Filter for Operations {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self.contains(batch.rows()[row as usize].operation)
    }

    fn foresees(&self, known: RowSummary<'_>) -> Option<bool> {
        known.operation.map(|operation| self.contains(operation))
    }
}

/// Keeps changes whose namespace matches one of these patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces(pub Vec<Pattern>);

impl<P: Into<Pattern>> FromIterator<P> for Namespaces {
    fn from_iter<I: IntoIterator<Item = P>>(patterns: I) -> Self {
        Self(patterns.into_iter().map(Into::into).collect())
    }
}

impl Filter for Namespaces {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self.names(batch.namespace(row))
    }

    fn foresees(&self, known: RowSummary<'_>) -> Option<bool> {
        known.namespace.map(|namespace| self.names(namespace))
    }
}

impl Namespaces {
    fn names(&self, namespace: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(namespace))
    }
}

/// Keeps what all of these keep; without any, everything.
#[derive(Debug, Clone, Default)]
pub struct All(pub Vec<Arc<dyn Filter>>);

impl Filter for All {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self.0.iter().all(|filter| filter.keeps(batch, row))
    }

    fn foresees(&self, known: RowSummary<'_>) -> Option<bool> {
        decided_by(&self.0, known, false)
    }
}

/// Keeps what at least one of these keeps; without any, nothing.
#[derive(Debug, Clone, Default)]
pub struct Any(pub Vec<Arc<dyn Filter>>);

impl Filter for Any {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self.0.iter().any(|filter| filter.keeps(batch, row))
    }

    fn foresees(&self, known: RowSummary<'_>) -> Option<bool> {
        decided_by(&self.0, known, true)
    }
}

/// Keeps what this one does not.
#[derive(Debug, Clone)]
pub struct Not<F>(pub F);

impl<F: Filter> Filter for Not<F> {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        !self.0.keeps(batch, row)
    }

    fn foresees(&self, known: RowSummary<'_>) -> Option<bool> {
        self.0.foresees(known).map(|kept| !kept)
    }
}

/// What filters decide of which one answer of `decisive` decides for all.
fn decided_by(filters: &[Arc<dyn Filter>], known: RowSummary<'_>, decisive: bool) -> Option<bool> {
    let mut answers = filters.iter().map(|filter| filter.foresees(known));
    if answers.clone().any(|answer| answer == Some(decisive)) {
        return Some(decisive);
    }
    answers.all(|answer| answer.is_some()).then_some(!decisive)
}

/// The operations of single rows. A copy of rows needs all of them.
const OF_ROWS: [Operation; 5] =
    [Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete, Operation::Read];

/// Whether a sink with this filter gets a row. What changes the meaning of a name reaches a sink that mirrors rows of that name,
/// whatever the filter says of it: a rename by its old and its new name.
pub fn is_delivered(filter: &dyn Filter, mirrors: bool, batch: &Batch, row: u32) -> bool {
    let operation = batch.rows()[row as usize].operation;
    let is_kept = filter.keeps(batch, row);
    if is_kept || !mirrors || !operation.redefines_names() {
        return is_kept;
    }
    let keeps_rows_of = |namespace: &str| {
        let rows = |operation| filter.foresees(RowSummary { operation: Some(operation), namespace: Some(namespace) });
        OF_ROWS.into_iter().any(|operation| rows(operation) != Some(false))
    };
    match operation {
        Operation::Truncate | Operation::Drop => keeps_rows_of(batch.namespace(row)),
        Operation::Rename => {
            // A new name that is not told may be any.
            keeps_rows_of(batch.namespace(row)) || batch.renamed_to(row).is_none_or(|name| keeps_rows_of(&name))
        }
        // About more than one name.
        _ => true,
    }
}

/// Refuses a filter that keeps changes of rows from the sink of this name, which mirrors them.
///
/// # Errors
/// `Config`, with the operations that are hidden.
pub fn require_all_rows(filter: &dyn Filter, sink: &str) -> Result<()> {
    let is_hidden = |operation: &Operation| {
        filter.foresees(RowSummary { operation: Some(*operation), namespace: None }) == Some(false)
    };
    let hidden: Vec<_> = OF_ROWS.into_iter().filter(is_hidden).map(Operation::as_str).collect();
    if hidden.is_empty() {
        return Ok(());
    }
    let cause =
        format!("the filter of sink {sink:?} hides {} from a mirror, which would keep old rows", hidden.join(", "));
    Err(Error::config(cause)
        .remedy("take `operations` out of the filter, or keep the changes as events (mode = \"events\")"))
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::payload::{JsonPayload, Payload, ValueRef, Visit};
    use watchkeeper_core::{BatchBuilder, Position, RowParts, SourceTime, Version};

    use super::*;

    /// 0: insert into shop.orders, 1: delete from shop.users, 2: insert into audit.
    fn batch() -> Batch {
        let rows =
            [("shop.orders", Operation::Insert), ("shop.users", Operation::Delete), ("audit", Operation::Insert)];
        let mut builder = BatchBuilder::new("log".into(), Arc::new(JsonPayload));
        for (namespace, operation) in rows {
            let namespace = builder.namespace(namespace);
            builder.push(RowParts {
                operation,
                namespace,
                half: 0,
                committable: true,
                key: Some(b"1"),
                position: b"1",
                body: b"{}",
                time: SourceTime(1),
                version: Version::default(),
            });
        }
        builder.finish(Position::new("1", None))
    }

    fn kept(filter: &dyn Filter) -> Vec<u32> {
        let batch = batch();
        (0..3).filter(|row| filter.keeps(&batch, *row)).collect()
    }

    #[test]
    fn operations_namespaces_and_closures_keep_their_own() {
        assert_eq!(kept(&Operations::from(Operation::Insert)), [0, 2]);
        assert_eq!(kept(&Namespaces::from_iter(["shop.*"])), [0, 1]);
        assert_eq!(kept(&Namespaces::from_iter(["audit", "shop.users"])), [1, 2]);
        assert_eq!(kept(&|_: &Batch, row: u32| row == 1), [1]);
    }

    /// A rename to a name that stands in its body, as MongoDB tells it.
    #[derive(Debug)]
    struct Renames;

    impl Payload for Renames {
        fn get<'a>(&self, _body: &'a [u8], _path: &[&str]) -> Result<Option<ValueRef<'a>>> {
            Ok(None)
        }

        fn walk(&self, _body: &[u8], _visit: &mut dyn Visit) -> Result<()> {
            Ok(())
        }

        fn renamed_to(&self, body: &[u8]) -> Option<String> {
            std::str::from_utf8(body).ok().filter(|name| !name.is_empty()).map(str::to_owned)
        }
    }

    /// Whether a sink that mirrors, or does not, gets a change without a key.
    fn gets(filter: &dyn Filter, mirrors: bool, (operation, namespace, to): (Operation, &str, &str)) -> bool {
        let mut builder = BatchBuilder::new("log".into(), Arc::new(Renames));
        let namespace = builder.namespace(namespace);
        builder.push(RowParts {
            operation,
            namespace,
            half: 0,
            committable: true,
            key: None,
            position: b"1",
            body: to.as_bytes(),
            time: SourceTime(1),
            version: Version::default(),
        });
        is_delivered(filter, mirrors, &builder.finish(Position::new("1", None)), 0)
    }

    #[test]
    fn what_changes_the_meaning_of_a_name_reaches_a_mirror_of_it_whatever_the_filter() {
        let orders = || Arc::new(Namespaces::from_iter(["shop.orders"])) as Arc<dyn Filter>;
        let rows = || Arc::new(Operations::from(OF_ROWS)) as Arc<dyn Filter>;
        let both = All(vec![orders(), rows()]);
        let reaching = [
            (Operation::Truncate, "shop.orders", ""),
            (Operation::Drop, "shop.orders", ""),
            (Operation::Rename, "shop.orders", "shop.old"),
            (Operation::Rename, "shop.staging", "shop.orders"),
            (Operation::Rename, "shop.staging", ""),
            (Operation::DropDatabase, "shop", ""),
            (Operation::Invalidate, "shop", ""),
        ];
        for change in reaching {
            assert!(gets(&both, true, change), "{change:?}");
            assert!(!gets(&both, false, change), "{change:?} at a sink that is no mirror");
        }
        for change in [
            (Operation::Drop, "shop.items", ""),
            (Operation::Rename, "shop.staging", "shop.items"),
            (Operation::Create, "shop.orders", ""),
        ] {
            assert!(!gets(&both, true, change), "{change:?}");
        }
        let excluded = Not(Namespaces::from_iter(["shop.items"]));
        assert!(gets(&All(vec![Arc::new(excluded.clone()), rows()]), true, (Operation::Drop, "shop.orders", "")));
        assert!(!gets(&All(vec![Arc::new(excluded), rows()]), true, (Operation::Drop, "shop.items", "")));
        // Of code that somebody wrote nothing is foreseen.
        assert!(gets(&|_: &Batch, _: u32| false, true, (Operation::Drop, "shop.orders", "")));
    }

    #[test]
    fn a_mirror_needs_all_operations_of_rows() {
        let some = || Arc::new(Operations::from([Operation::Insert, Operation::Update])) as Arc<dyn Filter>;
        let shop = || Arc::new(Namespaces::from_iter(["shop.*"])) as Arc<dyn Filter>;
        for filter in [All(vec![some()]), All(vec![some(), shop()])] {
            let error = require_all_rows(&filter, "copy").expect_err("it hides rows");
            assert!(error.message().contains("hides replace, delete, read from a mirror"), "{error}");
        }
        assert!(require_all_rows(&All(vec![shop()]), "copy").is_ok());
        assert!(require_all_rows(&Operations::from(OF_ROWS), "copy").is_ok());
        assert!(require_all_rows(&|_: &Batch, _: u32| true, "copy").is_ok());
    }

    #[test]
    fn filters_are_joined() {
        let inserts = || Arc::new(Operations::from(Operation::Insert)) as Arc<dyn Filter>;
        let shop = || Arc::new(Namespaces::from_iter(["shop.*"])) as Arc<dyn Filter>;
        assert_eq!(kept(&All(vec![inserts(), shop()])), [0]);
        assert_eq!(kept(&Any(vec![inserts(), shop()])), [0, 1, 2]);
        assert_eq!(kept(&Not(All(vec![inserts(), shop()]))), [1, 2]);
        assert_eq!(kept(&All::default()), [0, 1, 2]);
        assert!(kept(&Any::default()).is_empty());
    }
}
