//! Standard output as a target.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::format::Format;
use watchkeeper_core::{Cx, Finding, Grade, OpenedSink, Result, Sink, SinkContext, SinkProfile};

use crate::client::{Client, Pace, Target};
use crate::error::failed;
use crate::lines::{GATHERED_MAX, LineWriter, gather};

/// Lines on standard output. Plain: repeated and stale changes are shown like any other.
#[derive(Debug, Clone)]
pub struct StdoutSink {
    format: Arc<dyn Format>,
    output: Output,
}

impl StdoutSink {
    /// Lines in `format` on standard output.
    pub fn new(format: Arc<dyn Format>) -> Self {
        Self::into_writer(format, std::io::stdout())
    }

    /// The same lines into something else, a pipe to a child say.
    pub fn into_writer(format: Arc<dyn Format>, writer: impl Write + Send + 'static) -> Self {
        let shared = Shared { writer: Box::new(writer), torn: false };
        Self { format, output: Output(Arc::new(Mutex::new(shared))) }
    }
}

#[async_trait]
impl Sink for StdoutSink {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Plain, Duration::ZERO)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, _context: &SinkContext) -> Result<OpenedSink> {
        let (output, format) = (self.output.clone(), Arc::clone(&self.format));
        let client = Client::start(cx, move || Ok(PendingLines { output, lines: Vec::new() })).await?;
        Ok(OpenedSink::Plain(Arc::new(LineWriter { format, client })))
    }
}

/// What all openings write to, one at a time.
#[derive(Clone)]
struct Output(Arc<Mutex<Shared>>);

struct Shared {
    writer: Box<dyn Write + Send>,
    /// Whether the last write broke off, so that a line may be incomplete.
    torn: bool,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

impl Output {
    fn write(&self, lines: &[u8]) -> Result<()> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What was cut off gets a line end of its own: two lines are never merged.
        let healed = if shared.torn { shared.writer.write_all(b"\n") } else { Ok(()) };
        let written = healed.and_then(|()| shared.writer.write_all(lines)).and_then(|()| shared.writer.flush());
        shared.torn = written.is_err();
        written.map_err(|error| failed("write to", Path::new("standard output"), error))
    }
}

struct PendingLines {
    output: Output,
    lines: Vec<u8>,
}

impl Target for PendingLines {
    fn append(&mut self, lines: Vec<u8>, pace: Pace) -> Result<()> {
        if let Some(lines) = gather(&mut self.lines, lines) {
            self.flush(pace)?;
            self.lines = lines;
        }
        if self.lines.len() >= GATHERED_MAX { self.flush(pace) } else { Ok(()) }
    }

    fn flush(&mut self, _pace: Pace) -> Result<()> {
        self.output.write(&std::mem::take(&mut self.lines))
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
