//! The demo as it runs: its processes, its writer, what arrived, and whoever looks on.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use watchkeeper::{Error, Result};
use watchkeeper_drill::{Children, Event, Fault, ProcessReport, ProcessReportKind};

use super::event::{DemoEvent, Takeover};
use super::show::Show;
use super::state::{DemoState, Role, ShownInstance};
use super::target::Target;
use super::workspace::Workspace;
use super::writer::Writer;

/// The instances' names.
pub(super) const NAMES: [&str; 3] = ["anchor", "beacon", "compass"];

/// Between two looks at what arrived, which is how exactly a takeover is timed.
const LOOK: Duration = Duration::from_millis(2);

/// So many processes may end without having been told to; then something is wrong with the place, not with one of them.
const UNEXPECTED_MAX: usize = 5;

/// How often somebody pressed Ctrl-C.
pub(super) type Interrupts = Arc<AtomicUsize>;

/// Everything that is on the stage.
pub(super) struct DemoRun {
    pub(super) place: Workspace,
    pub(super) children: Children,
    pub(super) shown_instances: Vec<ShownInstance>,
    pub(super) target: Target,
    pub(super) writer: Writer,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) done: Vec<Fault>,
    pub(super) refused: u64,
    pub(super) doing: String,
    pub(super) began: Instant,
    pub(super) length: Duration,
    pub(super) show: Show,
    interrupts: Interrupts,
    /// The last thing that a process said of its end.
    last_words: Option<String>,
    unexpected: usize,
    /// The newest epoch that anyone took the watch under.
    newest_epoch: u64,
    progress_shown: Instant,
}

impl DemoRun {
    pub(super) fn new(
        place: Workspace,
        writer: Writer,
        target: Target,
        length: Duration,
        (show, interrupts): (Show, Interrupts),
    ) -> Result<Self> {
        let children = Children::new().map_err(|error| Error::unavailable("no thread can be had").caused_by(error))?;
        let began = Instant::now();
        Ok(Self {
            place,
            children,
            shown_instances: NAMES.map(ShownInstance::new).to_vec(),
            target,
            writer,
            takeovers: Vec::new(),
            done: Vec::new(),
            refused: 0,
            doing: "the first one to ask gets the watch".to_owned(),
            began,
            length,
            show,
            interrupts,
            last_words: None,
            unexpected: 0,
            newest_epoch: 0,
            progress_shown: began,
        })
    }

    /// Hears, looks and shows until `done`, for at most this time; whether it was done. Ctrl-C ends it early.
    pub(super) fn wait(&mut self, within: Duration, done: impl Fn(&Self) -> bool) -> Result<bool> {
        let (until, interrupts) = (Instant::now() + within, self.interrupts());
        loop {
            self.turn()?;
            if done(self) {
                return Ok(true);
            }
            if Instant::now() >= until || self.interrupts() > interrupts {
                return Ok(false);
            }
        }
    }

    fn interrupts(&self) -> usize {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Whether somebody wants it to end, or nobody looks on any more.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupts() > 0 || self.show.is_closed()
    }

    /// Whether somebody does not even want to wait for the verdict.
    pub(super) fn is_urged(&self) -> bool {
        self.interrupts() > 1
    }

    fn turn(&mut self) -> Result<()> {
        let mut report = self.children.next(LOOK);
        while let Some(heard) = report {
            self.hear(heard);
            report = self.children.next(Duration::ZERO);
        }
        self.target.read_new()?;
        if self.show.is_due() {
            self.draw();
        }
        if self.progress_shown.elapsed() >= self.show.progress_every() {
            self.progress_shown = Instant::now();
            let progress = self.progress();
            self.emit(progress);
        }
        Ok(())
    }

    fn hear(&mut self, report: ProcessReport) {
        let Some(shown_instance) =
            self.shown_instances.iter_mut().find(|shown_instance| shown_instance.pid == report.pid)
        else {
            return;
        };
        let (instance, pid) = (shown_instance.name.to_owned(), shown_instance.pid);
        match report.what {
            ProcessReportKind::Event(Event::State { state, epoch, .. }) => {
                let taken = shown_instance.stands(&state, epoch, self.newest_epoch);
                if let Some(epoch) = taken {
                    self.newest_epoch = epoch;
                    self.emit(DemoEvent::OnWatch { instance, pid, epoch });
                }
            }
            ProcessReportKind::Event(Event::Holding { .. }) => shown_instance.holding = true,
            ProcessReportKind::Event(Event::Refused { epoch, changes }) => {
                self.refused += 1;
                self.emit(DemoEvent::Refused { instance, epoch, changes });
            }
            ProcessReportKind::Event(Event::Failed { cause }) => self.last_words = Some(cause),
            ProcessReportKind::Ended => shown_instance.role = Role::Gone,
            _ => {}
        }
    }

