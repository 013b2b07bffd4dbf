//! `check`: whether everything in the file can work. It changes nothing: a small record that it writes to the store is taken back.

mod filter;
mod report;
mod stores;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use watchkeeper::core::{
    Checkpoint, Cx, Finding, Grade, Halted, Purpose, Report, Severity, SinkProfile, SourceDescription, StartAt,
};
use watchkeeper::engine::checkpoint::history::HistoryEntry;
use watchkeeper::engine::checkpoint::lost;
use watchkeeper::{Error, ErrorKind, FastTakeover, OnHistoryLost, Result, Seams};

use self::report::Found;
use super::history::{History, stored};
use super::{departed, reported, store_binding};
use crate::answer;
use crate::args::Common;
use crate::config::{self, Config, ParsedFile, Stream, System, Target};
use crate::exit;
use crate::site::A_POSITION;

/// How long one part may take to answer.
const INSPECT_WITHIN: Duration = Duration::from_secs(10);

/// The end of a note on what the first run makes at the source.
const WILL_BE_MADE: &str = "is not there yet and will be made";

/// What was found out about one part of the file.
#[derive(Debug, Default)]
struct Part {
    name: String,
    /// The file that it is, if it is a store in a file.
    file: Option<PathBuf>,
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
    /// What does not work for the instances that run.
    troubles: Vec<Finding>,
}

pub(crate) async fn run(common: &Common, offline: bool) -> Result<ExitCode> {
    let ParsedFile { config, mut errors } = config::examine(&common.config);
    let Some(config) = config else { return Ok(exit::refused(&errors, common.json)) };
    errors.extend(on_this_machine(&config));
    if errors.is_empty() {
        errors.extend(config.refuse_idle().err());
    }
    let cx = Seams::system().cx();
    let file = (!errors.is_empty()).then(|| Part::of_file(&errors));
    let mut stores = Vec::from_iter(file);
    let mut streams = Vec::new();
    if offline {
        streams.extend(config.streams.iter().map(described));
    } else {
        let systems = config.streams.iter().map(|stream| Systems::inspect_parts(&cx, &config, stream));
        // What does not answer is waited for once, and not part after part.
        let (inspected, systems) = futures_util::join!(stores::inspect(&cx, &config), join_all(systems));
        let has_stores = inspected.iter().all(|part| part.failed.is_none());
        stores.extend(inspected);
        let mut members = Vec::new();
        if has_stores {
            // Streams that could not be read are in the file nevertheless.
            stores.extend(if errors.is_empty() { departed(&cx, &config).await } else { None });
            let listed = reported::members(&cx.within(INSPECT_WITHIN), &config).await;
            let too_few = listed.as_deref().and_then(reported::too_few);
            stores.extend(too_few.map(|note| Part::of("instances".to_owned(), Ok(vec![note]))));
            members = listed.unwrap_or_default();
        }
        let answers = config.streams.iter().zip(systems);
        let answers = answers.map(|(stream, systems)| inspect_parts(&cx, &config, stream, systems, has_stores));
        for mut answer in join_all(answers).await {
            answer.troubles = reported::findings(&members, &answer.name);
            streams.push(answer);
        }
    }
    let worst = worst(stores.iter().chain(streams.iter().flat_map(|stream| &stream.parts)));
    let found = Found { config: &config, stores, streams, worst, offline };
    answer::print_report(&Report { lines: found.lines(), data: found.json() }, common.json)?;
    Ok(ExitCode::from(worst))
}

/// What is wrong on this machine with what the file says of this instance.
fn on_this_machine(config: &Config) -> Option<Error> {
    let peers = config.group.peers.as_ref()?;
    peers.require_own_address().err().map(|error| error.at(&config.group.peers_origin))
}

