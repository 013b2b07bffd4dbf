//! The program `watchkeeper`.

mod answer;
mod args;
mod commands;
mod config;
mod console;
mod exit;
mod overview;
mod site;
mod when;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match commands::run(args) {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
