//! The program `watchkeeper`.

mod answer;
mod args;
mod commands;
mod config;
mod console;
mod demo;
mod exit;
mod logging;
mod overview;
mod signals;
mod site;
mod tools;
mod when;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::read()) {
        Ok(code) => code,
        Err(error) => exit::failed(&error),
    }
}
