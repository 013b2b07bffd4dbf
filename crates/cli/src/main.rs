//! The program `watchkeeper`.

mod args;
mod commands;
mod demo;
mod exit;
mod site;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match commands::run(args) {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
