//! `check`: whether everything in the file can work, without changing anything.

mod filter;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use watchkeeper::core::{
    Checkpoint, Cx, Finding, Grade, Halted, Outline, Purpose, Report, Severity, SinkProfile, StartAt,
};
use watchkeeper::{Error, ErrorKind, FastTakeover, OnHistoryLost, Result, Seams};

use super::history::{History, stored};
use super::{departed, home};
use crate::answer;
use crate::args::Common;
use crate::config::{self, Config, Stream, System};
use crate::site::A_POSITION;

/// How long one part may take to answer.
const LOOK_WITHIN: Duration = Duration::from_secs(10);

/// What was found out about one part of the file.
#[derive(Debug, Default)]
struct Part {
    name: String,
    findings: Vec<Finding>,
    /// The worst error: what the program's code is made of.
    failed: Option<ErrorKind>,
}

/// What was found out about a stream.
#[derive(Debug)]
struct Answer {
    name: String,
    profiles: Vec<SinkProfile>,
    /// Source and sinks.
    parts: Vec<Part>,
    /// How much history it has left, if it ever ran and its source tells.
    history: Option<History>,
}

pub(crate) async fn run(common: &Common) -> Result<ExitCode> {
    let config = config::load(&common.config)?;
    config.refuse_idle()?;
    let cx = Seams::system().cx();
    let stores = stores(&cx, &config).await;
    let mut streams = Vec::new();
    for stream in &config.streams {
        streams.push(look_at(&cx, &config, stream).await);
    }
    let worst = worst(stores.iter().chain(streams.iter().flat_map(|stream| &stream.parts)));
    let lines = as_lines(&config, &stores, &streams, worst);
    answer::say(&Report { lines, data: as_json(&config, &stores, &streams, worst) }, common.json);
    Ok(ExitCode::from(worst))
}

impl Part {
    fn of(name: String, found: Result<Vec<Finding>>) -> Self {
        let mut part = match found {
            Ok(findings) => Self { name, findings, failed: None },
            Err(error) => Self { name, failed: Some(error.kind()), findings: vec![finding(&error)] },
        };
        part.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        part
    }
}

/// An error as a finding.
fn finding(error: &Error) -> Finding {
    let place = error.place().map(|place| format!("{place}: ")).unwrap_or_default();
    let what = format!("{place}{} [{}]", error.message(), error.kind().code());
    Finding { severity: Severity::Error, what, remedy: error.advice().map(str::to_owned) }
}

/// The code to end with: 2 for what has to be changed in the configuration, 1 for another error.
fn worst<'p>(parts: impl Iterator<Item = &'p Part>) -> u8 {
    let code = |part: &Part| match part.failed {
        Some(ErrorKind::Config) => 2,
        Some(_) => 1,
        None => u8::from(part.findings.iter().any(|finding| finding.severity == Severity::Error)),
    };
    parts.map(code).max().unwrap_or(0)
}

async fn stores(cx: &Cx, config: &Config) -> Vec<Part> {
    let group = &config.group;
    let named = [("store", Some(&group.store)), ("leases", group.leases.as_ref()), ("records", group.records.as_ref())];
    let mut parts = Vec::new();
    for (name, system) in named.into_iter().filter_map(|(name, system)| Some((name, system?))) {
        let cx = cx.within(LOOK_WITHIN);
        let found = system.open(async |backend, options| backend.check_store(&cx, options).await).await;
        parts.push(Part::of(titled(name, system), found));
    }
    parts.extend(lease(cx, config).await);
    let departed = departed::findings(&cx.within(LOOK_WITHIN), config).await;
    if !departed.is_empty() {
        parts.push(Part::of("other streams".to_owned(), Ok(departed)));
    }
    parts
}

/// What is to be said of the length of leases, if anything.
async fn lease(cx: &Cx, config: &Config) -> Option<Part> {
    let (system, cx) = (config.group.leases.as_ref().unwrap_or(&config.group.store), cx.within(LOOK_WITHIN));
    let mut options = system.options.clone();
    // What keeps it from being looked at was told of the store already.
    let found = system.backend.check_leases(&cx, &mut options, config.group.settings.lease.ttl).await.ok()?;
    (!found.is_empty()).then(|| Part::of(titled("lease", system), Ok(found)))
}

