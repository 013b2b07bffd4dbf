//! A stream as an instance knows it: source, sinks, checkpoint store, settings.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{CheckpointStore, Error, Grade, LeaseKey, Result, Sink, Source};

use crate::delivery::filter::Filter;
use crate::delivery::parking::OnReject;
use crate::settings::StreamSettings;

/// One target of a stream.
#[derive(Debug, Clone)]
pub struct SinkSpec {
    /// Its name within the stream.
    pub name: String,
    /// The target.
    pub sink: Arc<dyn Sink>,
    /// What happens to a change that it will never take.
    pub on_reject: OnReject,
    /// Which changes it gets; all without one.
    pub filter: Option<Arc<dyn Filter>>,
}

impl SinkSpec {
    /// A sink that gets everything and stops at the first rejected change.
    pub fn new(name: &str, sink: Arc<dyn Sink>) -> Self {
        Self { name: name.to_owned(), sink, on_reject: OnReject::default(), filter: None }
    }
}

/// One stream.
#[derive(Debug, Clone)]
pub struct StreamSpec {
    /// How it runs.
    pub settings: StreamSettings,
    /// Where changes come from.
    pub source: Arc<dyn Source>,
    /// Where they go. All are required: a position is committed when all have taken it.
    pub sinks: Vec<SinkSpec>,
    /// Where its checkpoint is kept; the group's by default, a transactional sink's own otherwise.
    pub checkpoints: Option<Arc<dyn CheckpointStore>>,
}

impl StreamSpec {
    /// What its lease and checkpoint are kept under.
    ///
    /// Generation and partition have their place here: a stream that is not split is partition 0 of
    /// generation 0.
    pub fn key(&self, group: &str) -> LeaseKey {
        LeaseKey::new(format!("{group}/{}/0/0", self.settings.name))
    }

    /// The weakest grade of its sinks: what the stream as a whole can promise.
    pub fn grade(&self) -> Option<Grade> {
        self.sinks.iter().map(|spec| spec.sink.profile().grade).min()
    }

    /// How long to wait until late writes of an ended tenure can do no more harm; zero when no sink is
    /// exposed to them.
    pub fn settle(&self) -> Duration {
        let profiles = self.sinks.iter().map(|spec| spec.sink.profile());
        profiles.filter(|profile| profile.grade.is_exposed()).map(|profile| profile.settle).max().unwrap_or_default()
    }

    /// Checks what can be known without a connection.
    pub fn validate(&self) -> Result<()> {
        self.settings.validate()?;
        let name = &self.settings.name;
        if self.sinks.is_empty() {
            return Err(Error::config(format!("stream {name:?} has no sink")).remedy("give it at least one"));
        }
        let twice = self
            .sinks
            .iter()
            .enumerate()
            .find(|(at, spec)| self.sinks[..*at].iter().any(|earlier| earlier.name == spec.name));
        if let Some((_, spec)) = twice {
            let cause = format!("stream {name:?} has two sinks named {:?}", spec.name);
            return Err(Error::config(cause).remedy("name them apart"));
        }
        let transactional = self.sinks.iter().filter(|spec| spec.sink.profile().grade == Grade::Transactional);
        if transactional.count() > 1 {
            return Err(Error::config(format!("stream {name:?} has two transactional sinks"))
                .remedy("one checkpoint can be in one transaction only: make the other one versioned"));
        }
        Ok(())
    }
}
