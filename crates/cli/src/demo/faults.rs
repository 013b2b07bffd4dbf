//! What is done to the one on watch, and how it is made good.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper::engine::group::control::Controls;
use watchkeeper::sqlite::rusqlite::Connection;
use watchkeeper::{Cx, Epoch, Error, Result};
use watchkeeper_drill::{Fault, Order};

use super::event::{DemoEvent, Takeover, doing};
use super::run::DemoRun;
use super::state::{Role, ShownInstance};
use super::workspace::{LEASE, REST, STREAM};

/// How long to wait for one on watch and two who stand by.
const READY: Duration = Duration::from_secs(5);

/// How long a takeover may take; far longer than any should.
const TAKEOVER: Duration = Duration::from_secs(10);

/// How long an answer of a process may take.
const ANSWER: Duration = Duration::from_secs(3);

/// How often a process is stopped again that held somebody up.
const STOPS_MAX: usize = 20;

/// How an operator asks for a hand-over.
pub(super) struct Operator {
    pub(super) runtime: Handle,
    pub(super) controls: Controls,
    pub(super) cx: Cx,
}

impl Operator {
    fn hand_over(&self, epoch: u64) -> Result<()> {
        let cx = self.cx.within(ANSWER);
        let requested = self.controls.update(&cx, STREAM, |control| control.hand_over = Some(Epoch(epoch)));
        self.runtime.block_on(requested).map(drop)
    }
}

/// Who was struck, and when.
struct InjectedFault {
    name: &'static str,
    epoch: u64,
    since: Instant,
}

impl DemoRun {
    /// Does this to the one on watch, waits for its relief, and makes it good.
    pub(super) fn inject(&mut self, fault: Fault, operator: &Operator) -> Result<()> {
        self.replace_the_lost()?;
        let is_ready = |demo_run: &Self| {
            let delivers = demo_run.on_watch().is_some_and(|(_, epoch)| epoch == demo_run.target.newest_epoch());
            delivers && demo_run.standing_by() >= 2 && demo_run.shown_instances.iter().any(ShownInstance::is_at_hand)
        };
        if !self.wait(READY, is_ready)? {
            return Ok(());
        }
        let Some((name, epoch)) = self.on_watch() else { return Ok(()) };
        let pid = self.shown_instance(name).pid;
        self.doing = doing(fault, name, pid);
        if fault == Fault::Pause && !self.hold(name)? {
            return Ok(());
        }
        // What could not be done (its process has just ended, or a store is busy) does not count, and comes again.
        let Ok(since) = self.act(fault, name, epoch, operator) else {
            return self.release_held(fault, name);
        };
        self.emit(DemoEvent::Fault { kind: fault, instance: name.to_owned(), pid, epoch });
        self.done.push(fault);
        self.await_takeover(fault, &InjectedFault { name, epoch, since })?;
        if fault == Fault::Pause {
            // Past its lease, whenever that was renewed last.
            let over = since + LEASE + LEASE / 10;
            self.wait(over.saturating_duration_since(Instant::now()), |_| false)?;
        }
        self.recover(fault, name)
    }

    /// Does it. The answer is the moment from which the takeover is counted.
    fn act(&mut self, fault: Fault, name: &'static str, epoch: u64, operator: &Operator) -> Result<Instant> {
        let done = match fault {
            Fault::Kill => self.children.kill(name),
            Fault::Stop => self.children.terminate(name),
            Fault::Fail => self.children.order(name, Order::Fail),
            Fault::Pause | Fault::PauseInside => self.freeze(name),
            Fault::HandOver => {
                operator.hand_over(epoch)?;
                Ok(())
            }
        };
        let since = Instant::now();
        done.map_err(|error| Error::internal(format!("{fault} of {name} failed: {error}")).caused_by(error))?;
        match fault {
            Fault::Kill => self.shown_instance(name).role = Role::Gone,
            Fault::Stop => self.shown_instance(name).role = Role::Leaving,
            Fault::Pause | Fault::PauseInside => self.shown_instance(name).role = Role::Frozen,
            Fault::Fail => self.shown_instance(name).rests_until = Some(since + REST),
            Fault::HandOver => {}
        }
        Ok(since)
    }

    /// Has it take a write in hand; whether it did.
    fn hold(&mut self, name: &'static str) -> Result<bool> {
        self.shown_instance(name).holding = false;
        let ordered = self.children.order(name, Order::Hold { inside: false });
        let holds = |demo_run: &Self| {
            demo_run.shown_instances.iter().any(|shown_instance| shown_instance.name == name && shown_instance.holding)
        };
        if ordered.is_ok() && self.wait(ANSWER, holds)? {
            return Ok(true);
        }
        // It may take one in hand later; then it is let go at once.
        let _ = self.children.order(name, Order::Go);
        Ok(false)
    }

