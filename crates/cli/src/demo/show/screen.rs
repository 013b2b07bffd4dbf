use std::fmt::Write;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use crate::demo::event::Takeover;
use crate::demo::state::{DemoState, Role, ShownInstance};

/// Assumed where the terminal does not tell its size.
const SIZE: (usize, usize) = (80, 24);

/// Lines of what is being done now, at most.
const WRAPPED_MAX: usize = 3;

/// Lines besides those of takeovers, and the one that the cursor is in.
const FIXED: usize = 12 + WRAPPED_MAX;

/// So many takeovers are shown, if there is room.
const TAKEOVERS_MAX: usize = 6;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";

/// Shows the cursor again.
pub(super) fn restore_terminal() -> &'static str {
    "\x1b[?25h\x1b[0m"
}

/// A picture that is drawn over the last one.
pub(super) struct Screen {
    /// How many lines the last one had.
    lines: usize,
    colours: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { lines: 0, colours: std::env::var_os("NO_COLOR").is_none() }
    }

    /// Whether colours are wanted.
    pub(super) fn colours(&self) -> bool {
        self.colours
    }

    /// What to print, to replace the last picture by this one.
    pub(super) fn picture(&mut self, demo_state: &DemoState<'_>) -> String {
        let size = tcgetwinsize(std::io::stdout()).ok().map(|size| (size.ws_col.into(), size.ws_row.into()));
        let (width, height) = size.filter(|(width, height)| *width > 0 && *height > 0).unwrap_or(SIZE);
        let lines = lines(demo_state, width, height);
        let mut out = String::from("\x1b[?25l");
        if self.lines > 0 {
            let _ = write!(out, "\x1b[{}A\r", self.lines);
        }
        // A terminal that became smaller may show parts of the old one; what is below is wiped.
        out.push_str("\x1b[J");
        for (colour, line) in &lines {
            let line: String = line.chars().take(width.saturating_sub(1)).collect();
            match self.colours && !colour.is_empty() {
                true => out.extend([*colour, &line, RESET, "\n"]),
                false => out.extend([&line, "\n"]),
            }
        }
        self.lines = lines.len();
        out
    }
}

type Line = (&'static str, String);

fn lines(demo_state: &DemoState<'_>, width: usize, height: usize) -> Vec<Line> {
    let mut lines = vec![bar(demo_state, width), blank()];
    lines.extend(demo_state.shown_instances.iter().map(shown_instance));
    lines.push(blank());
    let DemoState { written, delivered, per_second, lag, refused, .. } = demo_state;
    let under_way = written.saturating_sub(*delivered);
    let lag = lag.as_millis();
    lines.push((BOLD, format!("  {written:>7} written   {delivered:>7} delivered   {under_way:>5} under way")));
    lines.push(("", format!("  {per_second:>7} changes/s {lag:>7} ms behind   {refused:>5} stale writes refused")));
    lines.push(blank());
    lines.extend(wrapped(&format!("now: {}", demo_state.doing), width).map(|line| (YELLOW, format!("  {line}"))));
    lines.push(blank());
    let room = height.saturating_sub(FIXED).min(TAKEOVERS_MAX);
    let newest = demo_state.takeovers.iter().rev().take(room);
    lines.extend(newest.enumerate().map(|(age, takeover)| takeover_time(age, takeover)));
    lines
}

fn blank() -> Line {
    ("", String::new())
}

/// A sentence in lines of at most `width`, indented; at most three of them.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = String> {
    let width = width.saturating_sub(4).max(1);
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let at = lines.len() - 1;
        match lines[at].is_empty() {
            true => lines[at].push_str(word),
            false if lines[at].chars().count() + 1 + word.chars().count() > width => lines.push(word.to_owned()),
            false => lines[at].extend([" ", word]),
        }
    }
    lines.into_iter().take(WRAPPED_MAX)
}

/// How much of the time is over.
fn bar(demo_state: &DemoState<'_>, width: usize) -> Line {
    let length = demo_state.length.max(Duration::from_millis(1));
    let part = (demo_state.elapsed.as_secs_f64() / length.as_secs_f64()).min(1.0);
    let cells = width.saturating_sub(24).min(48);
    // A part of some dozens of cells.
    let full = (part * cells as f64) as usize;
    let (done, left) = ("=".repeat(full), "-".repeat(cells - full));
    let (elapsed, length) = (demo_state.elapsed.min(length).as_secs_f64(), length.as_secs());
    (DIM, format!("  [{done}{left}] {elapsed:>3.0} of {length} s"))
}

