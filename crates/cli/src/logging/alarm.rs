//! Raises a stream's failure to a warning.
//!
//! The engine tells every change of state alike, at the level of information. A stream that stands still over an error is
//! more than that: whoever looks at warnings only has to see it too.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;

/// Where the engine tells changes of state.
const STATES: &str = "watchkeeper_engine::listener::post";

/// Says a warning for every change to `recovering`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alarm;

impl Alarm {
    /// What it has to hear, whatever else is logged.
    pub(super) fn hears() -> Targets {
        Targets::new().with_target(STATES, Level::INFO)
    }
}

impl<S: Subscriber> Layer<S> for Alarm {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        // One that is a warning already needs no other.
        if *event.metadata().level() == Level::INFO && told.message == "state" && told.to == "recovering" {
            let Told { stream, cause, .. } = told;
            let remedy = "mend what the cause names; it is tried again by itself, and nothing is lost meanwhile";
            tracing::warn!(stream, cause, remedy, "the stream stands still");
        }
    }
}

/// The fields of a change of state.
#[derive(Debug, Default)]
struct Told {
    message: String,
    stream: String,
    to: String,
    cause: String,
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let kept = match field.name() {
            "message" => &mut self.message,
            "stream" => &mut self.stream,
            "to" => &mut self.to,
            "cause" => &mut self.cause,
            _ => return,
        };
        *kept = format!("{value:?}");
    }
}
