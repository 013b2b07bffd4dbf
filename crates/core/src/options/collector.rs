//! Collecting the errors of settings, so that all of them are reported at once and not only the first.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Options, Setting};
use crate::error::{Error, Result};

/// Errors of settings. Settings that [collect into it](Options::collect_into) report each error here and go on as if the
/// setting had not been written.
#[derive(Debug, Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<Error>>>);

impl Collector {
    /// Adds an error, unless the same one is there already.
    pub fn push(&self, error: Error) {
        let mut errors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |known: &Error| known.place() == error.place() && known.message() == error.message();
        if !errors.iter().any(is_known) {
            errors.push(error);
        }
    }

    /// How many errors there are.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all errors out.
    pub fn take(&self) -> Vec<Error> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Two are equal when they collect in one place.
impl PartialEq for Collector {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Options {
    /// From now on errors of these settings, and of all tables below them, go to `collector`; to whoever takes the setting
    /// with `None`, as they do from the start.
    pub fn collect_into(&mut self, collector: Option<&Collector>) {
        self.collector = collector.cloned();
        self.entries.values_mut().for_each(|written| collect_below(&mut written.setting, collector));
    }

    /// Where errors go.
    pub fn collector(&self) -> Option<&Collector> {
        self.collector.as_ref()
    }

    /// Reports an error of these settings.
    ///
    /// # Errors
    /// The same one, where errors are not collected.
    pub fn report(&self, error: Error) -> Result<()> {
        match &self.collector {
            Some(collector) => {
                collector.push(error);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// The value, or `None` when an error was reported instead.
    ///
    /// # Errors
    /// The error, where errors are not collected.
    pub fn reported<T>(&self, value: Result<T>) -> Result<Option<T>> {
        value.map(Some).or_else(|error| self.report(error).map(|()| None))
    }
}

fn collect_below(setting: &mut Setting, collector: Option<&Collector>) {
    match setting {
        Setting::Table(table) => table.collect_into(collector),
        Setting::List(list) => list.iter_mut().for_each(|written| collect_below(&mut written.setting, collector)),
        Setting::Text(_) | Setting::Integer(_) | Setting::Float(_) | Setting::Flag(_) => {}
    }
}
