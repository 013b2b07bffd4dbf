//! Three instances as processes, and the faults that befall the one on watch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_core::{BootClock, Cx, Epoch, ErrorKind};
use watchkeeper_drill::{Arrival, Children, Event, Fault, Order, ProcessReport, ProcessReportKind};
use watchkeeper_engine::group::control::Controls;

use crate::cut;
use crate::fault::InjectedFault;
use crate::harness::{Harness, Servers, Target};
use crate::instance::{GROUP, STREAM};
use crate::launch_plan::LaunchPlan;
use crate::log;

/// The names of the instances.
pub(crate) const NAMES: [&str; 3] = ["ann", "ben", "cat"];

/// How long anything may take that should happen soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stopped process that nobody has relieved for so long blocks its successor, and is woken as a person would do.
const BLOCKED: Duration = Duration::from_secs(6);

/// Between two looks at the target.
const LOOK: Duration = Duration::from_micros(500);

/// What went wrong, in a sentence.
pub(crate) type Trouble = String;

/// The processes of a group.
pub(crate) struct Cluster {
    launch_plan: LaunchPlan,
    children: Children,
    controls: Controls,
    test_servers: Arc<Servers>,
    runtime: Handle,
    /// Stale writes that were refused, as the children told.
    pub(crate) refused: u64,
    /// Processes that were killed by their successor, since they were stopped inside a transaction.
    pub(crate) evicted: u64,
    /// Processes that were woken before they were relieved: they had stopped inside a transaction on the application's own
    /// file, where nobody evicts them.
    pub(crate) blocked: u64,
}

/// A fault that has been struck, before anything followed from it.
#[derive(Debug, Clone)]
pub(crate) struct ActiveFault {
    pub(crate) injected_fault: InjectedFault,
    /// Who had the watch.
    pub(crate) victim: String,
    /// Under which epoch.
    pub(crate) epoch: u64,
    /// When it had happened: of elections, when there was a new primary.
    pub(crate) at: Instant,
    /// The server that does not run.
    node: Option<usize>,
}

/// The first change that arrived after a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstArrival {
    /// How long that took.
    pub(crate) took: Duration,
    /// Under which epoch.
    pub(crate) epoch: u64,
}

/// A context without a deadline.
pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

fn io(what: &str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| format!("{what}: {error}")
}

impl Cluster {
    /// Starts all of them and waits until one is on watch and the others stand by.
    pub(crate) fn launch(
        launch_plan: LaunchPlan,
        test_servers: &Arc<Servers>,
        harness: &dyn Harness,
        runtime: &Handle,
    ) -> Result<Self, Trouble> {
        if let Some(folder) = &launch_plan.log {
            log::to(folder, "fleet").map_err(io("a log"))?;
        }
        let stores = runtime.block_on(harness.stores(&cx())).map_err(|error| error.to_string())?;
        let children = launch_plan.children().map_err(io("processes"))?;
        let controls = Controls::new(stores.records, GROUP);
        let (test_servers, runtime) = (Arc::clone(test_servers), runtime.clone());
        let mut cluster =
            Self { launch_plan, children, controls, test_servers, runtime, refused: 0, evicted: 0, blocked: 0 };
        for name in NAMES {
            cluster.start(name)?;
        }
        cluster.steady()?;
        Ok(cluster)
    }

    fn start(&mut self, name: &str) -> Result<(), Trouble> {
        let command = self.launch_plan.command(name).map_err(io("this program"))?;
        self.children.start(name, command).map_err(io("an instance"))
    }

    /// How long something is waited for: at least so long that a lease can expire several times.
    fn patience(&self) -> Duration {
        PATIENCE.max(self.launch_plan.lease * 4)
    }

    /// Waits until one is on watch and all others stand by, and gives them the time to see each other. Where servers are struck
    /// the watch may be lost again meanwhile: then it is waited for once more.
    pub(crate) fn steady(&mut self) -> Result<(String, u64), Trouble> {
        let since = Instant::now();
        while let Some(left) = self.patience().checked_sub(since.elapsed()) {
            self.until("one on watch and two standing by", left, |cluster| {
                cluster.children.standing_by() + 1 == NAMES.len() && cluster.children.on_watch().is_some()
            })?;
            self.listen(Duration::from_millis(50))?;
            if let Some((name, epoch)) = self.children.on_watch() {
                return Ok((name.to_owned(), epoch));
            }
        }
        Err("nobody stays on watch".to_owned())
    }

