//! `init`: a commented file to start from.

mod systems;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use watchkeeper::core::Report;
use watchkeeper::{Error, Result};

use crate::answer;
use crate::args::{Common, DEFAULT_CONFIG};

pub(crate) use systems::{Sink, Source};

/// The file as it is written.
const TEMPLATE: &str = include_str!("init.toml");

/// The file for these systems.
fn text(source: Source, sink: Sink) -> String {
    let parts = [("{store}", source.store()), ("{source}", source.setting()), ("{sink}", sink.table())];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (mark, part)| text.replace(mark, part))
}

pub(crate) fn run(common: &Common, source: Source, sink: Sink) -> Result<ExitCode> {
    let text = text(source, sink);
    let name = common.config.display().to_string();
    let opened = OpenOptions::new().write(true).create_new(true).open(&common.config);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::config("there is such a file already, and it was left as it is")
            .remedy("name another with --config, or move it away")
            .at(&name),
        ErrorKind::NotFound => Error::config("the file cannot be written: its folder is missing")
            .remedy("make the folder, or name another file with --config")
            .at(&name),
        _ => Error::config(format!("the file cannot be written: {error}"))
            .remedy("make its folder writable, or name another with --config")
            .at(&name),
    })?;
    let lines = [format!("{name} is written. What comes next:")].into_iter();
    let step = |command: &str, what: &str| {
        // The file that is read without being named.
        let named = if common.config == Path::new(DEFAULT_CONFIG) { String::new() } else { format!(" -c {name}") };
        format!("  {:<55} # {what}", format!("watchkeeper {command}{named}"))
    };
    let lines = lines.chain(source.first_step().map(str::to_owned)).chain([
        step("check", "look whether all of it can work"),
        step("run", "twice or more: one delivers, the others stand by"),
    ]);
    let lines = lines.collect();
    answer::print_report(&Report { lines, data: json!({ "written": name }) }, common.json)?;
    Ok(ExitCode::SUCCESS)
}
