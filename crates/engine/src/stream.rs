//! A stream as an instance knows it: source, sinks, checkpoint store, settings.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Batch, CheckpointStore, Error, Grade, LeaseKey, Result, Sink, SinkProfile, Source};

use crate::delivery::filter::{Filter, is_delivered, require_all_rows};
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

    /// Whether the sink, whose profile says whether it mirrors, gets row `row` of `batch`.
    pub(crate) fn takes(&self, mirrors: bool, batch: &Batch, row: u32) -> bool {
        self.filter.as_deref().is_none_or(|filter| is_delivered(filter, mirrors, batch, row))
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

/// What the lease and checkpoint of the stream of this name are kept under.
pub fn key_of(group: &str, stream: &str) -> LeaseKey {
    LeaseKey::new(format!("{group}/{stream}/0/0"))
}

impl StreamSpec {
    /// What its lease and checkpoint are kept under.
    ///
    /// Generation and partition have their place here: a stream that is not split is partition 0 of
    /// generation 0.
    pub fn key(&self, group: &str) -> LeaseKey {
        key_of(group, &self.settings.name)
    }

    /// Its sinks by name, as an operator's move wants to know them.
    pub fn profiles(&self) -> Vec<(String, SinkProfile)> {
        self.sinks.iter().map(|spec| (spec.name.clone(), spec.sink.profile())).collect()
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

    /// How long to wait before a reopening in the same tenure until what the last opening abandoned can do no more harm. A fence
    /// lets it through, since it has the same epoch; only versions and transactions keep it out.
    pub fn settle_before_reopening(&self) -> Duration {
        let profiles = self.sinks.iter().map(|spec| spec.sink.profile());
        let takes_it = |grade: Grade| grade.is_exposed() || grade == Grade::Fenced;
        profiles.filter(|profile| takes_it(profile.grade)).map(|profile| profile.settle).max().unwrap_or_default()
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
        for spec in self.sinks.iter().filter(|spec| spec.sink.profile().mirrors) {
            self.source.require_all_changes()?;
            if let Some(filter) = &spec.filter {
                require_all_rows(&**filter, &spec.name)?;
            }
        }
        let transactional = self.sinks.iter().filter(|spec| spec.sink.profile().grade == Grade::Transactional);
        if transactional.count() > 1 {
            return Err(Error::config(format!("stream {name:?} has two transactional sinks"))
                .remedy("one checkpoint can be in one transaction only: make the other one versioned"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::memory::{Checkpoints, Log, Table, TableSink, TransactionalTable};
    use watchkeeper_core::{Entropy, ErrorKind, StoreIdentity};

    use super::*;

    fn graded(name: &str, grade: Grade, settle: u64) -> SinkSpec {
        let profile = SinkProfile::new(grade, Duration::from_secs(settle));
        SinkSpec::new(name, Arc::new(TableSink::new(Table::default(), grade).with_profile(profile)))
    }

    fn transactional(name: &str) -> SinkSpec {
        let store = Checkpoints::new(StoreIdentity(Entropy::seeded(1).uuid()));
        SinkSpec::new(name, Arc::new(TransactionalTable::new(store)))
    }

    fn stream(sinks: Vec<SinkSpec>) -> StreamSpec {
        let settings = StreamSettings::new("orders");
        StreamSpec { settings, source: Arc::new(Log::new("log")), sinks, checkpoints: None }
    }

    #[test]
    fn a_stream_promises_what_its_weakest_sink_does() {
        let sinks = vec![graded("a", Grade::Fenced, 0), graded("b", Grade::Idempotent, 0), transactional("c")];
        assert_eq!(stream(sinks).grade(), Some(Grade::Idempotent));
    }

    #[test]
    fn only_exposed_sinks_have_to_settle_and_the_slowest_of_them_counts() {
        let exposed = vec![
            graded("a", Grade::Plain, 3),
            graded("b", Grade::Idempotent, 4),
            graded("c", Grade::Versioned, 60),
            graded("d", Grade::Fenced, 60),
        ];
        assert_eq!(stream(exposed).settle(), Duration::from_secs(4));
        let own = vec![graded("a", Grade::Plain, 3), graded("c", Grade::Versioned, 60), graded("d", Grade::Fenced, 9)];
        assert_eq!(
            stream(own).settle_before_reopening(),
            Duration::from_secs(9),
            "a fence takes what has its own epoch"
        );
        assert_eq!(stream(vec![graded("c", Grade::Versioned, 60)]).settle(), Duration::ZERO);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let refused = |sinks| stream(sinks).validate().expect_err("it cannot work");
        for (sinks, cause) in [
            (vec![], "stream \"orders\" has no sink"),
            (vec![graded("a", Grade::Plain, 0), graded("a", Grade::Fenced, 0)], "two sinks named \"a\""),
            (vec![transactional("a"), transactional("b")], "two transactional sinks"),
        ] {
            let error = refused(sinks);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.message().contains(cause), "{error}");
        }
        assert!(stream(vec![transactional("a"), graded("b", Grade::Plain, 0)]).validate().is_ok());
    }
}
