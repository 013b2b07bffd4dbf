//! Three ways to look on: a picture on a terminal, lines for people, lines of JSON for programs.

mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::happening::Happening;
use super::report::Report;
use super::scene::Scene;
use super::stage::millis;
use screen::Screen;

/// How often the picture is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(125);

/// Whoever looks on.
pub(super) struct Show {
    way: Way,
    drawn: Option<Instant>,
    frozen: bool,
    closed: bool,
}

enum Way {
    Picture(Screen),
    Lines,
    Json,
}

/// A happening as a line of JSON.
#[derive(Serialize)]
struct Stamped<'a> {
    at_ms: u64,
    #[serde(flatten)]
    happening: &'a Happening,
}

impl Show {
    /// JSON if it is asked for; a picture on a terminal, unless lines are asked for.
    pub(super) fn new(json: bool, lines: bool) -> Self {
        let way = match (json, lines || !io::stdout().is_terminal()) {
            (true, _) => Way::Json,
            (false, true) => Way::Lines,
            (false, false) => Way::Picture(Screen::new()),
        };
        Self { way, drawn: None, frozen: false, closed: false }
    }

    /// Says what this is.
    pub(super) fn greet(&mut self) {
        let text = "Watchkeeper demo: three processes, one watch.\n\
            Whoever has the watch will be killed, frozen, stopped and tripped; another one takes over.\n\
            Every watch has a higher epoch than the last, and what comes late under an older one is refused.\n\
            Nothing may get lost, and nothing may come twice.\n\n";
        if !matches!(self.way, Way::Json) {
            self.print(text);
        }
    }

    /// Tells of something that has happened.
    pub(super) fn tell(&mut self, elapsed: Duration, happening: &Happening) {
        let line = match &self.way {
            // It is in the picture.
            Way::Picture(_) => return,
            Way::Lines => format!("{:6.2}s  {happening}\n", elapsed.as_secs_f64()),
            Way::Json => json(&Stamped { at_ms: millis(elapsed), happening }),
        };
        self.print(&line);
    }

    /// How often progress is to be told.
    pub(super) fn progress_every(&self) -> Duration {
        match self.way {
            Way::Picture(_) => Duration::MAX,
            Way::Lines => Duration::from_secs(5),
            Way::Json => Duration::from_secs(1),
        }
    }

    /// Whether it is time for the next picture.
    pub(super) fn is_due(&self) -> bool {
        let is_picture = matches!(self.way, Way::Picture(_)) && !self.frozen;
        is_picture && self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY)
    }

    /// The picture stays as it is.
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Draws the picture.
    pub(super) fn draw(&mut self, scene: &Scene<'_>) {
        self.drawn = Some(Instant::now());
        if let Way::Picture(screen) = &mut self.way {
            let picture = screen.picture(scene);
            self.print(&picture);
        }
    }

    /// Ends with the report; the cursor is given back.
    pub(super) fn conclude(&mut self, report: &Report) {
        let text = match &self.way {
            Way::Picture(screen) => {
                let colour = screen.colours();
                format!("{}{}", screen::farewell(), report.text(colour))
            }
            Way::Lines => report.text(false),
            Way::Json => json(report),
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
        if matches!(self.way, Way::Picture(_)) {
            self.print(screen::farewell());
        }
    }
}

fn json(value: &impl Serialize) -> String {
    // Nothing in it can fail: no maps with odd keys, no numbers that JSON does not know.
    serde_json::to_string(value).map(|line| line + "\n").unwrap_or_default()
}
