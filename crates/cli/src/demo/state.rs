use std::time::{Duration, Instant};

use super::event::Takeover;

/// What an instance does just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Not heard of yet.
    Starting,
    /// Another one has the watch.
    StandingBy,
    /// Under this epoch.
    OnWatch(u64),
    /// Stopped by a signal; it does not know that time goes on.
    Frozen,
    /// Asked to stop.
    Leaving,
    /// Its process has ended.
    Gone,
}

/// One instance, as it is shown.
#[derive(Debug, Clone)]
pub(super) struct ShownInstance {
    pub(super) name: &'static str,
    pub(super) pid: u32,
    pub(super) role: Role,
    /// It has a write in hand.
    pub(super) holding: bool,
    /// Until when it leaves the watch to others, because it has failed.
    pub(super) rests_until: Option<Instant>,
}

impl ShownInstance {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, pid: 0, role: Role::Gone, holding: false, rests_until: None }
    }

    /// A new process of that name.
    pub(super) fn restart(&mut self, pid: u32) {
        *self = Self { pid, role: Role::Starting, ..Self::new(self.name) };
    }

    /// Whether it would take the watch at once.
    pub(super) fn is_at_hand(&self) -> bool {
        self.role == Role::StandingBy && self.rests_until.is_none_or(|until| until <= Instant::now())
    }

    /// Takes what it says of itself; the epoch, if it has just taken the watch. Who slept may believe to have it under an
    /// older one than the `newest`, until it is told better.
    pub(super) fn stands(&mut self, state: &str, epoch: Option<u64>, newest: u64) -> Option<u64> {
        let role = match (state, epoch) {
            ("running", Some(epoch)) if epoch >= newest => Role::OnWatch(epoch),
            ("connecting", _) => Role::StandingBy,
            ("stopped", _) => Role::Leaving,
            _ => Role::Starting,
        };
        // What it said before it was stopped may be heard after.
        if role == self.role || matches!(self.role, Role::Frozen | Role::Gone) {
            return None;
        }
        self.role = role;
        epoch.filter(|_| matches!(role, Role::OnWatch(_)))
    }
}

/// Everything that is shown at a glance.
#[derive(Debug)]
pub(super) struct DemoState<'a> {
    pub(super) shown_instances: &'a [ShownInstance],
    pub(super) takeovers: &'a [Takeover],
    /// What is being done to whom.
    pub(super) doing: &'a str,
    pub(super) elapsed: Duration,
    pub(super) length: Duration,
    pub(super) written: u64,
    pub(super) delivered: u64,
    pub(super) per_second: usize,
    pub(super) lag: Duration,
    pub(super) refused: u64,
}
