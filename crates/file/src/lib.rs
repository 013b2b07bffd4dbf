//! Files of JSON lines, and standard output, as targets of changes.
//!
//! [`FileSink`] writes one line per change, in any format of core, to `<prefix>-<n>.ndjson` in a folder. The file with the
//! highest number is the open one; [`Settings`] say when the next is begun.
//!
//! # What it promises
//! * **Fenced.** Beside the files lie `<prefix>.mark`, which names the newest grant, and `<prefix>.lock`, which is held while
//!   the mark is read and lines are written. A writer of an older epoch, or one that its own tenure has replaced, writes nothing any more.
//! * **Whole lines.** Lines are written whole and never merged. A new opening cuts off an incomplete last line (a crash in the middle of a
//!   write): no flush has answered for it, so its change is delivered again. A flush that fails takes back what it had written.
//! * **At least once.** After a crash between a flush and the checkpoint the same changes are written again, with the same ids.
//! * **Order.** Changes of one lane, so of one key, stand in the order in which they happened.
//!
//! # What each setting can lose
//! | [`Fsync`] | a killed process | a power failure |
//! |---|---|---|
//! | `EveryFlush` (default) | nothing | nothing |
//! | `Interval(d)` | nothing | what was flushed since the last sync: changes of the last `d`, or, when it then falls silent, what `Never` may lose |
//! | `Never` | nothing | whatever the system had not yet written, usually half a minute |
//!
//! What a power failure takes here is lost for good when its checkpoint is kept: the two are not synced together.
//!
//! # What it does not do
//! A process that is stopped (SIGSTOP) between lock and unlock keeps its successor waiting; the error names it by its process id. Locks
//! of network file systems are not to be relied on; [`check`](watchkeeper_core::Sink::check) warns of them.
//!
//! [`StdoutSink`] writes the same lines to standard output. It is plain: nothing there can refuse a stale writer.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `fence` | the newest grant, in a mark file that is read and written under a lock |
//! | `segments` | the files: which one is open, rotation, repair of an incomplete last line |
//! | `client` | a thread for blocking writes, behind a bounded channel |
//! | `sink`, `lines`, `stdout` | the file sink; the writer of lines; standard output |
//! | `backend`, `config`, `error` | files as a configuration file names them; settings; the table of errors |

#![warn(missing_docs)]

mod backend;
mod client;
mod config;
mod error;
mod fence;
mod lines;
mod segments;
mod sink;
mod stdout;

pub use backend::{Files, Stdout};
pub use config::{Fsync, Settings};
pub use sink::FileSink;
pub use stdout::StdoutSink;
