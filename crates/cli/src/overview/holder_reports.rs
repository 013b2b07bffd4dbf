//! What the instances tell of one stream.

use std::collections::BTreeMap;
use std::time::Duration;

use watchkeeper::Grade;
use watchkeeper::core::Holder;
use watchkeeper::engine::group::registry::Listed;
use watchkeeper::engine::group::report::{SinkReport, StreamActivity, StreamReport, Trouble};

use super::stream::{OnInstance, Sink};
use crate::when::{millis, span};

/// What the healthy instances tell of one stream.
pub(super) struct HolderReports {
    /// What whoever has the watch tells, under the epoch that it has.
    pub(super) holder: Option<StreamReport>,
    /// What that instance tells, also if it has not told since it has the watch.
    pub(super) holding: Option<StreamReport>,
    /// All of them.
    pub(super) instances: Vec<OnInstance>,
    /// Its sinks, as any of them knows them.
    pub(super) sinks: Vec<SinkReport>,
    /// Those that have it too, and have missed their heartbeats: nobody counts on them. Each in words.
    silent: Vec<String>,
    /// Whoever has the watch, in words, if it is among those.
    pub(super) silent_holder: Option<String>,
}

impl HolderReports {
    pub(super) fn of(stream: &str, holder: Option<&Holder>, members: &[Listed]) -> Self {
        let mut reports = Self {
            holder: None,
            holding: None,
            instances: Vec::new(),
            sinks: Vec::new(),
            silent: Vec::new(),
            silent_holder: None,
        };
        for listed in members {
            let Some(report) = report(stream, listed) else { continue };
            if listed.is_silent() {
                let is_holder = holder.is_some_and(|holder| holder.candidate.instance == listed.member.instance);
                reports.silent_holder = reports.silent_holder.or_else(|| is_holder.then(|| silence(listed)));
                reports.silent.push(silence(listed));
                continue;
            }
            reports.instances.push(OnInstance {
                name: listed.member.name.clone(),
                instance: listed.member.instance.to_string(),
                doing: report.doing,
                trouble: report.trouble.clone(),
                not_delivering_millis: report.not_delivering_millis,
            });
            if reports.sinks.is_empty() {
                reports.sinks.clone_from(&report.sinks);
            }
            if let Some(holder) = holder.filter(|holder| holder.candidate.instance == listed.member.instance) {
                reports.holder = Some(report.clone()).filter(|report| report.epoch == Some(holder.epoch));
                reports.holding = Some(report);
            }
        }
        reports
    }

    pub(super) fn sink(&self, name: &str) -> Sink {
        let known = self.sinks.iter().find(|sink| sink.name == name);
        Sink { name: name.to_owned(), grade: known.map(|sink| sink.grade) }
    }

    /// The weakest grade of its sinks.
    pub(super) fn grade(&self) -> Option<Grade> {
        self.sinks.iter().map(|sink| sink.grade).min()
    }

    /// For how long it has not been delivered, in milliseconds, as whoever has the watch tells; while that has not told, or nobody has
    /// it, as any of them tells.
    pub(super) fn outage(&self) -> Option<u64> {
        match &self.holder {
            Some(report) => report.not_delivering_millis,
            None => self.instances.iter().filter_map(|on| on.not_delivering_millis).max(),
        }
    }

    /// Whether who has the watch does not deliver: it says so, or it has said nothing yet and those before it did not.
    pub(super) fn is_recovering(&self) -> bool {
        self.outage().is_some() || self.holder.as_ref().is_some_and(|report| report.doing == StreamActivity::Recovering)
    }

    /// The last error of who has the watch.
    pub(super) fn error(&self) -> Option<String> {
        Some(self.holding.as_ref()?.trouble.as_ref()?.error.clone())
    }

    /// Those who could take it from `holder`. What they told may be a moment old, so only what keeps them from it counts.
    pub(super) fn standing_by(&self, holder: Option<&Holder>) -> Vec<String> {
        let holder = holder.map(|holder| holder.candidate.instance.to_string());
        let could = |on: &&OnInstance| {
            !matches!(on.doing, StreamActivity::Failing | StreamActivity::Opening | StreamActivity::Stopped)
        };
        let others = self.instances.iter().filter(could).filter(|on| Some(&on.instance) != holder.as_ref());
        others.map(|on| on.name.clone()).collect()
    }

