//! Of which source tables rows lie in a table.

use std::sync::{Arc, Mutex, PoisonError};

use watchkeeper_core::{Change, Error, Result};

/// Whether rows of several source tables lie in one target, whose columns do not tell which row is whose.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    /// Whether changes of several tables may come.
    pub(super) are_several: bool,
    seen: Arc<Mutex<OriginMatch>>,
}

#[derive(Debug, Default)]
enum OriginMatch {
    #[default]
    Nothing,
    One(String),
    Several,
}

impl Origins {
    /// Notes whose rows these are.
    pub(super) fn note(&self, changes: &[Change]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes.iter().filter(|change| change.key().is_some()) {
            match &*seen {
                OriginMatch::Nothing => *seen = OriginMatch::One(change.namespace().to_owned()),
                OriginMatch::One(table) if table != change.namespace() => *seen = OriginMatch::Several,
                OriginMatch::One(_) | OriginMatch::Several => {}
            }
        }
    }

    /// Refuses to clear the target for one of several tables.
    ///
    /// # Errors
    /// `Config`.
    pub(super) fn require_sole(&self, target: &str, change: &Change) -> Result<()> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let has_others = match &*seen {
            OriginMatch::Nothing => false,
            OriginMatch::One(table) => table != change.namespace(),
            OriginMatch::Several => true,
        };
        if !self.are_several && !has_others {
            return Ok(());
        }
        let (operation, table) = (change.operation(), change.namespace());
        let cause =
            format!("the {operation} of {table} would clear {target:?}, which may have rows of other tables too");
        Err(Error::config(cause).remedy(format!(
            "delete the rows of {table} from {target:?} and skip this change; a sink for each table (filter = {{ namespaces = [{table:?}] }}) \
             follows it by itself"
        )))
    }
}
