use std::collections::BTreeMap;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::child::Child;
use crate::event::{Event, Order};
use crate::spawner::Spawner;

/// What may be told and not yet heard. A child that has told more waits, so whoever owns them has to listen.
const UNHEARD_MAX: usize = 4096;

/// How long a stop signal may take.
const STOPPING: Duration = Duration::from_secs(5);

/// Something a child told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessReport {
    /// When it was heard.
    pub at: Instant,
    /// Who.
    pub child: String,
    /// Which process of that name, since names are used again.
    pub pid: u32,
    /// What.
    pub what: ProcessReportKind,
}

/// What a child told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessReportKind {
    /// An event.
    Event(Event),
    /// A line that is no event.
    Line(String),
    /// Its output has ended, and so has it, or it will soon.
    Ended,
}

/// Finds the event in a line of output, if it contains one.
pub type ReadEvent = fn(&str) -> Option<Event>;

/// Processes by name. All are killed when this is dropped.
#[derive(Debug)]
pub struct Children {
    read: ReadEvent,
    members: BTreeMap<String, Child>,
    reports: Receiver<ProcessReport>,
    say: SyncSender<ProcessReport>,
    /// Dropped after the members: they end with it.
    spawner: Spawner,
}

impl Children {
    /// None yet.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new() -> io::Result<Self> {
        Self::reading(|line| serde_json::from_str(line).ok())
    }

    /// None yet. Their output is that of another program, in whose lines `read` finds the events.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn reading(read: ReadEvent) -> io::Result<Self> {
        let (say, reports) = sync_channel(UNHEARD_MAX);
        Ok(Self { read, members: BTreeMap::new(), reports, say, spawner: Spawner::start()? })
    }

    /// Starts a process, in the place of an earlier one of that name, which is killed if it is still there.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(&mut self, name: &str, command: Command) -> io::Result<()> {
        self.members.remove(name);
        let child = Child::start(&self.spawner, name, command, self.read, self.say.clone())?;
        self.members.insert(name.to_owned(), child);
        Ok(())
    }

    /// The next thing that is told, if anything is within this time. States are noted on the way.
    pub fn next(&mut self, within: Duration) -> Option<ProcessReport> {
        let report = self.reports.recv_timeout(within).ok()?;
        let member = self.members.get_mut(&report.child).filter(|child| child.pid() == report.pid);
        if let Some(member) = member {
            match &report.what {
                ProcessReportKind::Event(Event::State { state, epoch, .. }) => {
                    member.state = Some((state.clone(), *epoch))
                }
                ProcessReportKind::Ended => member.state = None,
                ProcessReportKind::Event(_) | ProcessReportKind::Line(_) => {}
            }
        }
        Some(report)
    }

    /// Who is on watch, and under which epoch, by what was heard so far. The newest, if two say so.
    pub fn on_watch<'a>(&'a self) -> Option<(&'a str, u64)> {
        let running = |(name, child): (&'a String, &'a Child)| {
            let (state, epoch) = child.state.as_ref()?;
            Some((name.as_str(), (*epoch).filter(|_| state == "running")?))
        };
        self.members.iter().filter_map(running).max_by_key(|(_, epoch)| *epoch)
    }

    /// The epochs of all that say that they are on watch.
    pub fn epochs(&self) -> impl Iterator<Item = u64> {
        let running = |child: &Child| {
            let (state, epoch) = child.state.as_ref()?;
            (*epoch).filter(|_| state == "running")
        };
        self.members.values().filter_map(running)
    }

    /// How many stand by, by what was heard so far.
    pub fn standing_by(&self) -> usize {
        let standing = |child: &&Child| child.state.as_ref().is_some_and(|(state, _)| state == "connecting");
        self.members.values().filter(standing).count()
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The number of a process.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.members.get(name).map(Child::pid)
    }

    /// Whether a process has ended, for whatever reason.
    pub fn has_ended(&mut self, name: &str) -> bool {
        self.members.get_mut(name).is_none_or(|child| child.has_ended().unwrap_or(true))
    }

    /// Gives an order.
    ///
    /// # Errors
    /// There is none of that name, or it has ended.
    pub fn order(&mut self, name: &str, order: Order) -> io::Result<()> {
        self.member(name)?.order(order)
    }

    /// SIGKILL: gone without a word.
    ///
    /// # Errors
    /// There is none of that name, or it has ended.
    pub fn kill(&mut self, name: &str) -> io::Result<()> {
        self.member(name)?.signal(Signal::KILL)
    }

    /// SIGTERM: asks it to leave in order.
    ///
    /// # Errors
    /// There is none of that name, or it has ended.
    pub fn terminate(&mut self, name: &str) -> io::Result<()> {
        self.member(name)?.signal(Signal::TERM)
    }

    /// SIGSTOP: returns when it has stopped.
    ///
    /// # Errors
    /// There is none of that name, it has ended, or it does not stop.
    pub fn pause(&mut self, name: &str) -> io::Result<()> {
        self.member(name)?.pause(STOPPING)
    }

    /// SIGCONT: lets it go on.
    ///
    /// # Errors
    /// There is none of that name, or it has ended.
    pub fn wake(&mut self, name: &str) -> io::Result<()> {
        self.member(name)?.signal(Signal::CONT)
    }

    /// Waits for the end of a process.
    ///
    /// # Errors
    /// There is none of that name, or it does not end.
    pub fn reap(&mut self, name: &str, within: Duration) -> io::Result<ExitStatus> {
        self.member(name)?.reap(within)
    }

    fn member(&mut self, name: &str) -> io::Result<&mut Child> {
        self.members.get_mut(name).ok_or_else(|| io::Error::other(format!("there is no child {name:?}")))
    }
}
