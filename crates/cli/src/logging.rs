//! What the program logs, on standard error, without secrets.

use std::io::{self, Write};
use std::sync::OnceLock;

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
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
    let (lines, plain) = (fmt::layer().with_writer(Masked).with_ansi(false), Format::default().with_target(false));
    let begun = match common.log_format.unwrap_or(format) {
        LogFormat::Text => {
            registry().with(lines.event_format(Named { lines: plain, is_json: false }).with_filter(levels)).try_init()
        }
        LogFormat::Json => {
            let objects = Named { lines: plain.json().flatten_event(true), is_json: true };
            registry().with(lines.json().event_format(objects).with_filter(levels)).try_init()
        }
    };
    begun.map_err(|error| Error::internal("logging was begun twice").caused_by(error))
}

/// The name of the instance that this process runs, if it runs one.
static INSTANCE: OnceLock<String> = OnceLock::new();

/// Names the instance in every line from now on: the logs of several are often read together.
pub(crate) fn name_instance(name: &str) {
    // A process runs one instance.
    let _ = INSTANCE.set(name.to_owned());
}

/// Log lines with the name of the instance as their last field. Not a span, which other threads and tasks would not be in.
struct Named<F> {
    lines: F,
    is_json: bool,
}

impl<S, N, F> FormatEvent<S, N> for Named<F>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut line = String::new();
        self.lines.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end();
        match (INSTANCE.get(), self.is_json) {
            (None, _) => writeln!(writer, "{line}"),
            (Some(name), false) => writeln!(writer, "{line} instance={name:?}"),
            (Some(name), true) => {
                let fields = line.strip_suffix('}').unwrap_or(line);
                writeln!(writer, "{fields},\"instance\":{}}}", serde_json::Value::from(name.as_str()))
            }
        }
    }
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
