//! How the program ends.

use std::process::ExitCode;

use watchkeeper::{Error, ErrorKind};

use crate::config::secrets;

/// What failed, as one line of cause and remedy on standard error; 2 for what a person has to change in the
/// configuration, 1 for everything else.
pub(crate) fn failed(error: &Error) -> ExitCode {
    eprintln!("error: {}", secrets::masked(&error.to_string()));
    match error.kind() {
        ErrorKind::Config => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
