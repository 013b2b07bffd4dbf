//! `[[stream]]` and `[[stream.sink]]`.

mod whole;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use watchkeeper::core::{Cx, Options, Origin, Purpose, SinkProfile};
use watchkeeper::engine::delivery::backoff::Backoff;
use watchkeeper::{
    Error, Filter, OnHistoryLost, OnReject, Operation, OperationTime, Operations, Park, Position, Result, SourceTime,
    StartAt, StreamSettings, registry,
};

use super::system::System;
use crate::when::hex;

/// A stream as the file describes it.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) settings: StreamSettings,
    pub(crate) source: System,
    pub(crate) sinks: Vec<Target>,
    /// Where it is written.
    pub(crate) origin: Origin,
    /// Where it is written how to begin, and how to go on when history is lost.
    start_origin: Origin,
    lost_origin: Origin,
}

/// A sink as the file describes it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) system: System,
    pub(crate) on_reject: OnReject,
    /// Which operations it gets.
    pub(crate) filter: Option<Arc<dyn Filter>>,
    /// Which namespaces it gets, as they are written: what they are in changes, the source knows.
    pub(crate) namespaces: Option<Vec<String>>,
    /// What its settings say it will be, if nothing is wrong with them.
    pub(crate) profile: Option<SinkProfile>,
    /// What it writes and no other target may write, in words.
    pub(crate) exclusive: Option<String>,
}

/// Reads a stream of a group whose leases last for `lease`; `None` when something that it cannot be without was reported instead.
pub(super) fn read(mut stream: Options, group: &str, lease: Duration) -> Result<Option<Stream>> {
    let origin = stream.origin().clone();
    let name = stream.required("name", "\"orders\"");
    let name = stream.reported(name)?;
    let mut settings = StreamSettings::new(name.as_deref().unwrap_or("orders"));
    let named = settings.validate().map_err(|error| error.at(stream.origin_of("name")));
    if stream.reported(named)?.is_none() {
        settings = StreamSettings::new("orders");
    }
    let begin = start(&mut stream);
    settings.start = stream.reported(begin)?.unwrap_or(StartAt::Now);
    settings.on_history_lost = on_history_lost(&mut stream)?;
    let [start_origin, lost_origin] = ["start", "on_history_lost"].map(|name| stream.origin_of(name).clone());
    if let Some(concurrency) = stream.size("concurrency")? {
        change(&stream, "concurrency", &mut settings, |settings| settings.concurrency = concurrency)?;
    }
    // Whoever has a lease that outlasts an election of the store's servers waits for the end of it.
    settings.give_up = stream.duration("give_up")?.unwrap_or_else(|| settings.give_up.max(2 * lease));
    settings.history = stream.size("history")?.unwrap_or(settings.history);
    below(&mut stream, "checkpoint", |table| {
        if let Some(every) = table.duration("every")? {
            change(table, "every", &mut settings, |settings| settings.checkpoint.every = every)?;
        }
        let events = table.count("events")?;
        change(table, "events", &mut settings, |settings| settings.checkpoint.events = events)
    })?;
    volumes(&mut stream, &mut settings)?;
    patience(&mut stream, &mut settings)?;
    let source = System::take(&mut stream, "source").and_then(|source| {
        let missing = || stream.missing("source", "\"sqlite:app.db\"");
        source.ok_or_else(missing)
    });
    let source = stream.reported(source)?;
    let names_sinks = stream.peek("sink").is_some();
    let mut sinks = Vec::new();
    for options in stream.tables("sink")? {
        let sink = sink(options);
        sinks.extend(stream.reported(sink)?);
    }
    stream.finish()?;
    let Some(source) = name.and(source) else { return Ok(None) };
    let mut read = Stream { settings, source, sinks, origin, start_origin, lost_origin };
    if let Some(collector) = stream.collector() {
        whole::validate(&mut read, group, names_sinks, collector);
    }
    Ok(Some(read))
}

