//! What the program logs, on standard error, without secrets.

use std::io::{self, Write};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};
use watchkeeper::{Error, Result};

use crate::args::{Common, LogFormat};
use crate::config::secrets;

/// Begins to log, at `usual` and in `format` unless the command line says otherwise.
///
/// # Errors
/// `Config` for a level that is not known.
pub(crate) fn begin(common: &Common, usual: &str, format: LogFormat) -> Result<()> {
    let wanted = common.log.as_deref().unwrap_or(usual);
    let levels: Targets = wanted.parse().map_err(|_| {
        Error::config(format!("{wanted:?} is no level to log at"))
            .remedy("write error, warn, info, debug or trace, or for a part of it watchkeeper_engine=debug")
            .at("--log")
    })?;
    let lines = fmt::layer().with_writer(|| Masked).with_target(false);
    let begun = match common.log_format.unwrap_or(format) {
        LogFormat::Text => registry().with(lines.with_ansi(false).with_filter(levels)).try_init(),
        LogFormat::Json => registry().with(lines.json().flatten_event(true).with_filter(levels)).try_init(),
    };
    begun.map_err(|error| Error::internal("logging was begun twice").caused_by(error))
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
