//! What a check finds of the filters of sinks.

use watchkeeper::Result;
use watchkeeper::core::{Cx, Finding, Purpose, Severity};

use crate::config::{Stream, Target};

/// So many names are told in one message.
const NAMED_MAX: usize = 5;

/// What is to be said of the names in a sink's filter: one that no watched table has passes over everything.
pub(super) async fn findings(cx: &Cx, stream: &Stream, purpose: &Purpose, target: &Target) -> Result<Vec<Finding>> {
    let Some(names) = stream.namespaces(cx, purpose, target).await? else { return Ok(Vec::new()) };
    let mut options = stream.source.options.clone();
    let Some(watched) = stream.source.backend.watched(cx, purpose, &mut options).await? else { return Ok(Vec::new()) };
    let unknown = names.into_iter().filter(|name| !name.ends_with('*') && !watched.contains(name));
    let told = |name: String| {
        let (shown, more) = watched.split_at(watched.len().min(NAMED_MAX));
        let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
        Finding {
            severity: Severity::Warning,
            what: format!(
                "its filter names {name}, and the stream watches nothing of that name; what it watches: {}{more}",
                shown.join(", ")
            ),
            remedy: Some("correct the name in `namespaces`, or leave it if it is yet to come".to_owned()),
        }
    };
    Ok(unknown.map(told).collect())
}