    /// Tells people and programs.
    pub(super) fn emit(&mut self, demo_event: DemoEvent) {
        self.show.emit(self.began.elapsed(), &demo_event);
    }

    fn progress(&self) -> DemoEvent {
        DemoEvent::Progress {
            elapsed_ms: millis(self.began.elapsed()),
            written: self.writer.written(),
            delivered: self.target.received(),
            per_second: self.target.per_second(),
            lag_ms: millis(self.target.lag()),
        }
    }

    /// Draws the picture for the last time: processes that stop because it is over are not worth seeing.
    pub(super) fn draw_last(&mut self) {
        self.draw();
        self.show.freeze();
    }

    fn draw(&mut self) {
        let demo_state = DemoState {
            shown_instances: &self.shown_instances,
            takeovers: &self.takeovers,
            doing: &self.doing,
            elapsed: self.began.elapsed(),
            length: self.length,
            written: self.writer.written(),
            delivered: self.target.received(),
            per_second: self.target.per_second(),
            lag: self.target.lag(),
            refused: self.refused,
        };
        self.show.draw(&demo_state);
    }

    /// Starts a process, in the place of the last one of that name.
    pub(super) fn start(&mut self, name: &'static str) -> Result<()> {
        let started = self.command(name).and_then(|command| self.children.start(name, command));
        started.map_err(|error| Error::internal(format!("{name} does not start: {error}")).caused_by(error))?;
        let pid = self.children.pid(name).unwrap_or(0);
        self.shown_instance(name).restart(pid);
        self.emit(DemoEvent::Up { instance: name.to_owned(), pid });
        Ok(())
    }

    fn command(&self, name: &str) -> std::io::Result<Command> {
        let log = OpenOptions::new().create(true).append(true).open(self.place.log(name))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["demo-instance", "--log", "info"]).arg(self.place.folder()).arg(name).stderr(log);
        // In a group of its own, so that Ctrl-C is for the demo alone.
        command.process_group(0);
        Ok(command)
    }

    /// Starts those again who have ended without having been told to.
    ///
    /// # Errors
    /// That happens too often.
    pub(super) fn replace_the_lost(&mut self) -> Result<()> {
        for name in NAMES {
            if !self.children.has_ended(name) {
                continue;
            }
            self.unexpected += 1;
            let cause = self.last_words.take().unwrap_or_else(|| "it gave no cause".to_owned());
            if self.unexpected > UNEXPECTED_MAX {
                return Err(Error::internal(format!("processes of the demo keep ending: {cause}"))
                    .remedy("run it with --keep and look into the logs of its folder"));
            }
            let pid = self.shown_instance(name).pid;
            self.emit(DemoEvent::Ended {
                instance: name.to_owned(),
                pid,
                cause: format!("ended unexpectedly: {cause}"),
            });
            self.start(name)?;
        }
        Ok(())
    }

    /// Stops all processes in order, and looks once more at what arrived.
    pub(super) fn stop_all(&mut self, within: Duration) -> Result<()> {
        for name in NAMES {
            // Who cannot be told has ended.
            let _ = self.children.terminate(name);
        }
        self.wait(within, |demo_run| {
            demo_run.shown_instances.iter().all(|shown_instance| shown_instance.role == Role::Gone)
        })?;
        self.target.read_new()
    }

    /// Who is on watch, and under which epoch.
    pub(super) fn on_watch(&self) -> Option<(&'static str, u64)> {
        let on_watch = |shown_instance: &ShownInstance| match shown_instance.role {
            Role::OnWatch(epoch) => Some((shown_instance.name, epoch)),
            _ => None,
        };
        self.shown_instances.iter().filter_map(on_watch).max_by_key(|(_, epoch)| *epoch)
    }

    /// How many stand by.
    pub(super) fn standing_by(&self) -> usize {
        self.shown_instances.iter().filter(|shown_instance| shown_instance.role == Role::StandingBy).count()
    }

    pub(super) fn shown_instance(&mut self, name: &str) -> &mut ShownInstance {
        let at = NAMES.iter().position(|it| *it == name).unwrap_or(0);
        &mut self.shown_instances[at]
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
