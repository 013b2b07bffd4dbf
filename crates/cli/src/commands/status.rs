//! `status`: who has the watch, how far it is, who stands by.

use std::time::Duration;

use watchkeeper::Result;
use watchkeeper::core::{Reason, Report};
use watchkeeper::engine::group::report::StreamActivity;

use crate::answer::report;
use crate::overview::{Committed, Health, Member, OnInstance, Overview, Sink, State, Stream, causes, gather, in_words};
use crate::site::Site;
use crate::when::span;

/// Looks at all streams, or at one; with how well they are.
pub(crate) async fn status(site: &Site, only: Option<&str>) -> Result<(Report, Health)> {
    let overview = gather(site, only).await?;
    Ok((report(lines(&overview), &overview)?, overview.health))
}

fn lines(overview: &Overview) -> Vec<String> {
    let mut lines = vec![format!("group {}", overview.group)];
    lines.extend(overview.store_file.as_ref().map(|file| format!("  store        {file}")));
    for stream in &overview.streams {
        lines.push(String::new());
        lines.extend(stream_lines(stream));
    }
    lines.push(String::new());
    match overview.members.is_empty() {
        true => lines.push("no instance is there".to_owned()),
        false => lines.push("instances".to_owned()),
    }
    lines.extend(overview.members.iter().map(|member| member_line(member, &overview.streams)));
    lines.extend(overview.remarks.iter().map(|remark| format!("remark: {remark}")));
    lines
}

fn stream_lines(stream: &Stream) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", stream.name, state(stream))];
    lines.extend(why(stream).map(|cause| format!("  why          {cause}")));
    lines.extend(not_delivering(stream).map(|reported| format!("  delivery     {reported}")));
    lines.extend(elsewhere(stream));
    lines.extend(stream.release_notice.as_ref().map(|said| {
        format!("  last said    {} ({}, {} ago)", said.text, said.cause, span(Duration::from_millis(said.age_millis)))
    }));
    match (stream.standing_by.is_empty(), &stream.watch) {
        (false, _) => lines.push(format!("  standing by  {}", stream.standing_by.join(", "))),
        (true, Some(watch)) => lines.push(format!("  standing by  nobody: if {} dies, the stream waits", watch.name)),
        (true, None) => {}
    }
    lines.extend(stream.preferred.as_ref().map(|name| format!("  preferred    {name}")));
    match &stream.unknown {
        Some(cause) => lines.push(format!("  position     unknown ({})", cause.trim_end_matches('.'))),
        None => lines.extend(committed_lines(stream.checkpoint.as_ref())),
    }
    lines.extend(stream.stage.as_ref().map(|stage| {
        let of = stage.of.map(|of| format!(" of about {of}")).unwrap_or_default();
        format!("  busy with    {}: {} {}{of}", stage.what, stage.done, stage.unit)
    }));
    lines.extend(stream.unfinished_snapshots.iter().map(|gap| {
        let (name, number) = (&stream.name, gap.number);
        format!(
            "  incomplete   a gap left its snapshot unfinished, so rows are missing at its targets (ledger entry {number}: {}); begin \
             it anew: watchkeeper checkpoint set {name} snapshot",
            gap.cause
        )
    }));
    let or_more = if stream.not_delivering_millis.is_some() { " or more" } else { "" };
    lines.extend(stream.lag_millis.map(|lag| format!("  lag          {}{or_more}", span(Duration::from_millis(lag)))));
    lines.extend(
        stream.undelivered_millis.map(|age| {
            format!("  undelivered  the oldest change that waits is {} old", span(Duration::from_millis(age)))
        }),
    );
    let sinks: Vec<_> = stream.sinks.iter().map(sink).collect();
    lines.push(format!("  sinks        {}", sinks.join(", ")));
    lines.extend(stream.grade.map(|weakest| format!("  grade        {}", grade(weakest))));
    lines.extend(stream.remarks.iter().map(|remark| format!("  remark       {remark}")));
    lines
}

/// Why it is not well, with since when and how often it was tried.
fn why(stream: &Stream) -> Option<String> {
    match (stream.state, &stream.trouble) {
        (State::Recovering, Some(trouble)) => Some(in_words(trouble)),
        _ => stream.cause.clone(),
    }
}