    /// Has it let go of what it has in hand for nothing. Who cannot be told has ended.
    fn release_held(&mut self, fault: Fault, name: &'static str) -> Result<()> {
        if fault == Fault::Pause {
            let _ = self.children.wake(name).and_then(|()| self.children.order(name, Order::Go));
        }
        Ok(())
    }

    /// Stops a process, but not where it holds everybody else up: in the middle of a renewal or a note, a file of SQLite
    /// would have a writer that never ends. Inside the sink it may be stopped, since there it is evicted.
    fn freeze(&mut self, name: &str) -> std::io::Result<()> {
        let files = [self.place.group(), self.place.shop()];
        for _ in 0..STOPS_MAX {
            self.children.pause(name)?;
            if files.iter().all(|file| is_free(file)) {
                return Ok(());
            }
            self.children.wake(name)?;
            std::thread::sleep(LEASE / 50);
        }
        self.children.pause(name)
    }

    /// Waits for the first change under a newer epoch.
    fn await_takeover(&mut self, fault: Fault, injected: &InjectedFault) -> Result<()> {
        let epoch = injected.epoch;
        let taken_over = |demo_run: &Self| {
            let next = demo_run.target.next_epoch(epoch);
            next.is_some_and(|(next, _)| demo_run.on_watch().is_some_and(|(_, newest)| newest >= next))
        };
        if !self.wait(TAKEOVER, taken_over)? {
            self.doing.push_str(": nobody took over");
            return Ok(());
        }
        let (Some((epoch, at)), Some((to, _))) = (self.target.next_epoch(epoch), self.on_watch()) else {
            return Ok(());
        };
        let millis = at.saturating_duration_since(injected.since).as_secs_f64() * 1e3;
        let (from, to) = (injected.name.to_owned(), to.to_owned());
        let takeover = Takeover { kind: fault, from, to, epoch, millis: (millis * 10.0).round() / 10.0 };
        // It stays to be read until the next fault.
        self.doing = format!("{}: {} took over", self.doing, takeover.to);
        self.takeovers.push(takeover.clone());
        self.emit(DemoEvent::Takeover(takeover));
        Ok(())
    }

    /// Makes it good: what was killed or stopped is started again, what was frozen is woken.
    fn recover(&mut self, fault: Fault, name: &'static str) -> Result<()> {
        match fault {
            Fault::Kill | Fault::Stop => {
                let gone = |demo_run: &Self| {
                    demo_run
                        .shown_instances
                        .iter()
                        .any(|shown_instance| shown_instance.name == name && shown_instance.role == Role::Gone)
                };
                self.wait(ANSWER, gone)?;
                self.start(name)
            }
            Fault::Pause | Fault::PauseInside => self.thaw(name),
            Fault::HandOver | Fault::Fail => Ok(()),
        }
    }

    /// Wakes a process and lets it try the write that it has in hand.
    fn thaw(&mut self, name: &'static str) -> Result<()> {
        let pid = self.shown_instance(name).pid;
        if self.children.wake(name).is_err() {
            let cause = "was stopped inside a transaction and evicted".to_owned();
            self.emit(DemoEvent::Ended { instance: name.to_owned(), pid, cause });
            return self.start(name);
        }
        self.shown_instance(name).role = Role::Starting;
        self.doing = format!("SIGCONT: {name} (pid {pid}) wakes up, and what it still tries to write is refused");
        self.emit(DemoEvent::Woken { instance: name.to_owned(), pid });
        // Should it have ended meanwhile, it is replaced before the next fault.
        let _ = self.children.order(name, Order::Go);
        let refused = self.refused;
        self.wait(ANSWER, |demo_run| demo_run.refused > refused).map(drop)
    }

    /// Wakes whoever is still frozen, so that it can stop in order.
    pub(super) fn wake_all(&mut self) {
        let frozen: Vec<_> =
            self.shown_instances.iter().filter(|shown_instance| shown_instance.role == Role::Frozen).collect();
        for name in frozen.iter().map(|shown_instance| shown_instance.name) {
            // Who cannot be woken has ended.
            let _ = self.children.wake(name).and_then(|()| self.children.order(name, Order::Go));
        }
    }
}

/// Whether somebody could write to a file of SQLite.
fn is_free(file: &Path) -> bool {
    let patience = Duration::from_millis(50);
    let tried = Connection::open(file).and_then(|connection| {
        connection.busy_timeout(patience)?;
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")
    });
    tried.is_ok()
}