    /// Whether nobody is there who was given this stream.
    pub(super) fn is_unmanned(&self) -> bool {
        self.instances.is_empty()
    }

    /// What to do about a stream that nobody is there for.
    pub(super) fn nobody_running_remedy(&self) -> String {
        let start = "start an instance with `watchkeeper run`";
        match self.silent.is_empty() {
            true => start.to_owned(),
            false => format!(
                "{}: it is dead or hangs, or the store takes no writes (`watchkeeper check` tries that); {start}",
                self.silent.join(", ")
            ),
        }
    }

    /// Whether it is opened for the first time by someone.
    pub(super) fn is_opening(&self) -> bool {
        self.instances.iter().any(|on| on.doing == StreamActivity::Opening)
    }

    /// Why it runs nowhere, if it fails on all who are there.
    pub(super) fn failing_everywhere(&self) -> Option<String> {
        let failing = self.instances.iter().all(|on| on.doing == StreamActivity::Failing);
        let causes = causes(&self.instances);
        (failing && !causes.is_empty()).then(|| causes.join("; "))
    }
}

/// What does not work, in words: a cause that several instances have is named once, for the longest time that it has lasted.
pub(crate) fn causes<'i>(instances: impl IntoIterator<Item = &'i OnInstance>) -> Vec<String> {
    let mut by_error = BTreeMap::<&str, (Vec<&str>, Trouble)>::new();
    for on in instances {
        let Some(trouble) = &on.trouble else { continue };
        let (names, shown) = by_error.entry(&trouble.error).or_insert_with(|| (Vec::new(), trouble.clone()));
        names.push(&on.name);
        shown.lasting_millis = shown.lasting_millis.max(trouble.lasting_millis);
        shown.attempts = shown.attempts.max(trouble.attempts);
        shown.next_try_millis = shown.next_try_millis.into_iter().chain(trouble.next_try_millis).min();
    }
    by_error.into_values().map(|(names, trouble)| format!("on {}: {}", names.join(", "), in_words(&trouble))).collect()
}

/// A trouble in words.
pub(crate) fn in_words(trouble: &Trouble) -> String {
    let Trouble { error, lasting_millis, attempts, next_try_millis, .. } = trouble;
    let lasting = span(Duration::from_millis(*lasting_millis));
    let times = if *attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
    let next_try = next_try_millis.map(|next| format!(", next try in {}", span(Duration::from_millis(next))));
    format!("{error} (for {lasting}, tried {times}{})", next_try.unwrap_or_default())
}

/// How long an instance has been silent, in words.
pub(crate) fn silence(listed: &Listed) -> String {
    let expected =
        listed.heartbeat_every().map(|every| format!(", expected every {}", span(every))).unwrap_or_default();
    format!("{} is silent for {}{expected}", listed.member.name, span(listed.age))
}

/// What an instance tells of a stream, with the time since it told. One of an older program only says that it could run it.
pub(crate) fn report(stream: &str, listed: &Listed) -> Option<StreamReport> {
    let reports = listed.member.reports.iter().find(|report| report.stream == stream).cloned();
    let plain = || StreamReport::new(stream, StreamActivity::Standby);
    let is_able = listed.member.streams.iter().any(|known| known == stream);
    let mut report = reports.or_else(|| is_able.then(plain))?;
    // What waited then may be delivered by now, so only what lasts until it is told otherwise grows with the time.
    if let Some(trouble) = &mut report.trouble {
        let age = millis(listed.age);
        trouble.lasting_millis += age;
        // What is overdue was tried meanwhile.
        trouble.next_try_millis = trouble.next_try_millis.and_then(|next| next.checked_sub(age));
    }
    report.not_delivering_millis = report.not_delivering_millis.map(|span| span + millis(listed.age));
    Some(report)
}
