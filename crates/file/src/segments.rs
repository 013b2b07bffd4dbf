//! The files themselves: which one is open, when the next is begun, and how a broken end is mended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use watchkeeper_core::{Error, Moment, Result};

use crate::config::{Fsync, Settings};
use crate::error::failed;

/// How much is read at once in search of the last line break.
const BLOCK: u64 = 64 * 1024;

/// The names of one writer's files.
#[derive(Debug, Clone)]
pub(crate) struct WriterFiles {
    folder: PathBuf,
    stem: String,
}

impl WriterFiles {
    pub(crate) fn new(settings: &Settings, partition: u32) -> Self {
        let prefix = &settings.prefix;
        let stem = if partition == 0 { prefix.clone() } else { format!("{prefix}.p{partition}") };
        Self { folder: settings.folder.clone(), stem }
    }

    /// For messages.
    pub(crate) fn pattern(&self) -> String {
        self.folder.join(format!("{}-*.ndjson", self.stem)).display().to_string()
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.join(format!("{}.lock", self.stem))
    }

    pub(crate) fn mark(&self) -> PathBuf {
        self.folder.join(format!("{}.mark", self.stem))
    }

    pub(crate) fn draft(&self) -> PathBuf {
        self.folder.join(format!("{}.mark.new", self.stem))
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}-{number:06}.ndjson", self.stem))
    }

    /// Makes names durable: of new files, and of replaced ones.
    pub(crate) fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    /// The highest number in use, if any.
    fn newest(&self) -> io::Result<Option<u64>> {
        let mut newest = None;
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&self.stem)?.strip_prefix('-'));
            newest = newest.max(number.and_then(|number| number.strip_suffix(".ndjson")?.parse().ok()));
        }
        Ok(newest)
    }
}

/// The open file and its predecessors.
#[derive(Debug)]
pub(crate) struct Segments {
    place: WriterFiles,
    settings: Settings,
    file: File,
    number: u64,
    len: u64,
    /// When its first line was written, as far as this writer knows.
    begun: Moment,
    /// Number and length as of the last good flush: what a failed one goes back to.
    good: (u64, u64),
    synced: Moment,
    /// Whether a file was made whose name may not be durable yet.
    folder_changed: bool,
}

impl Segments {
    /// Goes on with the newest file, after mending its end, or begins the first one.
    pub(crate) fn open(place: WriterFiles, settings: Settings, now: Moment) -> Result<Self> {
        let newest = place.newest().map_err(|error| failed("list", &settings.folder, error))?;
        let number = newest.unwrap_or(1);
        let path = place.segment(number);
        let open = || {
            let file = OpenOptions::new().read(true).append(true).create(newest.is_none()).open(&path)?;
            let len = repair(&file)?;
            Ok((file, len))
        };
        let (file, len) = open().map_err(|error| failed("open", &path, error))?;
        let good = (number, len);
        // Also a file that was there may be one that a crash left without a durable name.
        Ok(Self { place, settings, file, number, len, begun: now, good, synced: now, folder_changed: true })
    }

    /// Writes whole lines, in as many files as they need.
    pub(crate) fn append(&mut self, mut lines: &[u8], now: Moment) -> Result<()> {
        while !lines.is_empty() {
            let fitting = self.fitting(lines);
            if fitting == 0 || self.is_old(now) {
                self.rotate()?;
                continue;
            }
            if self.len == 0 {
                self.begun = now;
            }
            let (these, rest) = lines.split_at(fitting);
            self.file.write_all(these).map_err(|error| self.failed("write to", error))?;
            self.len += these.len() as u64;
            lines = rest;
        }
        Ok(())
    }

    /// How many bytes of `lines`, in whole lines, still belong into this file.
    fn fitting(&self, lines: &[u8]) -> usize {
        let room = self.settings.rotate_bytes.map_or(u64::MAX, |max| max.saturating_sub(self.len));
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(lines.len());
        let whole = lines[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole > 0 || self.len > 0 {
            return whole;
        }
        // A line that is larger than a file gets one of its own.
        lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |at| at + 1)
    }

    fn is_old(&self, now: Moment) -> bool {
        self.len > 0 && self.settings.rotate_after.is_some_and(|after| now.since(self.begun) >= after)
    }

    /// Refuses to go on with a file that is not the one under its name any more: nobody would find what is written to it.
    fn require_in_place(&self) -> Result<()> {
        if self.is_in_place().map_err(|error| self.failed("look at", error))? {
            return Ok(());
        }
        let path = self.place.segment(self.number);
        tracing::warn!(
            file = %path.display(),
            "the file was removed or replaced while it was written: the lines written to it up to now are gone"
        );
        Err(self.replaced())
    }

    /// Whether the open file is the one under its name.
    fn is_in_place(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match fs::metadata(self.place.segment(self.number)) {
            Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn replaced(&self) -> Error {
        let path = self.place.segment(self.number);
        Error::unknown(format!("{} was removed or replaced while it was written", path.display())).remedy(
            "remove or move only files that are not the newest; what was not committed is written again to a new one",
        )
    }

    fn rotate(&mut self) -> Result<()> {
        self.require_in_place()?;
        if self.settings.fsync != Fsync::Never {
            // A later sync reaches only the file that is open then.
            self.file.sync_data().map_err(|error| self.failed("sync", error))?;
        }
        let number = self.number + 1;
        let path = self.place.segment(number);
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path);
        self.file = file.map_err(|error| failed("create", &path, error))?;
        (self.number, self.len, self.folder_changed) = (number, 0, true);
        Ok(())
    }

    /// Makes what was appended as durable as the settings ask for.
    pub(crate) fn flush(&mut self, now: Moment) -> Result<()> {
        let due = match self.settings.fsync {
            Fsync::EveryFlush => true,
            Fsync::Interval(every) => now.since(self.synced) >= every,
            Fsync::Never => false,
        };
        if due {
            self.sync()?;
            self.synced = now;
        }
        self.require_in_place()?;
        self.good = (self.number, self.len);
        Ok(())
    }

    /// Waits for the disk, whatever the interval.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.failed("sync", error))?;
        if self.folder_changed {
            let synced = self.place.sync_folder();
            synced.map_err(|error| failed("sync", &self.settings.folder, error))?;
            self.folder_changed = false;
        }
        Ok(())
    }

    /// The end of a writer in order.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.settings.fsync == Fsync::Never { Ok(()) } else { self.sync() }
    }

    /// Takes back what was written since the last good flush, and gives `error` on. If that fails as well, nobody knows
    /// what is there.
    pub(crate) fn take_back(&mut self, error: Error) -> Error {
        let (number, len) = self.good;
        let undo = || -> io::Result<()> {
            for later in number + 1..=self.number {
                fs::remove_file(self.place.segment(later))?;
            }
            let file = OpenOptions::new().write(true).open(self.place.segment(number))?;
            if file.metadata()?.len() > len { file.set_len(len) } else { Ok(()) }
        };
        match undo() {
            Ok(()) => error,
            Err(_) if self.is_in_place().is_ok_and(|is_in_place| !is_in_place) => self.replaced().caused_by(error),
            Err(_) => Error::unknown("a write failed and could not be taken back").caused_by(error),
        }
    }

    fn failed(&self, verb: &str, error: io::Error) -> Error {
        failed(verb, &self.place.segment(self.number), error)
    }
}

/// Cuts off an incomplete last line. Answers the length that is left.
fn repair(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut end = len;
    let mut block = vec![0; BLOCK as usize];
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        // At most a block.
        let part = &mut block[..(end - start) as usize];
        file.read_exact_at(part, start)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok(end)
}
