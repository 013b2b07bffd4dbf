//! SIGTERM, SIGINT and SIGHUP, and an output that nobody reads any more.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};
use watchkeeper::{Error, Result};

/// Signals so close together are one: a shell, or `timeout`, sends them to the process and to its group.
const ONE: Duration = Duration::from_millis(100);

/// Signals that ask the program to end.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` where it is ignored, as under `nohup`.
    hangup: Option<Signal>,
    /// Whether standard output is watched, until it is closed.
    watches_output: bool,
    last: Option<Instant>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    /// What people call it.
    pub(crate) name: &'static str,
    /// How a program ends that it has ended.
    pub(crate) code: u8,
}

impl Signals {
    /// From now on they do not end the process by themselves.
    pub(crate) fn take() -> Result<Self> {
        let take = |kind| signal(kind).map_err(|error| Error::internal("signals cannot be received").caused_by(error));
        let hangup = if is_hangup_ignored() { None } else { Some(take(SignalKind::hangup())?) };
        let (terminate, interrupt) = (take(SignalKind::terminate())?, take(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hangup, watches_output: false, last: None })
    }

    /// The same, which also ask to end when nobody reads standard output any more, if that `is_sink`.
    pub(crate) fn with_output(self, is_sink: bool) -> Self {
        Self { watches_output: is_sink, ..self }
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> ReceivedSignal {
        loop {
            let asked = tokio::select! {
                biased;
                _ = self.terminate.recv() => ReceivedSignal { name: "SIGTERM", code: 143 },
                _ = self.interrupt.recv() => ReceivedSignal { name: "SIGINT", code: 130 },
                () = received(self.hangup.as_mut()) => ReceivedSignal { name: "SIGHUP", code: 129 },
                () = output_closed(), if self.watches_output => {
                    self.watches_output = false;
                    return ReceivedSignal { name: "closed standard output", code: 141 };
                }
            };
            if self.last.is_none_or(|last| last.elapsed() >= ONE) {
                self.last = Some(Instant::now());
                return asked;
            }
        }
    }
}

/// Waits for a signal; for ever for none.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process let it ignore SIGHUP: that stays so. Where it cannot be found out it is not ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    // The lowest bit stands for signal 1, which is SIGHUP.
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Waits until nobody reads standard output any more. Without changes nothing is written, so no write would tell.
pub(crate) async fn output_closed() {
    let out = io::stdout();
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    loop {
        ticks.tick().await;
        let mut watched = [PollFd::new(&out, PollFlags::empty())];
        // What is wrong with a descriptor is told whatever is asked for; a look that fails is repeated.
        let inspected = poll(&mut watched, Some(&Timespec::default()));
        if inspected.is_ok() && watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return;
        }
    }
}
