//! Events in the log of the shipped program.

use serde_json::Value;
use watchkeeper_drill::Event;

/// How the cause of a halt begins.
pub(crate) const HALTED: &str = "the stream is halted: ";

/// What the program has to log: every change of state, also those that `run` logs in other words.
pub(crate) const LOG: &str = "info,watchkeeper_engine::listener::stream_slot=debug";

/// The event in a line of the log, which is JSON: a change of state, or a halt.
pub(crate) fn read_log_line(line: &str) -> Option<Event> {
    let line: Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    match line["message"].as_str()? {
        "state" => Some(Event::State {
            stream: text("stream")?,
            state: text("to")?,
            epoch: line["epoch"].as_u64(),
            holder: None,
            error: None,
            deadlines_hit: 0,
        }),
        "the stream is halted until a person resumes it" => {
            Some(Event::Failed { cause: format!("{HALTED}{}", text("error").unwrap_or_default()) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_halts_are_found_in_the_log() {
        let line = r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","stream":"orders","from":"connecting","to":"running","epoch":4,"cause":"granted","message":"state"}"#;
        let Some(Event::State { state, epoch, .. }) = read_log_line(line) else { panic!("no state was found") };
        assert_eq!((state.as_str(), epoch), ("running", Some(4)));
        let halt = r#"{"level":"ERROR","stream":"orders","error":"gone","message":"the stream is halted until a person resumes it"}"#;
        assert_eq!(read_log_line(halt), Some(Event::Failed { cause: "the stream is halted: gone".to_owned() }));
        assert_eq!(read_log_line(r#"{"level":"INFO","message":"started"}"#), None);
        assert_eq!(read_log_line("panicked at"), None);
    }
}