/// Takes the table `name`, if it is there, and lets nothing in it be left over.
fn below(parent: &mut Options, name: &str, take: impl FnOnce(&mut Options) -> Result<()>) -> Result<()> {
    let Some(mut table) = parent.table(name)? else { return Ok(()) };
    let taken = take(&mut table);
    match parent.reported(taken)? {
        Some(()) => table.finish(),
        None => Ok(()),
    }
}

/// Changes a setting. One that does not fit the others is reported, and they stay as they were.
fn change(
    table: &Options,
    name: &str,
    settings: &mut StreamSettings,
    change: impl FnOnce(&mut StreamSettings),
) -> Result<()> {
    let mut changed = settings.clone();
    change(&mut changed);
    let fits = changed.validate().map_err(|error| error.at(table.origin_of(name)));
    if table.reported(fits)?.is_some() {
        *settings = changed;
    }
    Ok(())
}

/// How much is read, and how much may be under way.
fn volumes(stream: &mut Options, settings: &mut StreamSettings) -> Result<()> {
    let bytes = |table: &mut Options| {
        Ok::<_, Error>(table.bytes("bytes")?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)))
    };
    // Window and batch have to fit together; until both are known the window is as large as can be.
    let usual_window = std::mem::replace(&mut settings.window_bytes, usize::MAX);
    let mut origin = stream.origin().clone();
    below(stream, "batch", |table| {
        if let Some(rows) = table.size("rows")? {
            change(table, "rows", settings, |settings| settings.limits.rows = rows)?;
        }
        if let Some(bytes) = bytes(table)? {
            origin = table.origin_of("bytes").clone();
            change(table, "bytes", settings, |settings| settings.limits.bytes = bytes)?;
        }
        settings.limits.wait = table.duration("wait")?.unwrap_or(settings.limits.wait);
        Ok(())
    })?;
    let mut window = usual_window;
    below(stream, "window", |table| {
        if let Some(pieces) = table.size("pieces")? {
            change(table, "pieces", settings, |settings| settings.window_pieces = pieces)?;
        }
        if let Some(bytes) = bytes(table)? {
            (window, origin) = (bytes, table.origin_of("bytes").clone());
        }
        Ok(())
    })?;
    settings.window_bytes = window;
    let fits = settings.validate().map_err(|error| error.at(origin));
    stream.reported(fits).map(drop)
}

/// How long things may take, and how often they are tried again.
fn patience(stream: &mut Options, settings: &mut StreamSettings) -> Result<()> {
    below(stream, "retry", |table| {
        if let Some(attempts) = number(table, "attempts")? {
            change(table, "attempts", settings, |settings| settings.retry.attempts = Some(attempts))?;
        }
        let retry = &mut settings.retry;
        backoff(table, "backoff", &mut retry.backoff)?;
        retry.recoveries = number(table, "recoveries")?.unwrap_or(retry.recoveries);
        backoff(table, "recovery_backoff", &mut retry.recovery_backoff)?;
        if let Some(instances) = table.size("fatal_instances")? {
            change(table, "fatal_instances", settings, |settings| settings.retry.fatal_instances = instances)?;
        }
        Ok(())
    })?;
    below(stream, "breaker", |table| {
        let breaker = &mut settings.breaker;
        breaker.failures = number(table, "failures")?.unwrap_or(breaker.failures);
        breaker.open_for = table.duration("open_for")?.unwrap_or(breaker.open_for);
        breaker.open_max = table.duration("open_max")?.unwrap_or(breaker.open_max);
        breaker.probes = number(table, "probes")?.unwrap_or(breaker.probes);
        let fits = breaker.validate().map_err(|error| error.at(table.origin()));
        table.reported(fits).map(drop)
    })?;
    below(stream, "timeouts", |table| {
        let timeouts = &mut settings.timeouts;
        timeouts.open = table.duration("open")?.unwrap_or(timeouts.open);
        timeouts.read = table.duration("read")?.unwrap_or(timeouts.read);
        timeouts.write = table.duration("write")?.unwrap_or(timeouts.write);
        timeouts.commit = table.duration("commit")?.unwrap_or(timeouts.commit);
        Ok(())
    })
}

