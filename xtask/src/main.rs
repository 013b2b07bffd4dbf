//! Developer commands of Watchkeeper, run as `cargo xtask <command>`.
//!
//! Everything here only starts other programs: it needs next to no dependency, so that it builds in a moment
//! in a clean clone.

mod args;
// One truth about where servers are kept, without a dependency.
#[path = "../../crates/testkit/src/servers/cache.rs"]
mod cache;
mod cargo;
mod macos;
mod peers;
mod programs;
mod rusqlite;
mod servers;
mod steps;
mod tools;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&words) {
        Ok(Command::Help) => {
            print!("{}", args::HELP);
            ExitCode::SUCCESS
        }
        Ok(Command::Test { quick }) => steps::test(quick),
        Ok(Command::Sim(passed_on)) => cargo::hand_over(&cargo::sim(&passed_on)),
        Ok(Command::Chaos(passed_on)) => cargo::hand_over(&cargo::chaos(&passed_on)),
        Ok(Command::ChaosProgram(passed_on)) => cargo::hand_over_in_turn(&cargo::chaos_program(&passed_on)),
        Ok(Command::Speed(passed_on)) => match prepare(&passed_on) {
            Ok(()) => cargo::hand_over(&cargo::chaos(&passed_on)),
            Err(cause) => fail(&cause),
        },
        Ok(Command::Servers(wanted)) => match servers::install(&wanted) {
            Ok(()) => ExitCode::SUCCESS,
            Err(cause) => fail(&cause),
        },
        Ok(Command::Rusqlite) => rusqlite::test_both_ends(),
        Ok(Command::BenchEngine) => cargo::hand_over(&cargo::bench("engine")),
        Err(cause) => {
            eprint!("error: {cause}\n\n{}", args::HELP);
            ExitCode::from(2)
        }
    }
}

/// Installs what the benchmark of a system starts.
fn prepare(passed_on: &[String]) -> Result<(), String> {
    let given = |wanted: &str| passed_on.iter().any(|word| word == wanted);
    let (server, peers) = match given(args::POSTGRES) {
        true => ("postgresql-15", peers::OF_POSTGRES),
        false => ("mongodb", peers::OF_MONGODB),
    };
    servers::install(&[server.to_owned()])?;
    if given(args::POSTGRES) {
        servers::recvlogical()?;
    }
    if given(peers::LEFT_OUT) { Ok(()) } else { peers::install(peers) }
}

fn fail(cause: &str) -> ExitCode {
    eprintln!("error: {cause}");
    ExitCode::FAILURE
}