fn shown_instance(shown_instance: &ShownInstance) -> Line {
    let (colour, sign, role) = match shown_instance.role {
        Role::OnWatch(epoch) => (GREEN, '*', format!("has the watch, epoch {epoch}")),
        Role::StandingBy => ("", ' ', "stands by".to_owned()),
        Role::Starting => (DIM, ' ', "starting".to_owned()),
        Role::Frozen => (YELLOW, '!', "frozen (SIGSTOP)".to_owned()),
        Role::Leaving => (YELLOW, ' ', "leaving in order".to_owned()),
        Role::Gone => (RED, 'x', "dead".to_owned()),
    };
    (colour, format!("  {sign} {:<8} pid {:<8} {role}", shown_instance.name, shown_instance.pid))
}

fn takeover_time(age: usize, takeover: &Takeover) -> Line {
    let Takeover { kind, from, to, epoch, millis } = takeover;
    let colour = if age == 0 { "" } else { DIM };
    (colour, format!("  {millis:>6.0} ms  {kind:<15}  {from} -> {to}, epoch {epoch}"))
}

#[cfg(test)]
mod tests {
    use watchkeeper_drill::Fault;

    use super::*;

    fn takeover() -> Takeover {
        Takeover { kind: Fault::Kill, from: "anchor".to_owned(), to: "beacon".to_owned(), epoch: 2, millis: 41.4 }
    }

    fn demo_state<'a>(shown_instances: &'a [ShownInstance], takeovers: &'a [Takeover]) -> DemoState<'a> {
        let elapsed = Duration::from_secs(5);
        let (doing, length, lag) = ("nothing much", 2 * elapsed, Duration::from_millis(12));
        let (written, delivered, per_second, refused) = (1_700, 1_690, 301, 1);
        DemoState { shown_instances, takeovers, doing, elapsed, length, written, delivered, per_second, lag, refused }
    }

    #[test]
    fn the_picture_says_who_has_the_watch_and_how_the_last_ones_went() {
        let mut first = ShownInstance::new("anchor");
        first.restart(71);
        first.stands("running", Some(2), 1);
        let takeovers = [takeover()];
        let text: Vec<_> = lines(&demo_state(&[first], &takeovers), 80, 24).into_iter().map(|(_, line)| line).collect();
        assert!(text.iter().any(|line| line.contains("* anchor   pid 71       has the watch, epoch 2")), "{text:#?}");
        assert!(text.iter().any(|line| line.contains("41 ms  SIGKILL          anchor -> beacon")), "{text:#?}");
    }

    #[test]
    fn it_fits_into_a_small_terminal() {
        let shown_instances = ["anchor", "beacon", "compass"].map(ShownInstance::new);
        let takeovers: Vec<_> = std::iter::repeat_with(takeover).take(20).collect();
        for (width, height) in [(80, 24), (40, 16), (10, 15), (300, 80)] {
            let lines = lines(&demo_state(&shown_instances, &takeovers), width, height);
            assert!(lines.len() < height, "{} lines in {height}", lines.len());
        }
    }

    #[test]
    fn a_long_sentence_is_wrapped_between_words() {
        assert_eq!(wrapped("who has the watch", 14).collect::<Vec<_>>(), ["who has", "the watch"]);
        assert_eq!(wrapped("who has the watch", 80).collect::<Vec<_>>(), ["who has the watch"]);
    }

    #[test]
    fn the_second_picture_is_drawn_over_the_first() {
        let shown_instances = ["anchor", "beacon", "compass"].map(ShownInstance::new);
        let mut screen = Screen { lines: 0, colours: false };
        let first = screen.picture(&demo_state(&shown_instances, &[]));
        assert!(!first.contains('A'), "it moves up before anything was drawn: {first:?}");
        let second = screen.picture(&demo_state(&shown_instances, &[]));
        assert!(second.contains(&format!("\x1b[{}A", first.lines().count())), "{second:?}");
    }
}
