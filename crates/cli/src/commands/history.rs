//! How much history each stream has left before it loses its place, for `check`.

use std::time::Duration;

use serde_json::{Value, json};
use watchkeeper::core::{Checkpoint, Cx, Finding, Severity, Window};
use watchkeeper::engine::checkpoint::interval;
use watchkeeper::engine::stream::key_of;
use watchkeeper::{ErrorKind, SourceTime};

use super::store_binding;
use crate::config::{Config, Stream, System};

/// What is known of the history before a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct History {
    window: Window,
    at: SourceTime,
}

impl History {
    /// `None` for a stream that never ran, or whose source tells no times.
    pub(super) fn of(stored: Option<&Checkpoint>, window: Option<Window>) -> Option<Self> {
        let window = window.filter(|window| window.oldest.is_some())?;
        let at = stored?.position.as_ref()?.time?;
        Some(Self { window, at })
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let (Some(headroom), Some(length)) = (self.window.headroom(self.at), self.window.length()) else {
            return Vec::new();
        };
        let loss = self.window.time_to_loss(self.at).map(|left| format!(", and standing still it has {}", shown(left)));
        let loss = loss.unwrap_or_default();
        let what =
            format!("the checkpoint has {} of headroom in a history of {}{loss}", shown(headroom), shown(length));
        let mut findings = vec![Finding { severity: Severity::Note, what, remedy: None }];
        findings.extend(interval::check_headroom(&self.window, self.at));
        findings
    }

    pub(super) fn data(&self) -> Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
        json!({
            "window_seconds": seconds(self.window.length()),
            "headroom_seconds": seconds(self.window.headroom(self.at)),
            "seconds_to_loss": seconds(self.window.time_to_loss(self.at)),
            "bytes": self.window.room.map(|room| room.bytes),
            "bytes_max": self.window.room.map(|room| room.bytes_max),
            "bytes_per_second": self.window.burn_rate(),
        })
    }
}

fn shown(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

/// The stream's checkpoint in the store that keeps it. Where it is not known which that is, in any that could: in the group's, or
/// with a transactional sink. What cannot be reached was told already.
pub(super) async fn stored(cx: &Cx, config: &Config, stream: &Stream, keeper: Option<&System>) -> Option<Checkpoint> {
    let key = key_of(&config.group.settings.group, &stream.settings.name);
    let any = || stream.sinks.iter().map(|sink| &sink.system).chain([&config.group.store]).collect();
    for system in keeper.map_or_else(any, |keeper| vec![keeper]) {
        let mut options = system.options.clone();
        let what = match system.backend.peek_checkpoint(cx, &mut options, &key).await {
            Ok(Some(found)) if found.halted.is_none() && found.has_lost_position() => "has no position".to_owned(),
            Ok(Some(found)) => return Some(found),
            Err(error) if error.kind() == ErrorKind::Corrupt => format!("cannot be read ({})", error.message()),
            Ok(None) | Err(_) => continue,
        };
        return Some(store_binding::lost(cx, config, &stream.settings.name, &what).await);
    }
    None
}
