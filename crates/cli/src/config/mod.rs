//! The file, with variables over it, as a description of what to open. Nothing is connected to here.

mod expand;
mod group;
pub(crate) mod secrets;
mod stream;
mod system;
mod toml;
mod twins;
mod variables;

use std::path::Path;
use std::sync::Arc;

use watchkeeper::core::Options;
use watchkeeper::{Error, Result};

pub(crate) use group::Group;
pub(crate) use stream::{Stream, Target};
pub(crate) use system::System;

/// A whole configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) group: Group,
    pub(crate) streams: Vec<Stream>,
}

/// Reads the file at `path` and the variables of this process.
///
/// # Errors
/// `Config` naming what is wrong, where it was written and what to write instead.
pub(crate) fn load(path: &Path) -> Result<Config> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
    let mut root = toml::read(&name, &text)?;
    let fingerprint = fingerprint(root.clone(), std::env::vars());
    secrets::hide_all(&mut root);
    expand::all(&mut root, &(Arc::new(Surroundings) as Arc<dyn expand::Values>))?;
    variables::over(&mut root, std::env::vars())?;
    secrets::hide_all(&mut root);
    let mut config = read(root)?;
    config.group.settings.fingerprint = fingerprint;
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
        _ => "make it readable for this user, or name another with --config",
    };
    Error::config(format!("the configuration can not be read: {error}")).remedy(remedy).at(name)
}

fn read(mut root: Options) -> Result<Config> {
    let group = group::read(&mut root)?;
    let lease = group.settings.lease.ttl;
    let read = |stream| stream::read(stream, lease);
    let streams = root.tables("stream")?.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    root.finish()?;
    twins::refuse(&streams)?;
    Ok(Config { group, streams })
}

impl Config {
    /// Refuses a file in which there is nothing to do.
    pub(crate) fn refuse_idle(&self) -> Result<()> {
        if self.streams.is_empty() {
            let remedy = "write a [[stream]] with a name, a source and a [[stream.sink]]";
            return Err(Error::config("there is no stream in the file").remedy(remedy).at(&self.group.lease_origin));
        }
        Ok(())
    }
}

/// Variables and files of this process.
struct Surroundings;

impl expand::Values for Surroundings {
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
