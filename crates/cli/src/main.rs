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
    let asked = args::read();
    let (json, is_run) = (asked.common().json, asked.is_run());
    commands::run(asked).unwrap_or_else(|error| {
        // Once something runs, standard output may be a sink's, and nothing else may stand there.
        if json && (!is_run || error.kind() == watchkeeper::ErrorKind::Config) {
            exit::tell_program(&error);
        }
        exit::failed(&error)
    })
}
