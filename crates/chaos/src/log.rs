//! What instances and their parent do, with the time at which they do it, so that a slow takeover can be explained.

use std::fs::{OpenOptions, create_dir_all};
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::filter::LevelFilter;

/// Appends what this process logs to a file of its name. Processes of one name follow each other in it.
pub(crate) fn to(folder: &Path, name: &str) -> std::io::Result<()> {
    create_dir_all(folder)?;
    let file = OpenOptions::new().create(true).append(true).open(folder.join(name).with_extension("log"))?;
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(Mutex::new(file));
    // Only one can be first, and a second call would be one of this same program.
    let _ = lines.with_max_level(LevelFilter::DEBUG).try_init();
    Ok(())
}