fn titled(role: &str, system: &System) -> String {
    format!("{role} ({})", system.backend.name())
}

async fn look_at(cx: &Cx, config: &Config, stream: &Stream) -> Answer {
    let purpose = Purpose::new(&config.group.settings.group, &stream.settings.name)
        .with_lanes(stream.settings.concurrency)
        .reading(&*stream.source.backend, &stream.source.options);
    let within = cx.within(LOOK_WITHIN);
    let source = stream.source.open(async |backend, options| backend.check_source(&within, &purpose, options).await);
    let mut parts = vec![Part::of(titled("source", &stream.source), source.await)];
    let (mut profiles, mut keeper) = (Vec::new(), &config.group.store);
    for target in &stream.sinks {
        let within = cx.within(LOOK_WITHIN);
        let looked = target.system.open(async |backend, options| backend.check_sink(&within, &purpose, options).await);
        let mut found = looked.await.and_then(|inspection| {
            filter::require_all(stream, target, &inspection.profile)?;
            if inspection.profile.grade == Grade::Transactional {
                keeper = &target.system;
            }
            profiles.push(inspection.profile);
            Ok(inspection.findings)
        });
        if parts[0].failed.is_none()
            && let Ok(findings) = &mut found
        {
            match filter::findings(&cx.within(LOOK_WITHIN), stream, &purpose, target).await {
                Ok(more) => findings.extend(more),
                Err(error) => found = Err(error),
            }
        }
        parts.push(Part::of(titled(&format!("sink {}", target.name), &target.system), found));
    }
    let within = cx.within(LOOK_WITHIN);
    let mut options = stream.source.options.clone();
    // What keeps it from being looked at was told of the source already.
    let outline = stream.source.backend.outline(&within, &mut options).await.unwrap_or_default();
    // A target that could not be looked at may be the one that keeps the checkpoint.
    let keeper = (profiles.len() == stream.sinks.len()).then_some(keeper);
    let mut stored = stored(&cx.within(LOOK_WITHIN), config, stream, keeper).await;
    if let (Some(keeper), None) = (keeper, stored.as_ref().and_then(|stored| stored.position.as_ref())) {
        let (within, name) = (cx.within(LOOK_WITHIN), &stream.settings.name);
        match home::require(&within, config, name, keeper).await {
            Ok(true) if stored.is_none() => stored = Some(home::lost(&within, config, name, "is missing").await),
            Ok(_) => {}
            Err(error) => parts.push(Part::of(titled("checkpoint", keeper), Err(error))),
        }
    }
    parts.extend(place(cx, stream, &purpose, stored.as_ref(), parts[0].failed).await);
    let history = History::of(stored.as_ref(), outline.window);
    parts.extend(history.map(|history| Part::of(titled("history", &stream.source), Ok(history.findings()))));
    let whole = whole(stream, &profiles).and_then(|()| rows(stream, &profiles, outline));
    parts.push(Part::of("stream".to_owned(), whole.map(|()| Vec::new())));
    Answer { name: stream.settings.name.clone(), profiles, parts, history }
}

/// Where the stream would go on or begin, if there is something to say of that.
async fn place(
    cx: &Cx,
    stream: &Stream,
    purpose: &Purpose,
    stored: Option<&Checkpoint>,
    failed: Option<ErrorKind>,
) -> Option<Part> {
    let mut findings =
        Vec::from_iter(stored.and_then(|stored| stored.halted.as_ref()).map(|halted| halt(stream, halted)));
    let position = stored.and_then(|stored| stored.position.clone());
    let name = if position.is_some() { "checkpoint" } else { "start" };
    let start = position.map_or_else(|| stream.settings.start.clone(), StartAt::After);
    let pedigree = stored.and_then(|stored| stored.pedigree.as_ref());
    let (within, mut options) = (cx.within(LOOK_WITHIN), stream.source.options.clone());
    // What keeps the source from being looked at was told already.
    let vetted = match failed {
        Some(_) => Ok(Vec::new()),
        None => stream.source.backend.vet_start(&within, purpose, &mut options, &start, pedigree).await,
    };
    let mut found = vetted.map(|vetted| {
        let lost = |finding| as_the_policy_says(finding, &stream.settings.on_history_lost);
        findings.extend(vetted.into_iter().map(lost));
        findings
    });
    if name == "start" && matches!(start, StartAt::After(_)) {
        let wrong = found.iter_mut().flatten().filter(|finding| finding.severity == Severity::Error);
        wrong.for_each(|finding| finding.remedy = Some(A_POSITION.to_owned()));
    }
    if let Some(repair) = repair(&within, stream, purpose, failed).await {
        found = found.map(|found| [found, repair].concat());
    }
    let is_worth_telling = found.as_ref().map_or(true, |findings| !findings.is_empty());
    is_worth_telling.then(|| Part::of(titled(name, &stream.source), found))
}

