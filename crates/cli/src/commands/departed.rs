//! Streams that have begun and are not in the file any more, because they were renamed or removed.
//!
//! A stream that was renamed is a new one: with `start = "now"` it skips what happened since the checkpoint under its old name, and what
//! held the log back for that stays behind.

use std::sync::Arc;

use watchkeeper::core::{Checkpoint, Cx, Finding, Purpose, Severity};
use watchkeeper::engine::group::store_binding::StoreBindings;
use watchkeeper::engine::stream::key_of;

use super::{history, store_binding};
use crate::config::Config;
use crate::when::iso;

/// What is left of such streams. What cannot be reached is told elsewhere.
pub(super) async fn findings(cx: &Cx, config: &Config) -> Vec<Finding> {
    let departed = departed(cx, config).await;
    if departed.is_empty() {
        return Vec::new();
    }
    let newcomers = newcomers(cx, config).await;
    let mut findings = Vec::new();
    for name in &departed {
        if let Some(checkpoint) = checkpoint(cx, config, name).await {
            findings.extend(finding(name, &checkpoint, &newcomers));
        }
    }
    findings.extend(leftovers(cx, config, &departed).await);
    findings
}

/// The streams that the group's records know and the file does not.
async fn departed(cx: &Cx, config: &Config) -> Vec<String> {
    let group = &config.group;
    let system = group.records.as_ref().unwrap_or(&group.store);
    let Some(records) = store_binding::records(cx, system).await else { return Vec::new() };
    let begun = StoreBindings::new(Arc::clone(&records), &group.settings.group).streams(cx).await.unwrap_or_default();
    let is_described = |name: &String| config.streams.iter().any(|stream| stream.settings.name == *name);
    begun.into_iter().filter(|name| !is_described(name)).collect()
}

/// The streams of the file that have no checkpoint yet.
async fn newcomers<'c>(cx: &Cx, config: &'c Config) -> Vec<&'c str> {
    let mut names = Vec::new();
    for stream in &config.streams {
        let stored = history::stored(cx, config, stream, None).await;
        if stored.and_then(|stored| stored.position).is_none() {
            names.push(stream.settings.name.as_str());
        }
    }
    names
}

/// The checkpoint of a stream whose sinks are not known: in the group's store, or with any sink of the file that could keep it.
async fn checkpoint(cx: &Cx, config: &Config, name: &str) -> Option<Checkpoint> {
    let key = key_of(&config.group.settings.group, name);
    let sinks = config.streams.iter().flat_map(|stream| stream.sinks.iter().map(|sink| &sink.system));
    for system in [&config.group.store].into_iter().chain(sinks) {
        let found = system.backend.peek_checkpoint(cx, &mut system.options.clone(), &key).await;
        if let Ok(Some(found)) = found {
            return Some(found);
        }
    }
    None
}

fn finding(name: &str, checkpoint: &Checkpoint, newcomers: &[&str]) -> Option<Finding> {
    let position = checkpoint.position.as_ref()?;
    let since = iso(checkpoint.facts.updated_at_millis);
    let what =
        format!("stream {name:?} is not in this file, but has a checkpoint: it stands at {position} since {since}");
    Some(match newcomers {
        [] => Finding { severity: Severity::Note, what, remedy: None },
        newcomers => Finding {
            severity: Severity::Warning,
            what: format!("{what}; {} would begin anew", newcomers.join(", ")),
            remedy: Some(format!(
                "if it was renamed, changes since then may be skipped: give it its old name again, or begin the new one there before its \
                 first run (watchkeeper checkpoint set {} {position})",
                newcomers[0]
            )),
        },
    })
}

/// What the sources of the file still hold for them.
async fn leftovers(cx: &Cx, config: &Config, departed: &[String]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for stream in &config.streams {
        let purpose = Purpose::new(&config.group.settings.group, &stream.settings.name);
        let (backend, mut options) = (&stream.source.backend, stream.source.options.clone());
        let found = backend.leftovers(cx, &purpose, &mut options, departed).await.unwrap_or_default();
        // Several streams may read one server.
        findings.extend(found.into_iter().filter(|finding| !findings.contains(finding)).collect::<Vec<_>>());
    }
    findings
}
