//! Others' programs that read from MongoDB.

use std::process::Command;

use watchkeeper_testkit::servers::{NODE_DRIVER, PYMONGO, program};

use super::history::{EVENTS, timestamp};
use crate::cluster::Trouble;
use crate::speed::consumer::Consumer;
use crate::speed::peers::{self, LIBRARIES};
use crate::speed::task::BenchTask;

const BENCHMARK: &str = "mongodb";

const NODE: &str = include_str!("../../../peers/node.js");
const PYTHON: &str = include_str!("../../../peers/python.py");

const NODE_MODULES: (&str, &str) = (NODE_DRIVER, "node_modules");
const PYTHON_PACKAGES: (&str, &str) = (PYMONGO, "packages");

/// Looks whether all of them are installed.
pub(super) fn require_installed() {
    peers::require_installed(&[NODE_MODULES, PYTHON_PACKAGES, LIBRARIES], BENCHMARK);
}

fn installed((folder, name): (&str, &str)) -> std::path::PathBuf {
    program(folder, name, &peers::installer(BENCHMARK))
}

/// The command that runs a peer, whose script is written into the task's folder.
pub(super) fn command(bench_task: &BenchTask) -> Result<Command, Trouble> {
    let mut command = match bench_task.by {
        Consumer::Node => {
            peers::interpreted("node", ("node.js", NODE), ("NODE_PATH", installed(NODE_MODULES)), bench_task)?
        }
        Consumer::Python => {
            let packages = ("PYTHONPATH", installed(PYTHON_PACKAGES));
            peers::interpreted("python3", ("python.py", PYTHON), packages, bench_task)?
        }
        _ => return debezium(bench_task),
    };
    let begin = timestamp(bench_task.mark);
    command.args([&bench_task.url, EVENTS, &begin.time.to_string(), &begin.increment.to_string()]);
    command.arg(bench_task.changes.to_string());
    Ok(command)
}

fn debezium(bench_task: &BenchTask) -> Result<Command, Trouble> {
    let settings = [
        ("connector.class", "io.debezium.connector.mongodb.MongoDbConnector"),
        ("mongodb.connection.string", &bench_task.url),
        ("capture.mode", "change_streams"),
        ("collection.include.list", &format!("{}.{EVENTS}", bench_task.database())),
        ("snapshot.mode", "no_data"),
        ("capture.start.op.time", &bench_task.mark.to_string()),
    ];
    peers::debezium(bench_task, BENCHMARK, &settings)
}
