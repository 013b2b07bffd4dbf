//! Three ways to look on: a picture on a terminal, lines for people, lines of JSON for programs.

mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::event::DemoEvent;
use super::report::Report;
use super::run::millis;
use super::state::DemoState;
use screen::Screen;

/// How often the picture is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(125);

/// Whoever looks on.
pub(super) struct Show {
    way: OutputMode,
    drawn: Option<Instant>,
    frozen: bool,
    closed: bool,
}

enum OutputMode {
    Picture(Screen),
    Lines,
    Json,
}

/// A happening as a line of JSON.
#[derive(Serialize)]
struct Stamped<'a> {
    at_ms: u64,
    #[serde(flatten)]
    demo_event: &'a DemoEvent,
}

impl Show {
    /// JSON if it is asked for; a picture on a terminal, unless lines are asked for.
    pub(super) fn new(json: bool, lines: bool) -> Self {
        let way = match (json, lines || !io::stdout().is_terminal()) {
            (true, _) => OutputMode::Json,
            (false, true) => OutputMode::Lines,
            (false, false) => OutputMode::Picture(Screen::new()),
        };
        Self { way, drawn: None, frozen: false, closed: false }
    }

    /// Says what this is.
    pub(super) fn greet(&mut self) {
        let text = "Watchkeeper demo: three processes, one watch.\n\
            Whoever has the watch will be killed, frozen, stopped and tripped; another one takes over.\n\
            Every watch has a higher epoch than the last, and what comes late under an older one is refused.\n\
            Nothing may get lost, and nothing may come twice.\n\n";
        if !matches!(self.way, OutputMode::Json) {
            self.print(text);
        }
    }

    /// Tells of something that has happened.
    pub(super) fn emit(&mut self, elapsed: Duration, demo_event: &DemoEvent) {
        let line = match &self.way {
            // It is in the picture.
            OutputMode::Picture(_) => return,
            OutputMode::Lines => format!("{:6.2}s  {demo_event}\n", elapsed.as_secs_f64()),
            OutputMode::Json => json(&Stamped { at_ms: millis(elapsed), demo_event }),
        };
        self.print(&line);
    }

    /// How often progress is to be told.
    pub(super) fn progress_every(&self) -> Duration {
        match self.way {
            OutputMode::Picture(_) => Duration::MAX,
            OutputMode::Lines => Duration::from_secs(5),
            OutputMode::Json => Duration::from_secs(1),
        }
    }

    /// Whether it is time for the next picture.
    pub(super) fn is_due(&self) -> bool {
        let is_picture = matches!(self.way, OutputMode::Picture(_)) && !self.frozen;
        is_picture && self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY)
    }

    /// The picture stays as it is.
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Draws the picture.
    pub(super) fn draw(&mut self, demo_state: &DemoState<'_>) {
        self.drawn = Some(Instant::now());
        if let OutputMode::Picture(screen) = &mut self.way {
            let picture = screen.picture(demo_state);
            self.print(&picture);
        }
    }

    /// Ends with the report; the cursor is given back.
    pub(super) fn conclude(&mut self, report: &Report) {
        let text = match &self.way {
            OutputMode::Picture(screen) => {
                let colour = screen.colours();
                format!("{}{}", screen::restore_terminal(), report.text(colour))
            }
            OutputMode::Lines => report.text(false),
            OutputMode::Json => json(report),
        };
        self.print(&text);
    }

    /// Whether nobody reads it any more, as when it is piped into `head`.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    fn print(&mut self, text: &str) {
        let mut out = io::stdout().lock();
        self.closed |= out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err();
    }
}

impl Drop for Show {
    /// However it ends, the cursor is given back.
    fn drop(&mut self) {
        if matches!(self.way, OutputMode::Picture(_)) {
            self.print(screen::restore_terminal());
        }
    }
}

fn json(value: &impl Serialize) -> String {
    // Nothing in it can fail: no maps with odd keys, no numbers that JSON does not know.
    serde_json::to_string(value).map(|line| line + "\n").unwrap_or_default()
}
