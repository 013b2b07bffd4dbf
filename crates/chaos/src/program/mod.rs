//! Faults that strike the shipped program, with file sinks and copies, and a program with a handler on the library.

mod campaign;
mod config;
mod handler;
mod launch;
mod log;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::harness::Servers;
use crate::report;
use campaign::{Campaign, Subject};

pub(crate) use campaign::Record;
pub(crate) use handler::{Orders, run as handler};
pub(crate) use launch::launch;
pub(crate) use log::{HALTED, LOG, read_log_line};

/// What to strike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The systems.
    pub(crate) systems: Vec<&'static str>,
    /// How many faults strike each group of instances.
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    pub(crate) log: Option<PathBuf>,
    /// The shipped program.
    pub(crate) program: PathBuf,
}

/// The systems that there are.
pub(crate) const SYSTEMS: [&str; 3] = ["sqlite", "mongodb", "postgres"];

impl Plan {
    /// The campaigns on one system. Each has another order of faults, so that short ones together strike with more kinds.
    fn campaigns(&self, system: &str) -> Vec<Campaign> {
        use Subject::{Copies, Files, Handler};
        let parts: &[(&'static str, Subject)] = match system {
            "sqlite" => &[("sqlite", Files), ("sqlite", Copies), ("sqlite", Handler)],
            "mongodb" => &[("mongodb", Copies), ("mongodb", Handler)],
            _ => &[("postgres", Copies), ("postgres", Handler), ("replication", Copies), ("replication", Handler)],
        };
        let campaign = |(at, (harness, subject)): (usize, &(&'static str, Subject))| Campaign {
            harness,
            subject: *subject,
            faults: self.faults,
            seed: self.seed + at as u64,
            log: self.log.clone(),
            program: self.program.clone(),
        };
        parts.iter().enumerate().map(campaign).collect()
    }
}

/// Runs all campaigns, also after one that failed; whether all were as they must be.
pub(crate) fn run(plan: &Plan, runtime: &Runtime) -> Result<bool, String> {
    if !plan.program.is_file() {
        let path = plan.program.display();
        return Err(format!("there is no program {path}; build it with `cargo build --release -p watchkeeper-cli`"));
    }
    let mut good = true;
    for system in &plan.systems {
        let test_servers = Arc::new(Servers::of(system));
        for campaign in plan.campaigns(system) {
            println!("{}", campaign.heading());
            good &= match campaign.run(&test_servers, runtime.handle()) {
                Ok(record) => {
                    println!("{}", report::program_table(&record));
                    record.wrong.is_empty()
                }
                Err(trouble) => {
                    println!("FAILED: {trouble}; seed {} repeats the plan\n", campaign.seed);
                    false
                }
            };
        }
    }
    Ok(good)
}
