use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::children::{ProcessReport, ProcessReportKind, ReadEvent};
use crate::event::Order;
use crate::spawner::Spawner;

/// Between two looks at a process that should have stopped or ended.
const LOOK: Duration = Duration::from_micros(200);

/// One process.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    orders: Option<ChildStdin>,
    /// Where it stands, as it told last.
    pub(crate) state: Option<(String, Option<u64>)>,
    ended: Option<ExitStatus>,
}

impl Child {
    pub(crate) fn start(
        spawner: &Spawner,
        name: &str,
        mut command: Command,
        read: ReadEvent,
        say: SyncSender<ProcessReport>,
    ) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = spawner.spawn(command)?;
        let orders = process.stdin.take();
        let (pid, name) = (process.id(), name.to_owned());
        if let Some(output) = process.stdout.take() {
            let hear = move || forward_output(&name, pid, output, read, &say);
            std::thread::Builder::new().name("listener".to_owned()).spawn(hear)?;
        }
        Ok(Self { process, orders, state: None, ended: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal. The number means this process until it is reaped, and only we reap it.
    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.has_ended()? {
            return Err(io::Error::other("the process has ended"));
        }
        kill_process(Pid::from_child(&self.process), signal)?;
        Ok(())
    }

    /// Stops it, and waits until it has stopped: the signal is delivered when the process next runs.
    pub(crate) fn pause(&mut self, within: Duration) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let since = Instant::now();
        while !self.is_stopped() {
            if since.elapsed() > within {
                return Err(io::Error::other("the process did not stop"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether every thread of it is stopped.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name in it may contain anything, so what follows its end is looked at.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    pub(crate) fn order(&mut self, order: Order) -> io::Result<()> {
        let closed = || io::Error::other("the process takes no more orders");
        let orders = self.orders.as_mut().ok_or_else(closed)?;
        let line = serde_json::to_string(&order)?;
        writeln!(orders, "{line}")?;
        orders.flush()
    }

    pub(crate) fn has_ended(&mut self) -> io::Result<bool> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait()?;
        }
        Ok(self.ended.is_some())
    }

    /// Waits for its end.
    pub(crate) fn reap(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let since = Instant::now();
        while !self.has_ended()? {
            if since.elapsed() > within {
                return Err(io::Error::other("the process did not end"));
            }
            std::thread::sleep(LOOK);
        }
        self.ended.ok_or_else(|| io::Error::other("the process has not ended"))
    }
}

impl Drop for Child {
    /// A process that is stopped would stay for ever.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes on what a process says, up to its end.
fn forward_output(name: &str, pid: u32, output: ChildStdout, read: ReadEvent, say: &SyncSender<ProcessReport>) {
    let tell = |what| say.send(ProcessReport { at: Instant::now(), child: name.to_owned(), pid, what }).is_ok();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let what = read(&line).map_or(ProcessReportKind::Line(line), ProcessReportKind::Event);
        if !tell(what) {
            return;
        }
    }
    tell(ProcessReportKind::Ended);
}
