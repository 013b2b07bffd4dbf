use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use watchkeeper_drill::Fault;

/// The name of a fault in JSON.
pub(super) fn slug(fault: Fault) -> &'static str {
    match fault {
        Fault::Kill => "sigkill",
        Fault::Pause | Fault::PauseInside => "sigstop",
        Fault::Stop => "sigterm",
        Fault::HandOver => "hand_over",
        Fault::Fail => "handler_failure",
    }
}

fn as_slug<S: serde::Serializer>(fault: &Fault, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(slug(*fault))
}

/// One change of the watch.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Takeover {
    /// What had been done.
    #[serde(serialize_with = "as_slug")]
    pub(super) kind: Fault,
    /// To whom.
    pub(super) from: String,
    /// Who relieved it.
    pub(super) to: String,
    /// The epoch that began.
    pub(super) epoch: u64,
    /// From the moment the signal or the request had been sent to the first change in the sink under the new epoch.
    pub(super) millis: f64,
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, from, to, epoch, millis } = self;
        write!(f, "{to} relieved {from} after {millis:.0} ms ({kind}), epoch {epoch}")
    }
}

/// Something that people and programs are told, when it happens.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum DemoEvent {
    /// The run begins.
    Started { seconds: u64, lease_ms: u64, instances: Vec<String>, folder: Option<PathBuf> },
    /// A process was started.
    Up { instance: String, pid: u32 },
    /// An instance has the watch.
    OnWatch { instance: String, pid: u32, epoch: u64 },
    /// Something is done to the one on watch.
    Fault {
        #[serde(serialize_with = "as_slug")]
        kind: Fault,
        instance: String,
        pid: u32,
        epoch: u64,
    },
    /// Another one delivers.
    Takeover(Takeover),
    /// A process that was stopped goes on.
    Woken { instance: String, pid: u32 },
    /// A write that came too late was refused.
    Refused { instance: String, epoch: u64, changes: u64 },
    /// A process ended; on purpose or not.
    Ended { instance: String, pid: u32, cause: String },
    /// How far it is, once in a while.
    Progress { elapsed_ms: u64, written: u64, delivered: u64, per_second: usize, lag_ms: u64 },
    /// No more faults, no more changes: what was written has yet to arrive.
    CatchingUp { written: u64, delivered: u64 },
}

impl fmt::Display for DemoEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { seconds, instances, lease_ms, .. } => {
                let names = instances.join(", ");
                write!(
                    f,
                    "three processes ({names}) share one stream of orders for {seconds} s; a lease is {lease_ms} ms"
                )
            }
            Self::Up { instance, pid } => write!(f, "{instance} starts (pid {pid})"),
            Self::OnWatch { instance, epoch, .. } => write!(f, "{instance} has the watch, epoch {epoch}"),
            Self::Fault { kind, instance, pid, .. } => f.write_str(&doing(*kind, instance, *pid)),
            Self::Takeover(takeover) => write!(f, "  => {takeover}"),
            Self::Woken { instance, .. } => {
                write!(f, "SIGCONT: {instance} wakes up and still believes to have the watch")
            }
            Self::Refused { instance, epoch, changes } => {
                let changes = counted(*changes);
                write!(f, "  => {instance} tried to write {changes} under epoch {epoch}: refused, that is over")
            }
            Self::Ended { instance, pid, cause } => write!(f, "{instance} (pid {pid}) {cause}"),
            Self::Progress { written, delivered, per_second, lag_ms, .. } => {
                write!(f, "  .. {written} written, {delivered} delivered, {per_second}/s, {lag_ms} ms behind")
            }
            Self::CatchingUp { written, delivered } => {
                write!(f, "no more faults; {} still under way", counted(written.saturating_sub(*delivered)))
            }
        }
    }
}

fn counted(changes: u64) -> String {
    if changes == 1 { "1 change".to_owned() } else { format!("{changes} changes") }
}

/// What is being done to whom, in plain words.
pub(super) fn doing(kind: Fault, instance: &str, pid: u32) -> String {
    match kind {
        Fault::Kill => format!("SIGKILL: {instance} (pid {pid}) is killed without a word"),
        Fault::Pause | Fault::PauseInside => {
            format!("SIGSTOP: {instance} (pid {pid}) is frozen with a write in hand, until its lease is over")
        }
        Fault::Stop => format!("SIGTERM: {instance} (pid {pid}) is asked to stop, and is started again"),
        Fault::HandOver => format!("hand-over: {instance} is asked to let another one have the watch"),
        Fault::Fail => format!("handler failure: the handler of {instance} fails in the middle of a transaction"),
    }
}
