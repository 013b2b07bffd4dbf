//! Files of lines that name their epoch: a fenced target for every harness.

use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::format::Format;
use watchkeeper_core::{Change, Cx, Error, Finding, Grade, OpenedSink, Result, Sink, SinkContext, SinkProfile};
use watchkeeper_drill::Arrival;
use watchkeeper_file::{FileSink, Settings};

use super::Target;

/// Writes a change as a JSON object.
type Render = fn(&Change, &mut Vec<u8>) -> Result<()>;

/// Key and number of an order, from such an object.
type Parse = fn(&serde_json::Value) -> Option<(String, u64)>;

/// The sink. A format does not know the epoch, so there is one for each opening.
#[derive(Debug)]
pub(super) struct Lines {
    settings: Settings,
    render: Render,
}

impl Lines {
    pub(super) fn into(folder: PathBuf, render: Render) -> Self {
        Self { settings: Settings::new(folder, "orders"), render }
    }
}

#[async_trait]
impl Sink for Lines {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Fenced, Duration::ZERO)
    }

    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let format = Arc::new(Stamped { epoch: context.grant.epoch.0, render: self.render });
        FileSink::new(self.settings.clone(), format)?.open(cx, context).await
    }
}

#[derive(Debug)]
struct Stamped {
    epoch: u64,
    render: Render,
}

impl Format for Stamped {
    fn name(&self) -> &'static str {
        "stamped"
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        let mut object = Vec::new();
        (self.render)(change, &mut object)?;
        // The epoch is put in front.
        let rest = object.strip_prefix(b"{").ok_or_else(|| Error::corrupt("a change is no object"))?;
        out.extend_from_slice(format!("{{\"epoch\":{},", self.epoch).as_bytes());
        out.extend_from_slice(rest);
        Ok(())
    }
}

/// What has arrived in the files.
pub(super) struct LinesRead {
    folder: PathBuf,
    offset: u64,
    parse: Parse,
    /// Whether each line names its epoch.
    epochs: bool,
}

#[async_trait]
impl Target for LinesRead {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let lines = self.read().map_err(|error| Error::internal("lines cannot be read").caused_by(error))?;
        lines.iter().map(|text| self.line(text)).collect()
    }
}

impl LinesRead {
    pub(super) fn of(folder: PathBuf, parse: Parse) -> Self {
        Self { folder, offset: 0, parse, epochs: true }
    }

    /// The lines of a sink that writes no epochs.
    pub(super) fn without_epochs(folder: PathBuf, parse: Parse) -> Self {
        Self { epochs: false, ..Self::of(folder, parse) }
    }

    /// The whole lines after the last one that was read. There is no rotation, so there is one file.
    fn read(&mut self) -> std::io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut paths: Vec<_> = std::fs::read_dir(&self.folder)?.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
        let Some(path) = paths.first() else { return Ok(found) };
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(file);
        let mut text = String::new();
        while reader.read_line(&mut text)? > 0 && text.ends_with('\n') {
            self.offset += text.len() as u64;
            found.push(std::mem::take(&mut text));
        }
        Ok(found)
    }

    fn line(&self, text: &str) -> Result<Arrival> {
        let line: serde_json::Value =
            serde_json::from_str(text).map_err(|error| Error::corrupt("a line is no JSON").caused_by(error))?;
        let epoch = match line["epoch"].as_u64() {
            Some(epoch) => epoch,
            None if self.epochs => return Err(Error::corrupt("a line has no epoch")),
            None => 0,
        };
        let (key, number) = (self.parse)(&line).ok_or_else(|| Error::corrupt("a line is no order"))?;
        Ok(Arrival { key, number, epoch })
    }
}
