//! The file, with variables over it, as a description of what to open. Nothing is connected to here.

mod conflicts;
mod expand;
mod group;
pub(crate) mod secrets;
mod stream;
mod system;
mod toml;
mod variables;

use std::path::Path;
use std::sync::Arc;

use watchkeeper::core::{Collector, Options, Setting, WrittenSetting};
use watchkeeper::{Error, LeaseSettings, Result};

pub(crate) use group::Group;
pub(crate) use stream::{Stream, Target};
pub(crate) use system::System;

/// A whole configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) group: Group,
    pub(crate) streams: Vec<Stream>,
}

/// A file as far as it could be read, and all that is wrong with it.
#[derive(Debug)]
pub(crate) struct ParsedFile {
    /// The group, and the streams that nothing is wrong with; `None` when the group cannot be read.
    pub(crate) config: Option<Config>,
    /// In the order of their lines.
    pub(crate) errors: Vec<Error>,
}

/// Reads the file at `path` and the variables of this process, and finds everything that is wrong without a connection.
pub(crate) fn examine(path: &Path) -> ParsedFile {
    let collector = Collector::default();
    let config = read_file(path, &collector).unwrap_or_else(|error| {
        collector.push(error);
        None
    });
    ParsedFile { config, errors: in_order(collector.take()) }
}

/// Reads the file at `path` and the variables of this process.
///
/// # Errors
/// `Config` naming the first thing that is wrong, where it was written and what to write instead.
pub(crate) fn load(path: &Path) -> Result<Config> {
    let ParsedFile { config, errors } = examine(path);
    first(errors)?;
    config.ok_or_else(|| Error::internal("the file was not read, and nothing is wrong with it"))
}

/// The first error, which says how many there are.
fn first(errors: Vec<Error>) -> Result<()> {
    let more = errors.len().saturating_sub(1);
    let Some(error) = errors.into_iter().next() else { return Ok(()) };
    if more == 0 {
        return Err(error);
    }
    let advice = error.advice().unwrap_or("correct it").to_owned();
    let others = if more == 1 { "1 more error".to_owned() } else { format!("{more} more errors") };
    Err(error.remedy(format!("{advice}; {others} in this file: `watchkeeper check --offline` lists all")))
}

fn in_order(mut errors: Vec<Error>) -> Vec<Error> {
    let line = |error: &Error| error.place().and_then(|place| place.rsplit_once(':')?.1.parse::<u64>().ok());
    // Variables have no line, and come last.
    errors.sort_by_key(|error| line(error).unwrap_or(u64::MAX));
    errors
}

fn read_file(path: &Path, collector: &Collector) -> Result<Option<Config>> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
    let mut root = toml::read(&name, &text)?;
    let fingerprint = fingerprint(root.clone(), std::env::vars());
    root.collect_into(Some(collector));
    secrets::hide_all(&mut root);
    expand::all(&mut root, &(Arc::new(Environment) as Arc<dyn expand::Values>))?;
    let not_expanded = collector.take();
    variables::over(&mut root, std::env::vars())?;
    secrets::hide_all(&mut root);
    let mut config = read(root, collector)?;
    if let Some(config) = &mut config {
        config.group.settings.fingerprint = fingerprint;
    }
    // What is wrong with a text that could not be expanded was not written by anyone.
    let found = collector.take().into_iter();
    let found = found.filter(|error| not_expanded.iter().all(|known| known.place() != error.place()));
    let found: Vec<_> = found.collect();
    not_expanded.into_iter().chain(found).for_each(|error| collector.push(error));
    Ok(config)
}

/// What all instances of a group should have in common: the file before values are put in, but for what is an instance's own,
/// and the variables over it.
fn fingerprint(mut root: Options, variables: impl Iterator<Item = (String, String)>) -> String {
    let shared = |name: &str| {
        name.starts_with("WATCHKEEPER__") && !name.to_ascii_uppercase().starts_with("WATCHKEEPER__INSTANCE")
    };
    let over: std::collections::BTreeMap<_, _> = variables.filter(|(name, _)| shared(name)).collect();
    let (group, streams) = (root.json("group"), root.json("stream"));
    serde_json::json!({ "group": group, "stream": streams, "over": over }).to_string()
}

fn unreadable(name: &str, error: &std::io::Error) -> Error {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => "write one with `watchkeeper init`, or name another with --config",
        std::io::ErrorKind::IsADirectory => "name the file in it with --config",
        std::io::ErrorKind::InvalidData => "save it as UTF-8, or name another with --config",
        _ => "make it readable for this user, or name another with --config",
    };
    Error::config(format!("the configuration cannot be read: {error}")).remedy(remedy).at(name)
}

/// The group and its streams, without those that something is wrong with; `None` when the group cannot be read.
fn read(mut root: Options, collector: &Collector) -> Result<Option<Config>> {
    root.collect_into(Some(collector));
    let has_group = root.peek("group").is_some();
    let read = group::read(&mut root);
    let group = root.reported(read)?.flatten().filter(|_| collector.is_empty());
    let (name, lease) = match &group {
        Some(group) => (group.settings.group.clone(), group.settings.lease.ttl),
        None => (String::new(), LeaseSettings::default().ttl),
    };
    if !has_group && root.peek("stream").is_none() {
        // Where there is a group, the commands that need a stream refuse its absence.
        collector.push(no_stream().at(root.origin()));
    }
    leave_sinks_of_a_misspelt_head(&mut root);
    let mut streams = Vec::new();
    for options in root.tables("stream")? {
        let before = collector.len();
        let read = stream::read(options, &name, lease);
        let stream = root.reported(read)?.flatten();
        streams.extend(stream.map(|stream| (stream, collector.len() == before)));
    }
    root.finish()?;
    conflicts::refuse(&streams.iter().map(|(stream, _)| stream).collect::<Vec<_>>(), collector);
    let streams = streams.into_iter().filter(|(_, is_good)| *is_good).map(|(stream, _)| stream).collect();
    Ok(group.map(|group| Config { group, streams }))
}

/// `[[stream.sink]]` below `[[streams]]` makes a table of `stream`: the head is what is wrong, and is reported as unknown.
fn leave_sinks_of_a_misspelt_head(root: &mut Options) {
    let is_known = |name: &str| ["group", "instance", "stream"].contains(&name);
    let is_list = |value: &WrittenSetting| matches!(value.setting, Setting::List(_));
    let has_misspelt = root.iter_mut().any(|(name, value)| !is_known(name) && is_list(value));
    let is_table = root.peek("stream").is_some_and(|value| matches!(value.setting, Setting::Table(_)));
    if has_misspelt && is_table {
        root.take("stream");
    }
}

fn no_stream() -> Error {
    Error::config("there is no stream in the file")
        .remedy("write a [[stream]] with a name, a source and a [[stream.sink]]")
}

impl Config {
    /// Whether standard output belongs to a sink.
    pub(crate) fn writes_to_stdout(&self) -> bool {
        let mut sinks = self.streams.iter().flat_map(|stream| &stream.sinks);
        sinks.any(|target| target.system.backend.name() == "stdout")
    }

    /// Refuses a file in which there is nothing to do.
    pub(crate) fn refuse_idle(&self) -> Result<()> {
        if self.streams.is_empty() {
            return Err(no_stream().at(&self.group.lease_origin));
        }
        Ok(())
    }
}

/// Variables and files of this process.
struct Environment;

impl expand::Values for Environment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &str) -> std::io::Result<String> {
        let text = std::fs::read_to_string(path)?;
        Ok(text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line)).to_owned())
    }
}

#[cfg(test)]
mod tests;
