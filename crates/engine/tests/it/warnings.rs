//! What is logged as a warning, for tests of what people are warned of.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// What is logged as a warning on this thread.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// How many warnings of what `run` did have all of `parts` in their message.
    pub(crate) fn during(run: impl FnOnce(), parts: &[&str]) -> usize {
        let warnings = Self::default();
        tracing::subscriber::with_default(warnings.clone(), run);
        warnings.count(parts)
    }

    /// How many warnings so far have all of `parts` in their message.
    pub(crate) fn count(&self, parts: &[&str]) -> usize {
        let logged = self.0.lock().unwrap();
        logged.iter().filter(|warning| parts.iter().all(|part| warning.contains(part))).count()
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
