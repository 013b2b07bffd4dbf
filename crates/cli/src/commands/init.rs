//! `init`: a commented file to start from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use serde_json::json;
use watchkeeper::core::Report;
use watchkeeper::{Error, Result};

use crate::answer;
use crate::args::Common;

/// The file as it is written.
const TEMPLATE: &str = include_str!("init.toml");

pub(crate) fn run(common: &Common) -> Result<ExitCode> {
    let name = common.config.display().to_string();
    let opened = OpenOptions::new().write(true).create_new(true).open(&common.config);
    let written = opened.and_then(|mut file| file.write_all(TEMPLATE.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::config("there is such a file already, and it was left as it is")
            .remedy("name another with --config, or move it away")
            .at(&name),
        _ => Error::config(format!("the file can not be written: {error}"))
            .remedy("make its folder writable, or name another with --config")
            .at(&name),
    })?;
    let lines = vec![
        format!("{name} is written. What comes next:"),
        "  watchkeeper sqlite install --db app.db --table orders   # log the changes of a table".to_owned(),
        "  watchkeeper check                                       # see whether all is well".to_owned(),
        "  watchkeeper run                                         # once, or several times for relief".to_owned(),
    ];
    answer::say(&Report { lines, data: json!({ "written": name }) }, common.json)?;
    Ok(ExitCode::SUCCESS)
}
