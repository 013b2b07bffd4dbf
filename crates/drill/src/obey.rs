use std::io;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::event::Order;

/// The exit code of a child whose parent is gone.
const ORPHANED: i32 = 3;

/// Hears orders on standard input, on a thread of its own, and ends this process with the one that started it.
///
/// Two means, since each has a hole: the end of the input comes too late to a process that is stopped, and the signal of
/// the kernel does not come if the parent was gone before it was asked for.
///
/// # Errors
/// The thread or the signal cannot be had.
pub fn obey(mut order: impl FnMut(Order) + Send + 'static) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let hear = move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            // A newer parent may give orders that are not known here.
            if let Ok(heard) = serde_json::from_str(&line) {
                order(heard);
            }
        }
        std::process::exit(ORPHANED);
    };
    std::thread::Builder::new().name("orders".to_owned()).spawn(hear).map(drop)
}
