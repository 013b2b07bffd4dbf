//! Files of a spool, called from threads that may block.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use watchkeeper_core::Entropy;

/// Appends blocks to `file`, which is made if there is none.
pub(super) fn append(folder: &Path, file: Option<Arc<File>>, blocks: &[Vec<u8>]) -> io::Result<Arc<File>> {
    let file = match file {
        Some(file) => file,
        None => Arc::new(nameless(folder)?),
    };
    for block in blocks {
        (&*file).write_all(block)?;
    }
    Ok(file)
}

/// The block of this length that begins at `offset`.
pub(super) fn read(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut block = vec![0; length];
    file.read_exact_at(&mut block, offset)?;
    Ok(block)
}

/// A file that nobody else can open, and that is gone when it is closed.
fn nameless(folder: &Path) -> io::Result<File> {
    let name = format!(".watchkeeper-spool-{}", Entropy::from_system().uuid().simple());
    let path = folder.join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
