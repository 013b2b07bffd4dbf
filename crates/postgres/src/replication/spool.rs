//! Transactions that the server tells before they are committed, laid aside until they are.
//!
//! What is under way is held in memory up to a limit, beyond that in files, and refused above a size. A file has no name as soon
//! as it is open, so that it goes with its process, however that ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinHandle;
use watchkeeper_core::{Error, Result};

use super::pgoutput::{Cut, is_proof, odd};
use super::settings::Settings;

mod file;

/// Marks a message that was laid aside, where the server's own have `w` or `k`.
pub(super) const LAID_ASIDE: u8 = b's';

/// Bytes before such a message: tag and length as the server's messages have them, the mark, and the part of the transaction.
pub(super) const HEAD: usize = 5 + 5;

/// So much is written and read at once.
const BLOCK: usize = 256 * 1024;

/// The part of a transaction that a message belongs to.
pub(super) fn part(frame: &[u8]) -> u32 {
    frame.get(6..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// All transactions that are under way.
pub(super) struct Spool {
    memory_max: usize,
    size_max: u64,
    folder: PathBuf,
    open: BTreeMap<u32, Streamed>,
    /// The transaction whose changes are being received.
    receiving: Option<u32>,
    /// How much of all of them is in memory.
    in_memory: usize,
    /// How much there is of all of them.
    size: u64,
    writing: Option<Writing>,
    /// Whether something that was received could not be kept.
    is_broken: bool,
}

/// Blocks on their way to a file.
struct Writing {
    xid: u32,
    lengths: Vec<usize>,
    task: JoinHandle<std::io::Result<Arc<File>>>,
}

/// What there is of one transaction.
#[derive(Default)]
pub(super) struct Streamed {
    /// Its beginning, in blocks of these lengths.
    written: Vec<usize>,
    file: Option<Arc<File>>,
    /// The rest.
    blocks: Vec<Vec<u8>>,
    /// The parts of it that were undone.
    pub(super) undone: BTreeSet<u32>,
}

impl Streamed {
    fn in_memory(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }

    fn size(&self) -> u64 {
        (self.written.iter().sum::<usize>() + self.in_memory()) as u64
    }

    fn push(&mut self, part: u32, tag: u8, rest: &[u8]) {
        if self.blocks.last().is_none_or(|block| block.len() >= BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let Some(block) = self.blocks.last_mut() else { return };
        block.push(b'd');
        // A message of the server is shorter than 1 GiB.
        block.extend_from_slice(&((HEAD + rest.len()) as u32).to_be_bytes());
        block.push(LAID_ASIDE);
        block.extend_from_slice(&part.to_be_bytes());
        block.push(tag);
        block.extend_from_slice(rest);
    }
}

impl Spool {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            memory_max: settings.spool_memory,
            size_max: settings.spool_limit,
            folder: settings.spool_folder.clone(),
            open: BTreeMap::new(),
            receiving: None,
            in_memory: 0,
            size: 0,
            writing: None,
            is_broken: false,
        }
    }

    /// Whether what is received belongs to a transaction that is under way.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.is_some()
    }

    /// Changes of this transaction follow.
    pub(super) fn start(&mut self, xid: u32) {
        self.receiving = Some(xid);
        self.open.entry(xid).or_default();
    }

    /// Lays a message aside.
    ///
    /// # Errors
    /// `Config` when there is more under way than the settings allow.
    pub(super) fn receive(&mut self, message: &[u8]) -> Result<()> {
        let mut cut = Cut(message);
        let tag = cut.byte()?;
        match tag {
            b'E' => self.receiving = None,
            b'I' | b'U' | b'D' | b'T' | b'R' | b'Y' | b'M' => {
                let part = cut.u32()?;
                if tag == b'M' && !is_proof(cut)? {
                    return Ok(());
                }
                let size = HEAD + 1 + cut.0.len();
                let streamed = self.receiving.and_then(|xid| self.open.get_mut(&xid));
                let streamed = streamed.ok_or_else(|| odd("a change outside of a transaction"))?;
                if self.size + size as u64 > self.size_max {
                    return Err(too_much(self.size_max));
                }
                streamed.push(part, tag, cut.0);
                self.in_memory += size;
                self.size += size as u64;
            }
            _ => {}
        }
        Ok(())
    }

    /// A transaction, or a part of it, was undone.
    pub(super) fn undo(&mut self, xid: u32, part: u32) {
        if xid == part {
            self.take(xid);
        } else if let Some(streamed) = self.open.get_mut(&xid) {
            streamed.undone.insert(part);
        }
    }

    /// Takes a transaction out.
    pub(super) fn take(&mut self, xid: u32) -> Streamed {
        let streamed = self.open.remove(&xid).unwrap_or_default();
        self.in_memory -= streamed.in_memory();
        self.size -= streamed.size();
        streamed
    }

    /// Whether something has to go to a file before more is received.
    pub(super) fn is_over(&self) -> bool {
        self.writing.is_some() || self.is_broken || self.in_memory > self.memory_max
    }

    /// Moves the transaction that takes most memory to its file.
    ///
    /// # Cancel safety
    /// Cancel safe: what is being written is waited for by the next call.
    pub(super) async fn spill(&mut self) -> Result<()> {
        if self.is_broken {
            return Err(Error::unavailable("the spool is incomplete").remedy("the stream is opened again"));
        }
        if self.writing.is_none() {
            self.begin_to_write();
        }
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let written = (&mut writing.task).await;
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let file = written.map_err(std::io::Error::other).and_then(|written| written);
        self.is_broken = file.is_err();
        let file = file.map_err(|error| unwritable(&self.folder, error))?;
        if let Some(streamed) = self.open.get_mut(&writing.xid) {
            streamed.file = Some(file);
            streamed.written.extend(writing.lengths);
        }
        Ok(())
    }

    fn begin_to_write(&mut self) {
        let largest = self.open.iter_mut().max_by_key(|(_, streamed)| streamed.in_memory());
        let Some((xid, streamed)) = largest else { return };
        let blocks = std::mem::take(&mut streamed.blocks);
        let lengths: Vec<usize> = blocks.iter().map(Vec::len).collect();
        self.in_memory -= lengths.iter().sum::<usize>();
        let (folder, file) = (self.folder.clone(), streamed.file.clone());
        let task = tokio::task::spawn_blocking(move || file::append(&folder, file, &blocks));
        self.writing = Some(Writing { xid: *xid, lengths, task });
    }
}

