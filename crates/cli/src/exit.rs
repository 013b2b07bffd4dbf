//! How the program ends.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use watchkeeper::{Error, ErrorKind};

use crate::answer::Declined;
use crate::config::secrets;

/// What failed, as a document on standard output for the program that asked for one.
pub(crate) fn report_program(error: &Error) {
    match is_declined(error) {
        true => print_error(&json!({ "confirmed": false })),
        false => print_error(&json!({ "error": document(error) })),
    }
}

/// All that is wrong with a file of which nothing can be looked at: a line each on standard error, and a document for a program
/// that asked for one.
pub(crate) fn refused(errors: &[Error], json: bool) -> ExitCode {
    if json {
        let documents: Vec<_> = errors.iter().map(document).collect();
        print_error(&json!({ "error": documents.first(), "errors": documents }));
    }
    errors.iter().map(failed).fold(ExitCode::FAILURE, |_, code| code)
}

fn document(error: &Error) -> Value {
    let shown = |text: &str| secrets::masked(text).to_string();
    json!({
        "code": error.kind().code(),
        "message": shown(error.message()),
        "remedy": error.advice().map(shown),
        "place": error.place().map(shown),
    })
}

fn print_error(document: &Value) {
    // A reader that has gone is told by the code.
    let _ = writeln!(std::io::stdout(), "{document}");
}

/// Whether a person answered no, so that nothing is wrong.
fn is_declined(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<Declined>())
}

/// What failed, as one line of cause and remedy on standard error; 2 for what a person has to change in the
/// configuration, 1 for everything else.
pub(crate) fn failed(error: &Error) -> ExitCode {
    if is_declined(error) {
        eprintln!("{}", error.message());
        return ExitCode::FAILURE;
    }
    eprintln!("error: {}", secrets::masked(&error.to_string()));
    match error.kind() {
        ErrorKind::Config => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