/// For how long it has not been delivered, and since when, if it is not.
pub(super) fn not_delivering(stream: &Stream) -> Option<String> {
    let (lasting, since) = (stream.not_delivering_millis?, stream.not_delivering_since.as_ref()?);
    Some(format!("none for {}, since {since}", span(Duration::from_millis(lasting))))
}

/// Where it cannot run, though it runs elsewhere.
fn elsewhere(stream: &Stream) -> Vec<String> {
    if stream.state == State::Failing {
        return Vec::new();
    }
    // What fails on whoever recovers is why it does.
    let recovering = stream.watch.as_ref().filter(|_| stream.state == State::Recovering);
    let is_shown = |on: &&OnInstance| recovering.is_none_or(|watch| watch.name != on.name);
    let failing = stream.instances.iter().filter(|on| on.doing == StreamActivity::Failing);
    causes(failing.filter(is_shown)).into_iter().map(|cause| format!("  fails        {cause}")).collect()
}

fn sink(sink: &Sink) -> String {
    match sink.grade {
        Some(known) => format!("{} ({})", sink.name, grade(known)),
        None => sink.name.clone(),
    }
}

fn state(stream: &Stream) -> String {
    match (&stream.watch, stream.state) {
        (Some(watch), state @ (State::Running | State::Recovering | State::Pausing)) => {
            let lease = span(Duration::from_millis(watch.lease_millis));
            format!("{state} on {}, epoch {}, its lease runs for {lease}", watch.name, watch.epoch)
        }
        (_, state) => state.to_string(),
    }
}

/// The lines about a checkpoint, which `checkpoint show` prints too.
pub(super) fn committed_lines(checkpoint: Option<&Committed>) -> Vec<String> {
    let Some(at) = checkpoint else { return vec!["  position     none yet".to_owned()] };
    if at.by.is_empty() {
        // Nobody has written it: it stands for one that is missing or damaged.
        return vec!["  position     lost".to_owned()];
    }
    let position = at.position.as_deref().unwrap_or(if at.is_position_lost { "lost" } else { "none yet" });
    let last = match (at.last_operation, &at.last_event_at) {
        (Some(operation), Some(time)) => Some(format!("  last change  {operation} of {time}")),
        _ => None,
    };
    let age = span(Duration::from_millis(at.committed_age_millis));
    let moved = if at.reason == Reason::Operator { ", set by an operator" } else { "" };
    let mut lines = vec![
        format!("  position     {position}{moved}"),
        format!("  committed    {age} ago by {}, epoch {}", at.by, at.epoch),
        format!(
            "  so far       {}, {}, {}",
            count(at.changes, "change"),
            count(at.failovers, "failover"),
            count(at.dead_letters, "open dead letter")
        ),
    ];
    lines.extend(last);
    lines
}

/// `1 change`, `2 changes`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn grade(grade: watchkeeper::Grade) -> String {
    format!("{grade:?}").to_lowercase()
}

fn member_line(member: &Member, streams: &[Stream]) -> String {
    let heard = heard(member);
    let mut does: Vec<_> = streams.iter().filter_map(|stream| ails(member, stream)).collect();
    if !member.holds.is_empty() {
        does.insert(0, format!("has {}", member.holds.join(", ")));
    }
    if does.is_empty() && member.healthy {
        does.push("stands by".to_owned());
    }
    let (name, version, hash) = (&member.name, &member.version, &member.config_hash);
    let parts = [heard].into_iter().chain(does).chain([format!("version {version}, settings {hash}")]);
    format!("  {name}: {}", parts.collect::<Vec<_>>().join(", "))
}

/// When an instance was heard of.
fn heard(member: &Member) -> String {
    let silent = span(Duration::from_millis(member.silent_millis));
    let expected =
        member.heartbeat_millis.map(|every| format!(", expected every {}", span(Duration::from_millis(every))));
    match member.healthy {
        true => format!("healthy, heard of {silent} ago"),
        false => format!("silent for {silent}{}", expected.unwrap_or_default()),
    }
}

/// What keeps an instance from running a stream, as it says itself.
fn ails(member: &Member, stream: &Stream) -> Option<String> {
    let on = stream.instances.iter().find(|on| on.instance == member.instance)?;
    let what = match on.doing {
        StreamActivity::Failing => "failing",
        StreamActivity::Stopped if stream.state == State::Halted => "halted",
        StreamActivity::Stopped => "stopped",
        _ => return None,
    };
    Some(format!("{what}: {}", stream.name))
}