/// A stream as its settings say it is.
fn described(stream: &Stream) -> Answer {
    let profiles = stream.sinks.iter().filter_map(|target| target.profile.clone()).collect();
    let source = Part::of(titled("source", &stream.source), Ok(Vec::new()));
    let sinks = stream
        .sinks
        .iter()
        .map(|target| Part::of(sink_title(target), filter::require_listed_names(stream, target).map(|()| Vec::new())));
    let parts = [source].into_iter().chain(sinks).collect();
    Answer { name: stream.settings.name.clone(), profiles, parts, history: None, troubles: Vec::new() }
}

impl Part {
    fn of(name: String, found: Result<Vec<Finding>>) -> Self {
        let mut part = match found {
            Ok(findings) => Self { name, file: None, findings, failed: None },
            Err(error) => Self { name, file: None, failed: Some(error.kind()), findings: vec![finding(&error)] },
        };
        part.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        part
    }

    fn has_error(&self) -> bool {
        self.failed.is_some() || self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Names the stream where a backend, which does not know it, wrote STREAM.
    fn name_stream(&mut self, stream: &str) {
        self.findings.iter_mut().for_each(|finding| finding.name_stream(stream));
    }

    /// What is wrong with the file itself.
    fn of_file(errors: &[Error]) -> Self {
        Self {
            name: "file".to_owned(),
            file: None,
            findings: errors.iter().map(finding).collect(),
            failed: errors.first().map(Error::kind),
        }
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

/// What is left of streams that are not in the file any more.
async fn departed(cx: &Cx, config: &Config) -> Option<Part> {
    let departed = departed::findings(&cx.within(INSPECT_WITHIN), config).await;
    (!departed.is_empty()).then(|| Part::of("other streams".to_owned(), Ok(departed)))
}

/// What is to be said of the length of leases, if anything.
async fn lease(cx: &Cx, config: &Config) -> Option<Part> {
    let (system, cx) = (config.group.leases.as_ref().unwrap_or(&config.group.store), cx.within(INSPECT_WITHIN));
    let mut options = system.options.clone();
    // What keeps it from being looked at was told of the store already.
    let found = system.backend.check_leases(&cx, &mut options, config.group.settings.lease.ttl).await.ok()?;
    (!found.is_empty()).then(|| Part::of(titled("lease", system), Ok(found)))
}

fn sink_title(target: &Target) -> String {
    titled(&format!("sink {}", target.name), &target.system)
}

fn titled(role: &str, system: &System) -> String {
    format!("{role} ({})", system.backend.name())
}

/// What was found out about the source and the sinks of a stream.
struct Systems<'c> {
    purpose: Purpose,
    source: Part,
    sinks: Vec<Part>,
    profiles: Vec<SinkProfile>,
    /// Where the checkpoint is kept, as far as that is known.
    keeper: &'c System,
}

impl<'c> Systems<'c> {
    async fn inspect_parts(cx: &Cx, config: &'c Config, stream: &'c Stream) -> Self {
        let purpose = Purpose::new(&config.group.settings.group, &stream.settings.name)
            .with_lanes(stream.settings.concurrency)
            .reading(&*stream.source.backend, &stream.source.options);
        let within = cx.within(INSPECT_WITHIN);
        let source =
            stream.source.open(async |backend, options| backend.check_source(&within, &purpose, options).await);
        let sinks = stream.sinks.iter().map(|target| {
            let (purpose, within) = (&purpose, &within);
            target.system.open(async move |backend, options| backend.check_sink(within, purpose, options).await)
        });
        let (source, inspected) = futures_util::join!(source, join_all(sinks));
        let source = Part::of(titled("source", &stream.source), source);
        let (mut sinks, mut profiles, mut keeper) = (Vec::new(), Vec::new(), &config.group.store);
        for (target, inspected) in stream.sinks.iter().zip(inspected) {
            let mut found = inspected.map(|inspection| {
                if inspection.profile.grade == Grade::Transactional {
                    keeper = &target.system;
                }
                profiles.push(inspection.profile);
                inspection.findings
            });
            if source.failed.is_none()
                && let Ok(findings) = &mut found
            {
                match filter::findings(&cx.within(INSPECT_WITHIN), stream, &purpose, target).await {
                    Ok(more) => findings.extend(more),
                    Err(error) => found = Err(error),
                }
            }
            sinks.push(Part::of(sink_title(target), found));
        }
        Self { purpose, source, sinks, profiles, keeper }
    }
}

async fn inspect_parts(cx: &Cx, config: &Config, stream: &Stream, systems: Systems<'_>, has_stores: bool) -> Answer {
    let Systems { purpose, source, sinks, profiles, keeper } = systems;
    let source_failed = source.failed;
    let description = match source_failed {
        // What keeps it from being looked at was told of the source already.
        Some(_) => SourceDescription::default(),
        None => {
            let (within, mut options) = (cx.within(INSPECT_WITHIN), stream.source.options.clone());
            stream.source.backend.describe(&within, &mut options).await.unwrap_or_default()
        }
    };
    let mut parts: Vec<_> = [source].into_iter().chain(sinks).collect();
    // A target that could not be looked at may be the one that keeps the checkpoint.
    let keeper = (profiles.len() == stream.sinks.len()).then_some(keeper);
    let mut stored = None;
    if has_stores {
        let (found, more) = checkpoint(cx, config, stream, keeper).await;
        stored = found;
        parts.extend(more);
    }
    let newest = match stored.as_ref().is_some_and(Checkpoint::has_lost_position) {
        true => store_binding::newest(cx, config, &stream.settings.name).await,
        false => None,
    };
    let halt = stored.as_ref().and_then(|stored| Some(halt(stream, stored, stored.halted.as_ref()?, newest.as_ref())));
    let known = halt.as_ref().map(|halt| halt.what.clone()).unwrap_or_default();
    let kept_in = keeper.unwrap_or(&config.group.store);
    parts.extend(halt.map(|halt| Part::of(titled("checkpoint", kept_in), Ok(vec![halt]))));
    let mut place = place(cx, stream, &purpose, stored.as_ref(), source_failed).await;
    if stored.is_some() && place.as_ref().is_some_and(Part::has_error) {
        // What a begun stream has lost is not made by its next run.
        let will_be_made =
            |finding: &Finding| finding.severity == Severity::Note && finding.what.ends_with(WILL_BE_MADE);
        parts[0].findings.retain(|finding| !will_be_made(finding));
    }
    // The halt has told of the same cause already.
    place.iter_mut().for_each(|part| part.findings.retain(|finding| !is_reported(&known, finding)));
    parts.extend(place.filter(|part| !part.findings.is_empty()));
    let history = History::of(stored.as_ref(), description.window);
    parts.extend(history.map(|history| Part::of(titled("history", &stream.source), Ok(history.findings()))));
    parts.iter_mut().for_each(|part| part.name_stream(&stream.settings.name));
    Answer { name: stream.settings.name.clone(), profiles, parts, history, troubles: Vec::new() }
}

/// Whether the cause of a halt says what a finding says.
fn is_reported(halt: &str, finding: &Finding) -> bool {
    let cause = finding.what.rsplit_once(" [").map_or(&*finding.what, |(cause, _)| cause);
    halt.contains(cause)
}

/// The checkpoint of a stream, and what is wrong with where it is kept.
async fn checkpoint(
    cx: &Cx,
    config: &Config,
    stream: &Stream,
    keeper: Option<&System>,
) -> (Option<Checkpoint>, Option<Part>) {
    let mut stored = stored(&cx.within(INSPECT_WITHIN), config, stream, keeper).await;
    let (Some(keeper), None) = (keeper, stored.as_ref().and_then(|stored| stored.position.as_ref())) else {
        return (stored, None);
    };
    let (within, name) = (cx.within(INSPECT_WITHIN), &stream.settings.name);
    let mut part = None;
    match store_binding::require(&within, config, name, keeper).await {
        Ok(Some(true)) if stored.is_none() => {
            stored = Some(store_binding::lost(&within, config, name, "is missing").await)
        }
        Ok(Some(false)) if stored.is_none() => {
            let hint = store_binding::former_tenure(&within, config, name).await;
            part = hint.map(|hint| Part::of(titled("checkpoint", keeper), Ok(vec![hint])));
        }
        Ok(_) => {}
        Err(error) => part = Some(Part::of(titled("checkpoint", keeper), Err(error))),
    }
    (stored, part)
}

/// Where the stream would go on or begin, if there is something to say of that.
async fn place(
    cx: &Cx,
    stream: &Stream,
    purpose: &Purpose,
    stored: Option<&Checkpoint>,
    failed: Option<ErrorKind>,
) -> Option<Part> {
    let mut findings = Vec::new();
    let position = stored.and_then(|stored| stored.position.clone());
    let name = if position.is_some() { "position" } else { "start" };
    let start = position.map_or_else(|| stream.settings.start.clone(), StartAt::After);
    let pedigree = stored.and_then(|stored| stored.pedigree.as_ref());
    let (within, mut options) = (cx.within(INSPECT_WITHIN), stream.source.options.clone());
    // What keeps the source from being looked at was told already, and so was a start that it never can have.
    let is_reported = failed.is_some() || stream.source.backend.validate_start(&mut options.clone(), &start).is_err();
    let vetted = match is_reported {
        true => Ok(Vec::new()),
        false => stream.source.backend.preflight_start(&within, purpose, &mut options, &start, pedigree).await,
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
    let vetted =
        stream.source.backend.preflight_start(cx, purpose, &mut options, &StartAt::Snapshot, None).await.ok()?;
    let named = |found: Finding| Finding { what: format!("on_history_lost = \"snapshot\": {}", found.what), ..found };
    Some(vetted.into_iter().map(named).collect())
}

/// That nobody may run the stream until a person lets it.
fn halt(stream: &Stream, stored: &Checkpoint, halted: &Halted, newest: Option<&HistoryEntry>) -> Finding {
    let name = &stream.settings.name;
    // Nobody has written it: it stands for one that is missing or damaged.
    let is_found_now = stored.facts.processed_by.is_empty();
    let state = if is_found_now { "the stream will halt when it runs next" } else { "the stream stands halted" };
    let remedy = match stored.has_lost_position() {
        true => lost::choose_position(name, newest),
        // Resuming it does not bring the history back: the cause says what to do instead.
        false if halted.code == ErrorKind::PositionLost.code() => {
            format!("only if the lost history is there again: watchkeeper resume {name}")
        }
        false => format!("when the cause is dealt with: watchkeeper resume {name}"),
    };
    let what = format!("{state} [{}]: {}", halted.code, halted.cause);
    Finding { severity: Severity::Error, what, remedy: Some(remedy) }
}

impl Answer {
    /// Whether it can run at all: nothing is promised of what cannot.
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
        let late = format!(
            "after a takeover, writes already sent by the previous holder may still arrive for up to {}",
            shown(self.settle())
        );
        Some(match self.grade()? {
            Grade::Transactional => "nothing is lost, and every change takes effect exactly once".to_owned(),
            Grade::Fenced => {
                "nothing is lost; after a crash what was not committed yet may come twice; stale writes are refused"
                    .to_owned()
            }
            Grade::Versioned => "nothing is lost; repeated and stale writes are without effect".to_owned(),
            Grade::Idempotent => format!("nothing is lost; repeated writes are without effect; {late}"),
            Grade::Plain => format!("nothing is lost; after a crash some changes may come twice; {late}"),
            // Nothing is promised of a grade that is not known here.
            _ => return None,
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
            // What is certain with every setting.
            _ => format!("at the latest when the lease of {lease} has expired"),
        }
    }
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
