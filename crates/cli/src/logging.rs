//! What the program logs, on standard error, without secrets.

use std::io::{self, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};
use watchkeeper::{Error, Result};

use crate::args::{Common, LogFormat};
use crate::config::secrets;

/// Variables that say what to log, the stronger first. `--log` is stronger than both.
const VARIABLES: [&str; 2] = ["WATCHKEEPER_LOG", "RUST_LOG"];

/// Begins to log, at `usual` and in `format` unless the command line or a variable says otherwise.
///
/// # Errors
/// `Config` for a level that is not known.
pub(crate) fn begin(common: &Common, usual: &str, format: LogFormat) -> Result<()> {
    let variable = |name: &'static str| Some((name, std::env::var(name).ok().filter(|value| !value.is_empty())?));
    let wanted = common.log.clone().map(|wanted| ("--log", wanted));
    let (origin, wanted) =
        wanted.or_else(|| VARIABLES.into_iter().find_map(variable)).unwrap_or(("--log", usual.to_owned()));
    let levels = levels(&wanted).map_err(|error| error.at(origin))?;
    let lines = fmt::layer().with_writer(|| Masked).with_target(false);
    let begun = match common.log_format.unwrap_or(format) {
        LogFormat::Text => registry().with(lines.with_ansi(false).with_filter(levels)).try_init(),
        LogFormat::Json => registry().with(lines.json().flatten_event(true).with_filter(levels)).try_init(),
    };
    begun.map_err(|error| Error::internal("logging was begun twice").caused_by(error))
}

/// The levels that a text names: one for all, or one for a part, or several of these with commas between them.
///
/// A word that is no level would be taken for a part of the program, and everything else would be silent.
fn levels(wanted: &str) -> Result<Targets> {
    let is_level = |word: &str| !word.is_empty() && word.trim().parse::<LevelFilter>().is_ok();
    let unknown = wanted.split(',').map(|part| part.rsplit_once('=').map_or(part, |(_, level)| level));
    let unknown = unknown.into_iter().find(|word| !is_level(word));
    let parsed = wanted.parse().ok().filter(|_| unknown.is_none());
    parsed.ok_or_else(|| {
        Error::config(format!("{:?} is no level to log at", unknown.unwrap_or(wanted)))
            .remedy("write error, warn, info, debug or trace, or for a part of it watchkeeper_engine=debug")
    })
}

/// Standard error, on which no secret is shown. A line comes in one piece.
#[derive(Debug, Clone, Copy)]
struct Masked;

impl Write for Masked {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(secrets::masked(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl<'w> MakeWriter<'w> for Masked {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        *self
    }
}
