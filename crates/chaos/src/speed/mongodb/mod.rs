//! MongoDB, beside the bare driver: one server with a long oplog.

mod consumer;
mod history;
mod live;
mod peers;
mod verdict;

use std::process::Command;

use tokio::runtime::Handle;
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use super::consumer::Consumer;
use super::task::BenchTask;
use super::turns::{self, Site};
use super::{Measured, Plan};
use crate::cluster::Trouble;

pub(super) use consumer::consume;

/// A server, and where its history begins.
struct Oplog {
    set: ReplicaSet,
    begin: u64,
}

impl Site for Oplog {
    fn prepare(&self, _: Consumer, _: &str) -> Result<(String, u64), Trouble> {
        Ok((self.set.url("speed"), self.begin))
    }

    fn clear(&self, _: Consumer, _: &str) -> Result<(), Trouble> {
        Ok(())
    }

    fn pid(&self) -> Option<u32> {
        self.set.pid(0)
    }

    fn peer(&self, bench_task: &BenchTask) -> Result<Command, Trouble> {
        peers::command(bench_task)
    }
}

pub(super) fn run(plan: Plan, runtime: &Handle) -> Result<bool, Trouble> {
    if plan.peers {
        peers::require_installed();
    }
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let arguments = vec!["--oplogSize".to_owned(), "990".to_owned()];
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, election_timeout_ms: None });
    let begin = runtime.block_on(history::write(&set.url("speed"), plan.changes));
    let begin = begin.map_err(|error| error.to_string())?;
    println!("{} changes, a quarter of them updates, of documents of about 295 bytes", plan.changes);
    let site = Oplog { set, begin };
    let measured: Measured = turns::take(plan, &site, folder.path())?;
    let late = live::measure(&site, plan.live_rounds, folder.path(), runtime)?;
    Ok(verdict::report(&measured, &late))
}
