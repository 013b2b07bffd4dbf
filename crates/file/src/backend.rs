//! Files and standard output as a configuration file names them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::format::{self, Format};
use watchkeeper_core::{Backend, Cx, Error, Options, Purpose, Result, Sink, SinkPlan, Target};

use crate::client::apart;
use crate::{FileSink, Fsync, Settings, StdoutSink};

/// The backend `file`: lines in files of a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files;

/// The backend `stdout`: lines on standard output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

fn format(options: &mut Options) -> Result<Arc<dyn Format>> {
    let choices = format::NAMES.map(|name| (name, name));
    let name = options.choice("format", &choices)?.unwrap_or("native");
    format::named(name).map(Arc::from).ok_or_else(|| options.wrong("format", format!("{name:?} is not known")))
}

fn fsync(options: &mut Options) -> Result<Fsync> {
    match options.peek_text("fsync") {
        None | Some("flush" | "never") => {
            let choices = [("flush", Fsync::EveryFlush), ("never", Fsync::Never)];
            Ok(options.choice("fsync", &choices)?.unwrap_or_default())
        }
        Some(_) => Ok(options.duration("fsync")?.map(Fsync::Interval).unwrap_or_default()),
    }
}

fn settings(purpose: &Purpose, options: &mut Options) -> Result<Settings> {
    let folder = options.required("folder", "\"out\"");
    let folder = options.reported(folder)?;
    let prefix = options.text("prefix")?.unwrap_or_else(|| purpose.stream.clone());
    // Where errors are collected the other settings are looked at too.
    let mut settings = Settings::new(folder.unwrap_or_else(|| ".".to_owned()), prefix);
    settings.rotate_bytes = options.bytes("rotate_bytes")?;
    settings.rotate_after = options.duration("rotate_after")?;
    settings.fsync = fsync(options)?;
    Ok(settings)
}

/// The folder as it is named in full, through links as far as it is there.
fn absolute(folder: &Path) -> PathBuf {
    let named = || std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    folder.canonicalize().unwrap_or_else(|_| named())
}

/// Refuses a folder that is not there: no waiting makes one. What else may be wrong with it is told when it is opened,
/// since that may pass.
fn is_there(folder: &Path) -> Result<()> {
    let wrong = |what: &str, remedy: String| {
        Err(Error::config(format!("the folder {} {what}", folder.display())).remedy(remedy))
    };
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => wrong("is no folder", "name another one".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound && !folder.as_os_str().is_empty() => {
            wrong("does not exist", missing_folder(folder))
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            wrong("lies below what is no folder", "name another one".to_owned())
        }
        Err(_) => Ok(()),
    }
}

/// What to do about a folder that does not exist. One that was there may be on a volume that is not mounted just now: made anew, it
/// would fill the disk below.
fn missing_folder(folder: &Path) -> String {
    format!("mount the volume that it is on, or make the folder {} anew", absolute(folder).display())
}

#[async_trait]
impl Backend for Files {
    fn name(&self) -> &'static str {
        "file"
    }

    fn validate_sink(&self, purpose: &Purpose, options: &mut Options) -> Result<SinkPlan> {
        let settings = settings(purpose, options)?;
        let files = absolute(&settings.folder).join(format!("{}-*.ndjson", settings.prefix));
        let sink = FileSink::new(settings, format(options)?)?;
        Ok(SinkPlan { profile: sink.profile(), exclusive: Some(format!("the files {}", files.display())) })
    }

    async fn sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let settings = settings(purpose, options)?;
        let inspected = settings.folder.clone();
        apart(cx, move || is_there(&inspected)).await?.map_err(|error| error.at(options.origin_of("folder")))?;
        let sink = FileSink::new(settings, format(options)?)?;
        Ok(Target { sink: Arc::new(sink), checkpoints: None })
    }
}

#[async_trait]
impl Backend for Stdout {
    fn name(&self) -> &'static str {
        "stdout"
    }

    fn validate_sink(&self, _purpose: &Purpose, options: &mut Options) -> Result<SinkPlan> {
        Ok(SinkPlan { profile: StdoutSink::new(format(options)?).profile(), exclusive: None })
    }

    async fn sink(&self, _cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Target> {
        Ok(Target { sink: Arc::new(StdoutSink::new(format(options)?)), checkpoints: None })
    }
}
