//! Others' programs that read from PostgreSQL.

use std::process::Command;

use watchkeeper_postgres::tokio_postgres::Config;
use watchkeeper_testkit::servers::{PSYCOPG, program};

use super::history::{EVENTS, PUBLICATION};
use super::slot;
use crate::cluster::Trouble;
use crate::speed::consumer::Consumer;
use crate::speed::peers::{self, LIBRARIES};
use crate::speed::task::BenchTask;

const BENCHMARK: &str = "postgres";

const PYTHON: &str = include_str!("../../../peers/psycopg_poll.py");

const PACKAGES: (&str, &str) = (PSYCOPG, "packages");

/// Looks whether all of them are installed.
pub(super) fn require_installed() {
    peers::require_installed(&[PACKAGES, LIBRARIES], BENCHMARK);
}

/// The command that runs a peer, whose script is written into the task's folder.
pub(super) fn command(bench_task: &BenchTask) -> Result<Command, Trouble> {
    if bench_task.by != Consumer::Psycopg {
        return debezium(bench_task);
    }
    let (folder, name) = PACKAGES;
    let packages = ("PYTHONPATH", program(folder, name, &peers::installer(BENCHMARK)));
    let mut python = peers::interpreted("python3", ("poll.py", PYTHON), packages, bench_task)?;
    python.args([&bench_task.url, &bench_task.changes.to_string()]);
    Ok(python)
}

fn debezium(bench_task: &BenchTask) -> Result<Command, Trouble> {
    let config: Config = bench_task.url.parse().map_err(|error| format!("{}: {error}", bench_task.url))?;
    let port = config.get_ports().first().copied().unwrap_or_default();
    let settings = [
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("plugin.name", "pgoutput"),
        ("database.hostname", "127.0.0.1"),
        ("database.port", &port.to_string()),
        ("database.user", config.get_user().unwrap_or_default()),
        ("database.password", "not asked for"),
        ("database.dbname", bench_task.database()),
        ("slot.name", &slot(&bench_task.group)),
        ("publication.name", PUBLICATION),
        ("publication.autocreate.mode", "disabled"),
        ("table.include.list", &format!("public.{EVENTS}")),
        ("snapshot.mode", "no_data"),
    ];
    peers::debezium(bench_task, BENCHMARK, &settings)
}
