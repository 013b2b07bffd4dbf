//! Others' programs that read from MongoDB.

use std::process::Command;

use watchkeeper_testkit::servers::{NODE_DRIVER, PYMONGO, program};

use super::history::{EVENTS, timestamp};
use crate::fleet::Trouble;
use crate::speed::errand::Errand;
use crate::speed::peers::{self, LIBRARIES};
use crate::speed::who::By;

const BENCHMARK: &str = "mongodb";

const NODE: &str = include_str!("../../../peers/node.js");
const PYTHON: &str = include_str!("../../../peers/python.py");

const NODE_MODULES: (&str, &str) = (NODE_DRIVER, "node_modules");
const PYTHON_PACKAGES: (&str, &str) = (PYMONGO, "packages");

/// Looks whether all of them are installed.
pub(super) fn look() {
    peers::look(&[NODE_MODULES, PYTHON_PACKAGES, LIBRARIES], BENCHMARK);
}

fn installed((folder, name): (&str, &str)) -> std::path::PathBuf {
    program(folder, name, &peers::installer(BENCHMARK))
}

/// The command that runs a peer, whose script is written into the errand's folder.
pub(super) fn command(errand: &Errand) -> Result<Command, Trouble> {
    let mut command = match errand.by {
        By::Node => peers::interpreted("node", ("node.js", NODE), ("NODE_PATH", installed(NODE_MODULES)), errand)?,
        By::Python => {
            let packages = ("PYTHONPATH", installed(PYTHON_PACKAGES));
            peers::interpreted("python3", ("python.py", PYTHON), packages, errand)?
        }
        _ => return debezium(errand),
    };
    let begin = timestamp(errand.mark);
    command.args([&errand.url, EVENTS, &begin.time.to_string(), &begin.increment.to_string()]);
    command.arg(errand.changes.to_string());
    Ok(command)
}

fn debezium(errand: &Errand) -> Result<Command, Trouble> {
    let settings = [
        ("connector.class", "io.debezium.connector.mongodb.MongoDbConnector"),
        ("mongodb.connection.string", &errand.url),
        ("capture.mode", "change_streams"),
        ("collection.include.list", &format!("{}.{EVENTS}", errand.database())),
        ("snapshot.mode", "no_data"),
        ("capture.start.op.time", &errand.mark.to_string()),
    ];
    peers::debezium(errand, BENCHMARK, &settings)
}