/// What was found of lost history, if the file says what becomes of it: then it is no error, but has to be known.
fn as_the_policy_says(found: Finding, policy: &OnHistoryLost) -> Finding {
    let OnHistoryLost::GoOn(start) = policy else { return found };
    if found.severity != Severity::Error || !found.what.contains(&format!("[{}]", ErrorKind::PositionLost.code())) {
        return found;
    }
    let start = match start {
        StartAt::Oldest => "goes on with the oldest change that is there",
        StartAt::Snapshot => "begins anew with a snapshot",
        _ => "goes on with what happens from now on",
    };
    let remedy = format!("as on_history_lost says, the gap is noted when the stream runs, and it {start}");
    Finding { severity: Severity::Warning, remedy: Some(remedy), ..found }
}

/// What keeps lost history from being repaired by a snapshot, where that is what the file says.
async fn repair(cx: &Cx, stream: &Stream, purpose: &Purpose, failed: Option<ErrorKind>) -> Option<Vec<Finding>> {
    let wanted = stream.settings.on_history_lost == OnHistoryLost::GoOn(StartAt::Snapshot);
    if !wanted || failed.is_some() || stream.settings.start == StartAt::Snapshot {
        return None;
    }
    let mut options = stream.source.options.clone();
    let vetted = stream.source.backend.vet_start(cx, purpose, &mut options, &StartAt::Snapshot, None).await.ok()?;
    let named = |found: Finding| Finding { what: format!("on_history_lost = \"snapshot\": {}", found.what), ..found };
    Some(vetted.into_iter().map(named).collect())
}

/// That nobody may run the stream until a person lets it.
fn halt(stream: &Stream, halted: &Halted) -> Finding {
    let what = format!("the stream stands halted [{}]: {}", halted.code, halted.cause);
    let remedy = format!("when the cause is dealt with: watchkeeper resume {}", stream.settings.name);
    Finding { severity: Severity::Error, what, remedy: Some(remedy) }
}

