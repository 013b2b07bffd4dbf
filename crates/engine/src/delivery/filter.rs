//! Which changes a sink gets.

use std::fmt;
use std::sync::Arc;

use watchkeeper_core::Batch;

use super::routes::{Operations, Pattern};

/// Decides row by row. What it does not keep counts as delivered, so it must always decide alike:
/// after a failover the same changes are asked about again.
///
/// Any `Fn(&Batch, u32) -> bool` is one, and so are [`Operations`].
pub trait Filter: Send + Sync {
    /// Whether row `row` of `batch` is for the sink.
    fn keeps(&self, batch: &Batch, row: u32) -> bool;
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
        let namespace = batch.namespace(row);
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
}

/// Keeps what at least one of these keeps; without any, nothing.
#[derive(Debug, Clone, Default)]
pub struct Any(pub Vec<Arc<dyn Filter>>);

impl Filter for Any {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        self.0.iter().any(|filter| filter.keeps(batch, row))
    }
}

/// Keeps what this one does not.
#[derive(Debug, Clone)]
pub struct Not<F>(pub F);

impl<F: Filter> Filter for Not<F> {
    fn keeps(&self, batch: &Batch, row: u32) -> bool {
        !self.0.keeps(batch, row)
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::payload::JsonPayload;
    use watchkeeper_core::{BatchBuilder, Operation, Position, RowParts, SourceTime, Version};

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
