//! Files and standard output as a configuration file names them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::format::{self, Format};
use watchkeeper_core::{Backend, Cx, Error, Options, Purpose, Result, Target};

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
            wrong("does not exist", format!("create the folder: mkdir -p {}", folder.display()))
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            wrong("lies below what is no folder", "name another one".to_owned())
        }
        Err(_) => Ok(()),
    }
}

#[async_trait]
impl Backend for Files {
    fn name(&self) -> &'static str {
        "file"
    }

    async fn sink(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let folder = options.required("folder", "\"out\"")?;
        let looked = PathBuf::from(&folder);
        apart(cx, move || is_there(&looked)).await?.map_err(|error| error.at(options.origin_of("folder")))?;
        let prefix = options.text("prefix")?.unwrap_or_else(|| purpose.stream.clone());
        let mut settings = Settings::new(folder, prefix);
        settings.rotate_bytes = options.bytes("rotate_bytes")?;
        settings.rotate_after = options.duration("rotate_after")?;
        settings.fsync = fsync(options)?;
        let sink = FileSink::new(settings, format(options)?)?;
        Ok(Target { sink: Arc::new(sink), checkpoints: None })
    }
}

#[async_trait]
impl Backend for Stdout {
    fn name(&self) -> &'static str {
        "stdout"
    }

    async fn sink(&self, _cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Target> {
        Ok(Target { sink: Arc::new(StdoutSink::new(format(options)?)), checkpoints: None })
    }
}