    /// Hears what there is to hear for this long.
    pub(crate) fn listen(&mut self, duration: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + duration;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.next_report(left)?;
        }
        Ok(())
    }

    fn next_report(&mut self, within: Duration) -> Result<Option<ProcessReport>, Trouble> {
        let Some(report) = self.children.next(within) else { return Ok(None) };
        tracing::debug!(child = report.child, pid = report.pid, what = ?report.what, "heard");
        match &report.what {
            ProcessReportKind::Event(Event::Refused { changes, .. }) => self.refused += changes.max(&1),
            ProcessReportKind::Event(Event::Failed { cause }) => {
                return Err(format!("{} failed: {cause}", report.child));
            }
            ProcessReportKind::Event(Event::State { state, error, .. }) if state == "stopped" && error.is_some() => {
                return Err(format!("{} has stopped: {}", report.child, error.clone().unwrap_or_default()));
            }
            _ => {}
        }
        Ok(Some(report))
    }

    fn until(&mut self, what: &str, within: Duration, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), Trouble> {
        let since = Instant::now();
        while !done(self) {
            let left = within.checked_sub(since.elapsed()).ok_or_else(|| format!("waited in vain for {what}"))?;
            self.next_report(left.min(Duration::from_millis(20)))?;
        }
        Ok(())
    }

    /// Strikes the one on watch, or its servers.
    pub(crate) fn inject_fault(&mut self, injected_fault: InjectedFault) -> Result<ActiveFault, Trouble> {
        let (mut victim, mut epoch) = self.steady()?;
        if let Some(inside) = injected_fault.holds().filter(|_| self.launch_plan.takes_orders()) {
            while !self.hold(&victim, epoch, inside)? {
                (victim, epoch) = self.steady()?;
            }
        }
        let mut node = None;
        match injected_fault {
            InjectedFault::Process(fault) => self.inject(&victim, epoch, fault)?,
            InjectedFault::KillInside => self.children.kill(&victim).map_err(io("kill"))?,
            InjectedFault::Cut => self.cut(&victim)?,
            InjectedFault::PrimaryKilled => node = self.test_servers.kill_primary(),
            InjectedFault::StepDown => self.test_servers.step_down(),
            InjectedFault::SessionsEnded => self.end_sessions(&victim)?,
            InjectedFault::ServerRestarted => self.test_servers.restart(0),
        }
        let at = Instant::now();
        tracing::info!(%injected_fault, victim, epoch, "struck");
        Ok(ActiveFault { injected_fault, victim, epoch, at, node })
    }

    fn inject(&mut self, name: &str, epoch: u64, fault: Fault) -> Result<(), Trouble> {
        match fault {
            Fault::Kill => self.children.kill(name).map_err(io("kill")),
            Fault::Stop => self.children.terminate(name).map_err(io("terminate")),
            Fault::Fail => self.children.order(name, Order::Fail).map_err(io("an order to fail")),
            Fault::HandOver => match self.launch_plan.hand_over() {
                Some(command) => self.hand_over(command, epoch),
                None => self.ask_to_leave(epoch),
            },
            Fault::Pause | Fault::PauseInside => self.children.pause(name).map_err(io("pause")),
        }
    }

    /// Runs the operator's command. It may find that the watch has moved already, or servers that do not answer yet.
    fn hand_over(&mut self, mut command: std::process::Command, epoch: u64) -> Result<(), Trouble> {
        let since = Instant::now();
        loop {
            let output = command.output().map_err(io("the command for a hand-over"))?;
            self.listen(Duration::from_millis(20))?;
            if output.status.success() || !self.is_on_watch(epoch) {
                return Ok(());
            }
            if since.elapsed() > self.patience() {
                return Err(format!("no hand-over: {}", String::from_utf8_lossy(&output.stderr).trim()));
            }
        }
    }

    fn cut(&self, name: &str) -> Result<(), Trouble> {
        let pid = self.children.pid(name).ok_or_else(|| format!("{name} is not there"))?;
        match cut::connections(pid, &self.test_servers.ports()).map_err(io("connections"))? {
            0 => Err(format!("{name} had no connections that could be cut")),
            _ => Ok(()),
        }
    }

    fn end_sessions(&self, name: &str) -> Result<(), Trouble> {
        let pid = self.children.pid(name).ok_or_else(|| format!("{name} is not there"))?;
        let ports = cut::own_ports(pid, &self.test_servers.ports()).map_err(io("connections"))?;
        match self.runtime.block_on(self.test_servers.end_sessions(&ports)).map_err(|error| error.to_string())? {
            0 => Err(format!("{name} had no sessions that could be ended")),
            _ => Ok(()),
        }
    }

    fn ask_to_leave(&self, epoch: u64) -> Result<(), Trouble> {
        let since = Instant::now();
        loop {
            let cx = cx().within(self.patience());
            let asked = self.controls.update(&cx, STREAM, |control| control.hand_over = Some(Epoch(epoch)));
            match self.runtime.block_on(asked) {
                // The same wish again is the same wish.
                Err(error) if may_be_tried_again(error.kind()) && since.elapsed() < self.patience() => {}
                answer => return answer.map(drop).map_err(|error| error.to_string()),
            }
        }
    }

    /// Has the one on watch take a write in hand. Not if it loses the watch before there is one.
    fn hold(&mut self, name: &str, epoch: u64, inside: bool) -> Result<bool, Trouble> {
        self.children.order(name, Order::Hold { inside }).map_err(io("an order to hold"))?;
        let since = Instant::now();
        loop {
            let left =
                self.patience().checked_sub(since.elapsed()).ok_or_else(|| format!("{name} had nothing to hold"))?;
            let report = self.next_report(left.min(Duration::from_millis(20)))?;
            let holds = |report: ProcessReport| {
                report.child == name && matches!(report.what, ProcessReportKind::Event(Event::Holding { .. }))
            };
            if report.is_some_and(holds) {
                return Ok(true);
            }
            if !self.is_on_watch(epoch) {
                self.children.order(name, Order::Go).map_err(io("an order to go"))?;
                return Ok(false);
            }
        }
    }

    /// What has arrived since the last look; `None` while the servers cannot be asked.
    pub(crate) fn take_arrivals(&self, target: &mut dyn Target) -> Result<Option<Vec<Arrival>>, Trouble> {
        match self.runtime.block_on(target.take_arrivals()) {
            Err(error) if may_be_tried_again(error.kind()) => Ok(None),
            answer => answer.map(Some).map_err(|error| error.to_string()),
        }
    }

    /// Waits until a change that is `wanted` has arrived under a newer epoch, or under the same one where that may
    /// go on.
    pub(crate) fn taken_over(
        &mut self,
        active: &ActiveFault,
        target: &mut dyn Target,
        wanted: impl Fn(&Arrival) -> bool,
    ) -> Result<FirstArrival, Trouble> {
        let mut woken = false;
        if active.injected_fault.may_be_outlived() {
            target.release_held();
        }
        let first = active.epoch + u64::from(!active.injected_fault.may_be_outlived());
        loop {
            let news = self.take_arrivals(target)?.unwrap_or_default();
            let took = active.at.elapsed();
            // Where a target shows no epochs, whatever was written after the strike shows that deliveries go on.
            let is_new = |epoch: u64| epoch >= first || !self.launch_plan.shows_epochs();
            let arrived = news.iter().find(|arrival| is_new(arrival.epoch) && wanted(arrival));
            if let Some(Arrival { epoch, .. }) = arrived {
                tracing::info!(injected_fault = %active.injected_fault, ?took, "delivered again");
                return Ok(FirstArrival { took, epoch: *epoch });
            }
            if active.injected_fault.is_pause() && took > BLOCKED.max(self.launch_plan.lease * 2) && !woken {
                woken = true;
                self.blocked += 1;
                // It may have been evicted just now; then there is nothing to wake.
                let _ = self.release_held(&active.victim);
            }
            if took > self.patience() {
                return Err(format!("waited in vain for changes after {} of {}", active.injected_fault, active.victim));
            }
            self.next_report(LOOK)?;
        }
    }

    /// Brings the victim back: woken, or started again.
    pub(crate) fn recover(&mut self, active: &ActiveFault) -> Result<(), Trouble> {
        let name = active.victim.as_str();
        match active.injected_fault {
            InjectedFault::Cut
            | InjectedFault::StepDown
            | InjectedFault::SessionsEnded
            | InjectedFault::ServerRestarted
            | InjectedFault::Process(Fault::HandOver | Fault::Fail) => return Ok(()),
            InjectedFault::PrimaryKilled => {
                active.node.iter().for_each(|node| self.test_servers.restart(*node));
                return Ok(());
            }
            InjectedFault::KillInside | InjectedFault::Process(Fault::Kill | Fault::Stop) => {
                self.children.reap(name, self.patience()).map_err(io("reap"))?;
            }
            InjectedFault::Process(Fault::Pause | Fault::PauseInside) => {
                if !self.children.has_ended(name) {
                    self.release_held(name)?;
                    let what = format!("{name} to see that it was relieved");
                    let epoch = active.epoch;
                    return self.until(&what, self.patience(), |cluster| !cluster.is_on_watch(epoch));
                }
                self.evicted += 1;
            }
        }
        self.start(name)
    }

    fn release_held(&mut self, name: &str) -> Result<(), Trouble> {
        if self.launch_plan.takes_orders() {
            self.children.order(name, Order::Go).map_err(io("an order to go"))?;
        }
        self.children.wake(name).map_err(io("wake"))
    }

    fn is_on_watch(&self, epoch: u64) -> bool {
        self.children.epochs().any(|running| running == epoch)
    }

    /// Ends all in order.
    pub(crate) fn stop_all(&mut self) -> Result<(), Trouble> {
        for name in NAMES {
            self.children.terminate(name).map_err(io("terminate"))?;
        }
        for name in NAMES {
            let status = self.children.reap(name, self.patience()).map_err(io("reap"))?;
            if !status.success() {
                return Err(format!("{name} did not end in order: {status}"));
            }
        }
        // What they said last.
        while self.next_report(Duration::from_millis(20))?.is_some() {}
        Ok(())
    }
}

fn may_be_tried_again(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown)
}
