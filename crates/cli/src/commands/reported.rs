//! What running instances report of their streams, for a check: a part that can be looked at now may fail for them nevertheless.

use watchkeeper::core::{Cx, Finding, Severity};
use watchkeeper::engine::group::registry::{Listed, Registry};
use watchkeeper::engine::group::report::Doing;

use super::home;
use crate::config::Config;
use crate::overview::in_words;

/// The healthy instances of the group. None where the records cannot be asked, which is reported elsewhere.
pub(super) async fn members(cx: &Cx, config: &Config) -> Vec<Listed> {
    let group = &config.group;
    let Some(records) = home::records(cx, group.records.as_ref().unwrap_or(&group.store)).await else {
        return Vec::new();
    };
    let registry = Registry::new(records, &group.settings.group).unhealthy_after(group.settings.unhealthy_after);
    let mut members = cx.run(registry.list(cx)).await.unwrap_or_default();
    members.retain(|listed| listed.healthy);
    members.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    members
}

/// What does not work for them with `stream`.
pub(super) fn findings(members: &[Listed], stream: &str) -> Vec<Finding> {
    let of_member = |listed: &Listed| {
        let report = listed.member.reports.iter().find(|report| report.stream == stream)?;
        let trouble = report.trouble.as_ref().filter(|_| report.doing != Doing::Stopped)?;
        let what = format!("{} is {}: {}", listed.member.name, report.doing, in_words(trouble));
        let remedy = format!("deal with the cause; `watchkeeper status {stream}` shows whether it is over");
        Some(Finding { severity: Severity::Warning, what, remedy: Some(remedy) })
    };
    members.iter().filter_map(of_member).collect()
}
