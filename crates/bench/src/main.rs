//! Benchmarks of Watchkeeper.
//!
//! `watchkeeper-bench engine` measures what the engine itself costs: source, sink and stores are in
//! memory, so what is left is the engine. It prints a table and ends with 1 when a bar is missed, with
//! 2 when it could not measure.
//!
//! It is a crate of its own so that the counting allocator stays out of what is shipped.

mod args;
mod blocked;
mod generator;
mod group;
mod growth;
mod meter;
mod overhead;
mod report;
mod sinks;
mod standby;
mod tally;

use std::process::ExitCode;

use args::Options;
use report::Report;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = match args::parse(&words) {
        Ok(options) => options,
        Err(cause) => {
            eprintln!("error: {cause}\n\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    match engine(options) {
        Ok(report) if report.conclude() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: could not measure: {error}");
            ExitCode::from(2)
        }
    }
}

fn engine(options: Options) -> watchkeeper_core::Result<Report> {
    let mut report = Report::new(options);
    overhead::measure(options, &mut report)?;
    standby::measure(options, &mut report)?;
    blocked::measure(&mut report)?;
    growth::measure(options, &mut report)?;
    Ok(report)
}
