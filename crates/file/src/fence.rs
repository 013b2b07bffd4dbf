//! Who may write: the newest grant, by a mark beside the files that is read and written under a lock.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Epoch, Error, LeaseKey, Result, SinkContext, TenureId};

use crate::error::failed;
use crate::segments::WriterFiles;

/// The pause between two attempts to lock. The lock is held for the time of a write and a sync.
const RETRY: Duration = Duration::from_millis(2);

/// Whoever opened last, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FenceRecord {
    /// Stream, sink and partition: two of them must not share files.
    owner: (String, String, u32),
    key: LeaseKey,
    epoch: Epoch,
    tenure: TenureId,
    /// Counts openings, so that a writer that its own tenure has replaced is refused, too.
    opening: u64,
    /// For people: who holds the lock when it cannot be had.
    pid: u32,
    /// Keys of this owner from before its stream was partitioned anew. They never come back.
    past: Vec<LeaseKey>,
}

impl FenceRecord {
    /// The mark of a new opening after `self`, or why there may be none.
    fn followed_by(mut self, mut next: Self, place: &WriterFiles) -> Result<Self> {
        if self.owner != next.owner {
            let (stream, sink, partition) = &self.owner;
            let cause = format!(
                "the files {} belong to stream {stream:?}, sink {sink:?}, partition {partition}",
                place.pattern()
            );
            return Err(Error::config(cause).remedy("give each sink a prefix of its own"));
        }
        let same_grant = (self.epoch, self.tenure) == (next.epoch, next.tenure);
        let older = self.key == next.key && self.epoch >= next.epoch && !same_grant;
        if older || self.past.contains(&next.key) {
            let cause = format!("epoch {} has opened {} before epoch {}", self.epoch, place.pattern(), next.epoch);
            let remedy = format!("if the leases were set up anew, remove {}", place.mark().display());
            return Err(Error::fenced(cause).remedy(remedy));
        }
        if self.key != next.key {
            if group(&self.key) != group(&next.key) {
                let cause = format!("the files {} belong to {} of another group", place.pattern(), self.key);
                return Err(Error::config(cause).remedy("give each sink a folder or a prefix of its own"));
            }
            self.past.push(self.key);
        }
        next.past = self.past;
        next.opening = self.opening + 1;
        Ok(next)
    }
}

/// The part of a key that all of a group share.
fn group(key: &LeaseKey) -> &str {
    key.as_str().split('/').next().unwrap_or_default()
}

/// The right to write, as long as nobody newer has opened.
#[derive(Debug)]
pub(crate) struct Fence {
    place: WriterFiles,
    lock: File,
    mine: FenceRecord,
}

impl Fence {
    /// Takes the files over for a new opening, and does `then` before anybody else can write.
    pub(crate) fn claim<T>(
        place: WriterFiles,
        context: &SinkContext,
        patience: Duration,
        then: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let path = place.lock();
        let lock = OpenOptions::new().create(true).append(true).open(&path);
        let lock = lock.map_err(|error| failed("open", &path, error))?;
        let grant = &context.grant;
        let mine = FenceRecord {
            owner: (context.stream.clone(), context.sink.clone(), context.partition),
            key: grant.key.clone(),
            epoch: grant.epoch,
            tenure: grant.tenure,
            opening: 1,
            pid: std::process::id(),
            past: Vec::new(),
        };
        let mut fence = Self { place, lock, mine };
        let answer = fence.locked(patience, |fence| {
            if let Some(stored) = fence.read()? {
                fence.mine = stored.followed_by(fence.mine.clone(), &fence.place)?;
            }
            fence.write()?;
            then()
        })?;
        Ok((fence, answer))
    }

    /// Does `act` if nobody newer has opened, and while nobody can.
    pub(crate) fn guarded<T>(&mut self, patience: Duration, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.locked(patience, |fence| match fence.read()? {
            Some(stored) if stored == fence.mine => act(),
            Some(stored) => Err(Error::fenced(format!("epoch {} has opened {}", stored.epoch, fence.place.pattern()))),
            None => Err(fence.removed()),
        })
    }

    fn locked<T>(&mut self, patience: Duration, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let since = Instant::now();
        loop {
            match self.lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if since.elapsed() < patience => std::thread::sleep(RETRY),
                Err(TryLockError::WouldBlock) => return Err(self.held_by_another()),
                Err(TryLockError::Error(error)) => return Err(failed("lock", &self.place.lock(), error)),
            }
        }
        let answer = act(self);
        // Closing unlocks as well, so a failure here lasts no longer than this writer.
        let _ = self.lock.unlock();
        answer
    }

    /// The error of a mark that is gone.
    fn removed(&self) -> Error {
        let (mark, lock) = (self.place.mark(), self.place.lock());
        let folder = lock.parent().filter(|folder| !folder.is_dir());
        if let Some(folder) = folder {
            return failed("write to", folder, IoKind::NotFound.into());
        }
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        if fs::metadata(&lock).ok().map(inode) == self.lock.metadata().ok().map(inode) {
            return Error::fenced(format!("{} was removed while it was open", mark.display()));
        }
        // All of them are gone, and perhaps the folder was made again: nobody newer has opened them, and what was not committed is
        // written again to new ones.
        Error::unknown(format!("the files {} were removed while they were open", self.place.pattern()))
            .remedy("leave files with this prefix to Watchkeeper; they are made again")
    }

    fn held_by_another(&self) -> Error {
        // Marks are replaced whole, so this one can be read without the lock.
        let holder = self.read().ok().flatten().map_or_else(String::new, |mark| format!(" by process {}", mark.pid));
        Error::unavailable(format!("{} is locked{holder}", self.place.lock().display()))
            .remedy("if that process is stopped, let it go on or kill it")
    }

    fn read(&self) -> Result<Option<FenceRecord>> {
        let path = self.place.mark();
        let stored = match fs::read(&path) {
            Ok(stored) => stored,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let mark = serde_json::from_slice(&stored).map_err(|error| {
            Error::corrupt(format!("{} is no mark", path.display()))
                .remedy("remove it when no older instance can be running")
                .caused_by(error)
        })?;
        Ok(Some(mark))
    }

    /// Replaces the mark whole: a crash leaves the old one or the new one.
    fn write(&self) -> Result<()> {
        let (path, draft): (PathBuf, PathBuf) = (self.place.mark(), self.place.draft());
        let text =
            serde_json::to_vec(&self.mine).map_err(|error| Error::internal("a mark has no text").caused_by(error))?;
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&draft, &path)?;
            self.place.sync_folder()
        };
        write().map_err(|error| failed("write", &path, error))
    }
}
