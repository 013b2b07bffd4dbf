//! Files of lines as a fenced target.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::format::Format;
use watchkeeper_core::{Cx, Finding, Grade, OpenedSink, Result, Severity, Sink, SinkContext, SinkProfile};

use crate::client::{Client, Pace, Target, apart};
use crate::config::{Fsync, Settings};
use crate::error::finding;
use crate::fence::Fence;
use crate::lines::{GATHERED_MAX, LineWriter, gather};
use crate::segments::{Segments, WriterFiles};

/// Lines in files. Fenced; see the crate's page for what it promises.
#[derive(Debug, Clone)]
pub struct FileSink {
    settings: Settings,
    format: Arc<dyn Format>,
}

impl FileSink {
    /// Lines in `format`.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn new(settings: Settings, format: Arc<dyn Format>) -> Result<Self> {
        settings.validate()?;
        Ok(Self { settings, format })
    }
}

#[async_trait]
impl Sink for FileSink {
    fn profile(&self) -> SinkProfile {
        SinkProfile::new(Grade::Fenced, Duration::ZERO)
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let settings = self.settings.clone();
        apart(cx, move || findings(&settings)).await
    }

    async fn open(&self, cx: &Cx, context: &SinkContext) -> Result<OpenedSink> {
        let (settings, context, pace) = (self.settings.clone(), context.clone(), Pace::of(cx));
        let client = Client::start(cx, move || Files::open(settings, &context, pace)).await?;
        Ok(OpenedSink::Plain(Arc::new(LineWriter { format: Arc::clone(&self.format), client })))
    }
}

/// One opening of the files.
struct Files {
    fence: Fence,
    segments: Segments,
    gathered: Vec<u8>,
}

impl Files {
    fn open(settings: Settings, context: &SinkContext, pace: Pace) -> Result<Self> {
        let place = WriterFiles::new(&settings, context.partition);
        let open = {
            let place = place.clone();
            move || Segments::open(place, settings, pace.now)
        };
        let (fence, segments) = Fence::claim(place, context, pace.patience, open)?;
        Ok(Self { fence, segments, gathered: Vec::new() })
    }

    /// Writes what was gathered and does `then`. What fails is taken back while nobody else can write.
    fn write(&mut self, pace: Pace, then: fn(&mut Segments, Pace) -> Result<()>) -> Result<()> {
        let (lines, segments) = (std::mem::take(&mut self.gathered), &mut self.segments);
        self.fence.guarded(pace.patience, || {
            let written = segments.append(&lines, pace.now).and_then(|()| then(segments, pace));
            written.map_err(|error| segments.take_back(error))
        })
    }
}

impl Target for Files {
    fn append(&mut self, lines: Vec<u8>, pace: Pace) -> Result<()> {
        if let Some(lines) = gather(&mut self.gathered, lines) {
            self.write(pace, |_, _| Ok(()))?;
            self.gathered = lines;
        }
        if self.gathered.len() < GATHERED_MAX {
            return Ok(());
        }
        self.write(pace, |_, _| Ok(()))
    }

    fn flush(&mut self, pace: Pace) -> Result<()> {
        self.write(pace, |segments, pace| segments.flush(pace.now))
    }

    fn close(&mut self) -> Result<()> {
        self.segments.close()
    }
}

/// File systems whose locks are not to be relied on, by the magic number that `statfs` gives: those over which SQLite
/// shares no file either, and FUSE, behind which there may be any of them.
const NETWORK: [(u64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x0bd0_0bd0, "Lustre"),
    (0x6573_5546, "FUSE"),
];

fn findings(settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    let folder = &settings.folder;
    if let Err(error) = probe(folder, &settings.prefix) {
        found.push(finding("write to", folder, &error));
    }
    let magic = rustix::fs::statfs(folder).map(|stat| stat.f_type as u64 & 0xffff_ffff);
    if let Some((_, name)) = NETWORK.iter().find(|(known, _)| magic == Ok(*known)) {
        let what = format!("{} is on a network file system ({name}), whose locks may fail", folder.display());
        let remedy = Some("write to a local disk, so that a stale writer is refused".to_owned());
        found.push(Finding { severity: Severity::Warning, what, remedy });
    }
    if settings.fsync != Fsync::EveryFlush {
        let what = format!("a power failure may lose lines in {}: not every flush is synced", folder.display());
        let remedy = Some("sync at every flush if that matters".to_owned());
        found.push(Finding { severity: Severity::Note, what, remedy });
    }
    found
}

/// What a probe writes: an empty file takes no room, so it can be made on a full disk.
const PROBE: [u8; 4_096] = [b' '; 4_096];

/// Whether a file can be made there, and a block be written to it.
fn probe(folder: &Path, prefix: &str) -> std::io::Result<()> {
    // Several sinks, and several programs, may be checked at the same time.
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), PROBES.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(format!("{prefix}.{process}-{number}.check"));
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&PROBE)?;
        file.sync_all()
    });
    // In any case: what was written of it takes room that a stream may need.
    written.and(fs::remove_file(&path))
}