fn number(table: &mut Options, name: &str) -> Result<Option<u32>> {
    Ok(table.count(name)?.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
}

/// `name` is the first wait, `name_max` the longest.
fn backoff(table: &mut Options, name: &str, backoff: &mut Backoff) -> Result<()> {
    backoff.first = table.duration(name)?.unwrap_or(backoff.first);
    let longest = table.duration(&format!("{name}_max"))?;
    backoff.max = longest.unwrap_or_else(|| backoff.max.max(backoff.first));
    let fits = backoff.validate().map_err(|error| error.at(table.origin_of(name)));
    table.reported(fits).map(drop)
}

fn start(stream: &mut Options) -> Result<StartAt> {
    let time = stream.peek_text("start").and_then(|text| humantime::parse_rfc3339_weak(text).ok());
    if let Some(since) = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        stream.take("start");
        refuse_future(stream, since)?;
        return Ok(StartAt::Time(SourceTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))));
    }
    // Nothing else that can be written begins with digits and a colon.
    if let Some(text) = stream.peek_text("start").filter(|text| is_like_operation_time(text)) {
        let time = text.parse::<OperationTime>();
        stream.take("start");
        let wrong = |error: Error| stream.wrong("start", error.message()).remedy(error.advice().unwrap_or_default());
        return time.map(StartAt::Operation).map_err(wrong);
    }
    if let Some(position) = stream.peek_text("start").and_then(hex) {
        stream.take("start");
        return Ok(StartAt::After(Position::new(position, None)));
    }
    let collector = stream.collector().cloned();
    stream.collect_into(None);
    let choices = [("now", StartAt::Now), ("oldest", StartAt::Oldest), ("snapshot", StartAt::Snapshot)];
    let chosen = stream.choice("start", &choices).map_err(|error| {
        error.remedy(
            "write \"now\", \"oldest\", \"snapshot\", a time such as \"2026-01-31T12:00:00Z\", an operation time such as \
             \"1700000000:7\", or a position as `checkpoint show` tells it",
        )
    });
    stream.collect_into(collector.as_ref());
    Ok(chosen?.unwrap_or(StartAt::Now))
}

/// Refuses to begin at a time that is yet to come: what happens until then would be delivered too, or be passed over.
fn refuse_future(stream: &Options, since: Duration) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let Some(ahead) = since.checked_sub(now).filter(|ahead| !ahead.is_zero()) else { return Ok(()) };
    let ahead = humantime::format_duration(Duration::from_secs(ahead.as_secs()));
    let error = stream.wrong("start", format!("this time is {ahead} in the future"));
    Err(error.remedy("write a time that has passed, or \"now\""))
}

/// Whether this is meant to be an operation time, be it right or not.
fn is_like_operation_time(text: &str) -> bool {
    text.split_once(':').is_some_and(|(seconds, _)| seconds.bytes().all(|byte| byte.is_ascii_digit()))
}

fn on_history_lost(stream: &mut Options) -> Result<OnHistoryLost> {
    let choices = [
        ("halt", OnHistoryLost::Halt),
        ("gap", OnHistoryLost::GoOn(StartAt::Oldest)),
        ("gap_to_now", OnHistoryLost::GoOn(StartAt::Now)),
        ("snapshot", OnHistoryLost::GoOn(StartAt::Snapshot)),
    ];
    Ok(stream.choice("on_history_lost", &choices)?.unwrap_or_default())
}

fn sink(mut options: Options) -> Result<Target> {
    let name = options.text("name")?;
    let on_reject = on_reject(&mut options)?;
    let (filter, namespaces) = filter(&mut options)?;
    let is_typed = options.peek("type").is_some();
    let system = System::of(options).map_err(|error| if is_typed { error } else { or_by_type(&error) })?;
    let name = name.unwrap_or_else(|| system.backend.name().to_owned());
    Ok(Target { name, system, on_reject, filter, namespaces, profile: None, exclusive: None })
}