/// What can only be said of a stream as a whole.
fn whole(stream: &Stream, profiles: &[SinkProfile]) -> Result<()> {
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

/// Whether the source tells as much of a change as the sinks need.
fn rows(stream: &Stream, profiles: &[SinkProfile], outline: Outline) -> Result<()> {
    if outline.whole_rows || !profiles.iter().any(|profile| profile.whole_rows) {
        return Ok(());
    }
    let cause =
        format!("stream {:?}: its updates tell only what differs, and a mirror needs all", stream.settings.name);
    let remedy = "let the source tell it: full_document = \"updateLookup\", or \"required\" with stored images";
    Err(Error::config(cause).remedy(remedy).at(&stream.origin))
}

impl Answer {
    /// Whether it can run at all: nothing is promised of what can not.
    fn is_sound(&self) -> bool {
        let findings = self.parts.iter().flat_map(|part| &part.findings);
        findings.into_iter().all(|finding| finding.severity != Severity::Error)
    }

    /// The weakest grade of its targets, if all of them could be looked at.
    fn grade(&self) -> Option<Grade> {
        let sinks = self.parts.iter().filter(|part| part.name.starts_with("sink ")).count();
        (sinks == self.profiles.len()).then(|| self.profiles.iter().map(|profile| profile.grade).min())?
    }

    fn settle(&self) -> Duration {
        let exposed = self.profiles.iter().filter(|profile| profile.grade.is_exposed());
        exposed.map(|profile| profile.settle).max().unwrap_or_default()
    }

    /// What the weakest target can come to see.
    fn can_see(&self) -> Option<String> {
        let late =
            format!("for {} after a takeover late writes of the one before may still arrive", shown(self.settle()));
        Some(match self.grade()? {
            Grade::Transactional => "nothing is lost, and every change takes effect exactly once".to_owned(),
            Grade::Fenced => {
                "nothing is lost; after a crash what was not committed yet may come twice; stale writes are refused"
                    .to_owned()
            }
            Grade::Versioned => "nothing is lost; repeated and stale writes are without effect".to_owned(),
            Grade::Idempotent => format!("nothing is lost; repeated writes are without effect; {late}"),
            Grade::Plain => format!("nothing is lost; after a crash some changes may come twice; {late}"),
        })
    }

    /// How fast another instance takes over after a crash.
    fn takeover(&self, config: &Config) -> String {
        let settings = &config.group.settings;
        let lease = shown(settings.lease.ttl);
        let exposed = self.grade().is_none_or(Grade::is_exposed);
        let settle = if exposed { format!(", and {} for late writes", shown(self.settle())) } else { String::new() };
        match settings.takeover {
            FastTakeover::Never => format!("when the lease of {lease} has expired"),
            _ if config.group.peers.is_none() => {
                format!("when the lease of {lease} has expired, since no peers are answered (listen = \"off\")")
            }
            FastTakeover::Always => format!("as soon as the holder's death is proved{settle}"),
            FastTakeover::WhereSafe if !exposed => "as soon as the holder's death is proved".to_owned(),
            FastTakeover::WhereSafe => format!(
                "as soon as the holder's death is proved on the same machine{settle}; from another when the lease of \
                 {lease} has expired (takeover = \"fast\" would not wait)"
            ),
        }
    }
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn as_lines(config: &Config, stores: &[Part], streams: &[Answer], worst: u8) -> Vec<String> {
    let mut lines = vec![format!("group {}", config.group.settings.group)];
    stores.iter().for_each(|part| lines.extend(lines_of(part)));
    for stream in streams {
        lines.push(format!("stream {}", stream.name));
        stream.parts.iter().for_each(|part| lines.extend(lines_of(part)));
        if !stream.is_sound() {
            continue;
        }
        if let (Some(grade), Some(can_see)) = (stream.grade(), stream.can_see()) {
            lines.push(format!("  grade: {}: {can_see}", format!("{grade:?}").to_lowercase()));
        }
        lines.push(format!("  takeover after a crash: {}", stream.takeover(config)));
    }
    let verdict = if worst == 0 { "all is well" } else { "there are errors" };
    lines.push(verdict.to_owned());
    lines
}

fn lines_of(part: &Part) -> Vec<String> {
    if part.findings.is_empty() && part.name != "stream" {
        return vec![format!("  ok: {}", part.name)];
    }
    let line = |finding: &Finding| {
        let remedy = finding.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        format!("  {}: {}: {}{remedy}", word(finding.severity), part.name, finding.what)
    };
    part.findings.iter().map(line).collect()
}

fn as_json(config: &Config, stores: &[Part], streams: &[Answer], worst: u8) -> Value {
    let findings = |parts: &[Part]| -> Value {
        let of_part = |part: &Part| {
            let one = |finding: &Finding| {
                let (severity, what, remedy) = (word(finding.severity), &finding.what, &finding.remedy);
                json!({ "part": part.name, "severity": severity, "what": what, "remedy": remedy })
            };
            part.findings.iter().map(one).collect::<Vec<_>>()
        };
        parts.iter().flat_map(of_part).collect()
    };
    let of_stream = |stream: &Answer| {
        json!({
            "name": stream.name,
            "grade": stream.grade().filter(|_| stream.is_sound()),
            "can_see": stream.can_see().filter(|_| stream.is_sound()),
            "takeover": stream.is_sound().then(|| stream.takeover(config)),
            "history": stream.history.as_ref().map(History::data),
            "findings": findings(&stream.parts),
        })
    };
    json!({
        "ok": worst == 0,
        "group": { "name": config.group.settings.group, "findings": findings(stores) },
        "streams": streams.iter().map(of_stream).collect::<Vec<_>>(),
    })
}