/// A transaction that comes out of the spool again, block by block.
pub(super) struct Replay {
    streamed: Streamed,
    /// How many blocks of the file have been read, and up to which byte.
    read: (usize, u64),
    reading: Option<JoinHandle<std::io::Result<Vec<u8>>>>,
}

impl Replay {
    pub(super) fn new(mut streamed: Streamed) -> Self {
        streamed.blocks.reverse();
        Self { streamed, read: (0, 0), reading: None }
    }

    /// The next block; `None` after the last one.
    ///
    /// # Cancel safety
    /// Cancel safe: what is being read is waited for by the next call.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let (at, offset) = self.read;
        let (Some(&length), Some(file)) = (self.streamed.written.get(at), &self.streamed.file) else {
            return Ok(self.streamed.blocks.pop());
        };
        let reading = self.reading.get_or_insert_with(|| {
            let file = Arc::clone(file);
            tokio::task::spawn_blocking(move || file::read(&file, offset, length))
        });
        let block = reading.await;
        self.reading = None;
        let block = block.map_err(std::io::Error::other).and_then(|block| block);
        let unreadable = |error| Error::unavailable("the spool cannot be read back").caused_by(error);
        let block = block.map_err(|error| unreadable(error).remedy("it is tried again from the last commit"))?;
        self.read = (at + 1, offset + length as u64);
        Ok(Some(block))
    }
}

fn too_much(size_max: u64) -> Error {
    Error::config(format!("the transactions that are under way need more than spool_limit, which is {size_max} bytes"))
        .remedy("raise spool_limit, or set streaming = \"off\", with which the server keeps them")
}

fn unwritable(folder: &std::path::Path, error: std::io::Error) -> Error {
    Error::unavailable(format!("the spool in {} cannot be written: {error}", folder.display()))
        .remedy("make room there, or name another folder as spool_folder")
        .caused_by(error)
}
