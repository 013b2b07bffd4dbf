//! The program `watchkeeper`.

mod args;
mod commands;
mod config;
mod demo;
mod exit;
mod logging;
mod signals;
mod site;
mod tools;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::read()) {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
