//! What can be said of a stream as a whole, without a connection.

use watchkeeper::core::{Collector, Grade, Origin, Purpose, SinkProfile, SourcePlan, StartAt};
use watchkeeper::engine::delivery::filter::require_all_rows;
use watchkeeper::{Error, OnHistoryLost, Result};

use super::{Stream, Target};
use crate::config::System;

/// Validates the settings of the source and the sinks, and whether they fit together. All that is wrong goes to `collector`. `names_sinks`
/// says whether sinks are written there, be they good or not.
pub(super) fn validate(stream: &mut Stream, group: &str, names_sinks: bool, collector: &Collector) {
    let purpose = Purpose::new(group, &stream.settings.name)
        .with_lanes(stream.settings.concurrency)
        .reading(&*stream.source.backend, &stream.source.options);
    let source = stream.source.validated(collector, |backend, options| backend.validate_source(&purpose, options));
    for target in &mut stream.sinks {
        let plan = target.system.validated(collector, |backend, options| backend.validate_sink(&purpose, options));
        let Some(plan) = plan else { continue };
        (target.profile, target.exclusive) = (Some(plan.profile), plan.exclusive);
    }
    let report = |result: Result<()>| result.unwrap_or_else(|error| collector.push(error));
    stream.sinks.iter().for_each(|target| report(require_all(stream, target, source.is_some())));
    let profiles: Vec<_> = stream.sinks.iter().filter_map(|target| target.profile.clone()).collect();
    if names_sinks != stream.sinks.is_empty() {
        report(require_sinks(stream, &profiles));
    }
    report(require_rows(stream, &profiles, source.unwrap_or_default()));
    if source.is_some() {
        report(require_start(stream));
    }
}

/// Refuses a filter or a source that hides changes from a sink that mirrors.
fn require_all(stream: &Stream, target: &Target, source_is_good: bool) -> Result<()> {
    if !target.profile.as_ref().is_some_and(|profile| profile.mirrors) {
        return Ok(());
    }
    let source = &stream.source;
    if source_is_good {
        let whole = source.backend.require_all_changes(&mut source.options.clone());
        whole.map_err(|error| error.at(source.options.origin()))?;
    }
    let rows = target.filter.as_ref().map_or(Ok(()), |filter| require_all_rows(&**filter, &target.name));
    rows.map_err(|error| error.at(target.system.options.origin()))
}

/// Refuses a stream without a sink, sinks of one name, and sinks of which each wants to keep the checkpoint.
fn require_sinks(stream: &Stream, profiles: &[SinkProfile]) -> Result<()> {
    let name = &stream.settings.name;
    let wrong = |cause: String, remedy: &str| Err(Error::config(cause).remedy(remedy).at(&stream.origin));
    if stream.sinks.is_empty() {
        return wrong(format!("stream {name:?} has no sink"), "write at least one [[stream.sink]] below it");
    }
    for (at, sink) in stream.sinks.iter().enumerate() {
        if stream.sinks[..at].iter().any(|earlier| earlier.name == sink.name) {
            return wrong(format!("stream {name:?} has two sinks named {:?}", sink.name), "name them apart");
        }
    }
    if profiles.iter().filter(|profile| profile.grade == Grade::Transactional).count() > 1 {
        let remedy = "one checkpoint can be in one transaction only: give the other target a stream of its own";
        return wrong(format!("stream {name:?} has two transactional sinks"), remedy);
    }
    Ok(())
}

/// Refuses a source that tells less of a change than a sink needs.
fn require_rows(stream: &Stream, profiles: &[SinkProfile], source: SourcePlan) -> Result<()> {
    if source.whole_rows || !profiles.iter().any(|profile| profile.whole_rows) {
        return Ok(());
    }
    let cause =
        format!("stream {:?}: its updates tell only what differs, and a mirror needs all", stream.settings.name);
    let remedy = "let the source tell it: full_document = \"updateLookup\", or \"required\" with stored images";
    Err(Error::config(cause).remedy(remedy).at(&stream.origin))
}

/// Refuses what the source can neither begin with nor go on with when history is lost.
fn require_start(stream: &Stream) -> Result<()> {
    let System { backend, options } = &stream.source;
    let require = |start: &StartAt, origin: &Origin| {
        backend.validate_start(&mut options.clone(), start).map_err(|error| error.at(origin))
    };
    require(&stream.settings.start, &stream.start_origin)?;
    match &stream.settings.on_history_lost {
        OnHistoryLost::GoOn(start) => require(start, &stream.lost_origin),
        _ => Ok(()),
    }
}