impl Stream {
    /// The namespaces in the filter of one of its sinks, as its source tells them.
    ///
    /// # Errors
    /// `Config` for one of which the source never tells, and what kept it from being asked.
    pub(crate) async fn namespaces(&self, cx: &Cx, purpose: &Purpose, target: &Target) -> Result<Option<Vec<String>>> {
        let Some(written) = &target.namespaces else { return Ok(None) };
        let (patterns, names): (Vec<_>, Vec<_>) = written.iter().cloned().partition(|name| name.ends_with('*'));
        let (source, mut options) = (&self.source, self.source.options.clone());
        let names = source.backend.namespaces(cx, purpose, &mut options, names).await;
        let names = names.map_err(|error| error.at(target.system.options.origin()))?;
        Ok(Some([patterns, names].concat()))
    }
}

/// The same error of a URL, for a sink: some systems have none, and are named by their type.
fn or_by_type(error: &Error) -> Error {
    let nameless = registry::all().into_iter().filter(|backend| backend.schemes().is_empty());
    let types: Vec<_> = nameless.map(|backend| format!("type = {:?}", backend.name())).collect();
    let advice = [error.advice().unwrap_or_default(), &types.join(" or ")].join(", or write ");
    let described = Error::new(error.kind(), error.message()).remedy(advice);
    match error.place() {
        Some(place) => described.at(place),
        None => described,
    }
}

fn on_reject(sink: &mut Options) -> Result<OnReject> {
    let letters = |park| OnReject::DeadLetter { park };
    let choices = [("stop", OnReject::Stop), ("dead_letter", letters(Park::Key)), ("skip", OnReject::Skip)];
    let chosen = sink.choice("on_reject", &choices)?.unwrap_or_default();
    let misplaced = sink.wrong("park", "only dead letters are parked").remedy("write on_reject = \"dead_letter\" too");
    match sink.choice("park", &[("key", Park::Key), ("change", Park::Change)])? {
        Some(park) if matches!(chosen, OnReject::DeadLetter { .. }) => Ok(letters(park)),
        Some(_) => sink.report(misplaced).map(|()| chosen),
        None => Ok(chosen),
    }
}

/// All operations, by the names that events carry.
const OPERATIONS: [Operation; 15] = [
    Operation::Insert,
    Operation::Update,
    Operation::Replace,
    Operation::Delete,
    Operation::Read,
    Operation::Truncate,
    Operation::Drop,
    Operation::Rename,
    Operation::DropDatabase,
    Operation::Invalidate,
    Operation::Create,
    Operation::CreateIndexes,
    Operation::DropIndexes,
    Operation::Modify,
    Operation::ShardCollection,
];

/// Refuses a filter that nothing passes.
fn refuse_nothing(filter: &Options, name: &str, names: &[String]) -> Result<()> {
    if !names.is_empty() {
        return Ok(());
    }
    let error = filter.wrong(name, "nothing passes this filter: every change would be left out");
    filter.report(error.remedy("name at least one, or leave it out"))
}

/// The operations, and the namespaces as they are written.
type Chosen = (Option<Arc<dyn Filter>>, Option<Vec<String>>);

fn filter(sink: &mut Options) -> Result<Chosen> {
    let (mut filter, mut namespaces) = (None, None);
    below(sink, "filter", |table| {
        if let Some(names) = table.texts("operations")? {
            let named = |name: &String| {
                OPERATIONS.into_iter().find(|operation| operation.as_str() == name).ok_or_else(|| {
                    let known: Vec<_> = OPERATIONS.iter().map(|operation| operation.as_str()).collect();
                    let error = table.wrong("operations", format!("{name:?} is no operation"));
                    error.remedy(format!("known are: {}", known.join(", ")))
                })
            };
            let operations = names.iter().map(named).collect::<Result<Vec<_>>>()?;
            refuse_nothing(table, "operations", &names)?;
            filter = Some(Arc::new(Operations::from(operations.as_slice())) as Arc<dyn Filter>);
        }
        namespaces = table.texts("namespaces")?;
        namespaces.as_ref().map_or(Ok(()), |names| refuse_nothing(table, "namespaces", names))
    })?;
    Ok((filter, namespaces))
}
