//! Real processes on real stores under faults. `cargo xtask chaos` and `cargo xtask bench failover` call it.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `harness` | one file per backend: how it is set up, written to and read back; `servers` has the servers below it, `lines` a fenced target for all |
//! | `fault`, `faults`, `cut` | the faults of a group; setup, load, plan and arrivals of every run; ends the connections of a running process through the kernel |
//! | `fault_hooks` | lets the parent act inside a child: hold a write, fail, leave renewals unanswered |
//! | `cluster`, `instance`, `launch_plan` | injects faults into three processes; one child; which program the children are (this one, a handler on the library, or the shipped program) |
//! | `campaign`, `report`, `bars`, `log` | judges a run; its output; bars for measurements; logs of the instances |
//! | `program` | injects faults into the shipped program and judges its files and copies |
//! | `histories` | has the shipped program copy the random histories of the testkit, then compares source and target |
//! | `failover`, `elections`, `latency`, `speed` | measure takeovers, elections, store calls, and reading |
//! | `background_streams`, `load`, `args` | many streams in parallel with the measured one; the writer; the command line |
//!
//! In `speed`, consumers take turns (`turns`), each in its own process, and `verdict` compares figures with bars.
//! `mongodb` compares with the bare driver, `postgres` compares both sources with `pg_recvlogical` and bare loops and
//! measures what triggers cost the writers; `peers` adds other programs.

mod args;
mod background_streams;
mod bars;
mod campaign;
mod cluster;
mod cut;
mod elections;
mod failover;
mod fault;
mod fault_hooks;
mod faults;
mod harness;
mod histories;
mod instance;
mod latency;
mod launch_plan;
mod load;
mod log;
mod program;
mod report;
mod speed;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use args::{Chaos, Task};
use campaign::Campaign;
use harness::{Kind, Servers};

/// The lease of every run: the shortest that people are shown.
const LEASE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let task = match args::parse(&words) {
        Ok(task) => task,
        Err(cause) => {
            eprint!("error: {cause}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match perform(task, &runtime) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("error: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for; whether all was as it must be.
fn perform(task: Task, runtime: &Runtime) -> Result<bool, String> {
    match task {
        Task::Help => {
            print!("{}", args::USAGE);
            Ok(true)
        }
        Task::Instance(orders) => {
            runtime.block_on(instance::run(orders)).map(|()| true).map_err(|error| error.to_string())
        }
        Task::Handler(orders) => {
            runtime.block_on(program::handler(orders)).map(|()| true).map_err(|error| error.to_string())
        }
        Task::Launch { program, arguments } => program::launch(&program, &arguments).map(|()| true),
        Task::Histories(wanted) => histories::run(&wanted, runtime.handle()),
        Task::Program(plan) => program::run(&plan, runtime),
        Task::Chaos(chaos) => {
            let test_servers = Arc::new(Servers::of(chaos.harness));
            // All of them, also after one that failed.
            let good: Vec<bool> =
                campaigns(&chaos).iter().map(|campaign| run(campaign, &test_servers, runtime)).collect();
            Ok(good.iter().all(|good| *good))
        }
        Task::Consume { bench_task, name } => {
            runtime.block_on(speed::consume(bench_task, name)).map(|()| true).map_err(|error| error.to_string())
        }
        Task::Speed(plan) => speed::run(plan, runtime.handle()),
        Task::Latency { harness, samples } => latency::compare(harness, samples, runtime.handle()),
        Task::Elections { rounds, log } => elections::run(rounds, log, runtime.handle()),
        Task::Failover { harness, rounds, lease, log } => {
            failover::run(harness, (rounds, lease), log, runtime.handle())
        }
    }
}

/// For each sink the faults, and, without being asked to leave self-fencing out everywhere, a few pauses without it.
fn campaigns(chaos: &Chaos) -> Vec<Campaign> {
    let Chaos { faults, sink, seed, self_fencing, .. } = *chaos;
    let kinds = sink.map_or_else(|| vec![Kind::Transactional, Kind::Fenced], |kind| vec![kind]);
    // PostgreSQL has two sources.
    let harnesses = if chaos.harness == "postgres" { vec!["postgres", "replication"] } else { vec![chaos.harness] };
    let one = |harness, kind, faults, self_fencing| {
        let log = chaos.log.clone();
        Campaign { harness, kind, faults, seed, self_fencing, lease: LEASE, log }
    };
    let mut list = Vec::new();
    for (harness, kind) in harnesses.iter().flat_map(|harness| kinds.iter().map(move |kind| (*harness, *kind))) {
        list.push(one(harness, kind, faults, self_fencing));
        if self_fencing {
            list.push(one(harness, kind, (faults / 6).max(1), false));
        }
    }
    list
}

fn run(campaign: &Campaign, test_servers: &Arc<Servers>, runtime: &Runtime) -> bool {
    println!("{}", report::heading(campaign));
    match campaign.run(test_servers, runtime.handle()) {
        Ok(record) => {
            println!("{}", report::table(&record));
            record.wrong.is_empty()
        }
        Err(trouble) => {
            println!("FAILED: {trouble}; seed {} repeats the plan\n", campaign.seed);
            false
        }
    }
}
