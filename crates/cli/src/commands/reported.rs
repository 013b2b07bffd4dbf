//! What running instances report of their streams, for a check: a part that can be looked at now may fail for them nevertheless.

use watchkeeper::core::{Cx, Finding, Severity};
use watchkeeper::engine::group::registry::{Listed, Registry};
use watchkeeper::engine::group::report::StreamActivity;

use super::store_binding;
use crate::config::Config;
use crate::overview::{in_words, report, silence};

/// The instances of the group. `None` where the records cannot be asked, which is reported elsewhere.
pub(super) async fn members(cx: &Cx, config: &Config) -> Option<Vec<Listed>> {
    let group = &config.group;
    let Some(records) = store_binding::records(cx, group.records.as_ref().unwrap_or(&group.store)).await else {
        // The store is not made yet, or not reached, which is told of it.
        return Some(Vec::new());
    };
    let registry = Registry::new(records, &group.settings.group).unhealthy_after(group.settings.unhealthy_after);
    let mut members = cx.run(registry.list(cx)).await.ok()?;
    members.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    Some(members)
}

/// That nothing runs, or nothing that could take over.
pub(super) fn too_few(members: &[Listed]) -> Option<Finding> {
    let mut running = members.iter().filter(|listed| !listed.is_silent());
    let (what, remedy) = match (running.next(), running.next()) {
        (None, _) => ("no instance runs".to_owned(), "start one with `watchkeeper run`"),
        (Some(only), None) => (
            format!("only {} runs: no other instance would take over from it", only.member.name),
            "start another one with the same file, on another machine",
        ),
        _ => return None,
    };
    Some(Finding { severity: Severity::Note, what, remedy: Some(remedy.to_owned()) })
}

/// What does not work for them with `stream`.
pub(super) fn findings(members: &[Listed], stream: &str) -> Vec<Finding> {
    let of_member = |listed: &&Listed| {
        let report = report(stream, listed)?;
        let trouble = report.trouble.as_ref().filter(|_| report.doing != StreamActivity::Stopped)?;
        let what = format!("{} is {}: {}", listed.member.name, report.doing, in_words(trouble));
        let remedy = format!("deal with the cause; `watchkeeper status {stream}` shows whether it is over");
        Some(Finding { severity: Severity::Warning, what, remedy: Some(remedy) })
    };
    let speaking = members.iter().filter(|listed| !listed.is_silent());
    speaking.filter_map(|listed| of_member(&listed)).chain(nobody_running(members, stream)).collect()
}

/// That all instances that have `stream` are silent. A group that does not run has none.
fn nobody_running(members: &[Listed], stream: &str) -> Option<Finding> {
    let has = |listed: &&Listed| report(stream, listed).is_some();
    let (silent, speaking): (Vec<_>, Vec<_>) = members.iter().filter(has).partition(|listed| listed.is_silent());
    if silent.is_empty() || !speaking.is_empty() {
        return None;
    }
    let silences: Vec<_> = silent.into_iter().map(silence).collect();
    Some(Finding {
        severity: Severity::Warning,
        what: format!("no running instance has this stream: {}", silences.join(", ")),
        remedy: Some("see whether the process still runs, or start an instance with `watchkeeper run`".to_owned()),
    })
}
