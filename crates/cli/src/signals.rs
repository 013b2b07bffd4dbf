//! SIGTERM and SIGINT.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use watchkeeper::{Error, Result};

/// Signals so close together are one: a shell, or `timeout`, sends them to the process and to its group.
const ONE: Duration = Duration::from_millis(100);

/// Signals that ask the program to end.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    last: Option<Instant>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// What people call it.
    pub(crate) name: &'static str,
    /// How a program ends that it has ended.
    pub(crate) code: u8,
}

impl Signals {
    /// From now on they do not end the process by themselves.
    pub(crate) fn take() -> Result<Self> {
        let take = |kind| signal(kind).map_err(|error| Error::internal("signals can not be received").caused_by(error));
        Ok(Self { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())?, last: None })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Asked {
        loop {
            let asked = tokio::select! {
                biased;
                _ = self.terminate.recv() => Asked { name: "SIGTERM", code: 143 },
                _ = self.interrupt.recv() => Asked { name: "SIGINT", code: 130 },
            };
            if self.last.is_none_or(|last| last.elapsed() >= ONE) {
                self.last = Some(Instant::now());
                return asked;
            }
        }
    }
}
