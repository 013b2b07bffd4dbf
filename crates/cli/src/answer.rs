//! What commands say: to people in lines, to programs as one JSON document.

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};

use serde::Serialize;
use watchkeeper::core::Report;
use watchkeeper::{Error, Result};

use crate::config::secrets;

/// A report of these lines and this document.
pub(crate) fn report(lines: Vec<String>, document: &impl Serialize) -> Result<Report> {
    let data = serde_json::to_value(document);
    let data = data.map_err(|error| Error::internal("the answer cannot be written as JSON").caused_by(error))?;
    Ok(Report { lines, data })
}

/// Prints a report, without secrets. A reader that has gone, as `head` does, is no error.
///
/// # Errors
/// `Unavailable` when the answer could not be written, as to a full disk.
pub(crate) fn print_report(report: &Report, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut line = |text: &str| writeln!(out, "{}", secrets::masked(text));
    let said = match json {
        true => line(&format!("{:#}", report.data)),
        false => report.lines.iter().try_for_each(|text| line(text)),
    };
    written(said.and_then(|()| out.flush()))
}

/// Whether an answer was written. A reader that has gone wants no more of it.
pub(crate) fn written(said: io::Result<()>) -> Result<()> {
    match said {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let cause = format!("the answer cannot be written to standard output: {error}");
            Err(Error::unavailable(cause).remedy("make room there, or write it somewhere else").caused_by(error))
        }
        _ => Ok(()),
    }
}

/// A person was asked and did not say yes: nothing failed, and nothing was done.
#[derive(Debug)]
pub(crate) struct Declined;

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer was not yes")
    }
}

impl std::error::Error for Declined {}

/// Tells a person what is about to happen and asks whether to go on.
///
/// # Errors
/// `Config` when there is nobody to ask, and with [`Declined`] as its cause when the answer is not yes. Nothing has been changed then.
pub(crate) fn confirm(plan: &[String], yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    plan.iter().for_each(|line| eprintln!("{}", secrets::masked(line)));
    if !io::stdin().is_terminal() {
        let cause = "this has to be confirmed, and there is no terminal to ask at";
        return Err(Error::config(cause).remedy("add --yes if this is what you want"));
    }
    eprint!("Go on? [y/N] ");
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Error::internal("the answer cannot be read").caused_by(error))?;
    match line.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Error::config("not confirmed: nothing was changed").caused_by(Declined)),
    }
}
