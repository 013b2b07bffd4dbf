use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The byte of the `-shm` file that the one writer of a file in write-ahead mode has locked.
const WRITE_LOCK: u64 = 120;

/// The kernel gives its list of locks out in pieces. Where another lock of the machine is released between two of them, a lock is left out, so
/// a list without the one that is looked for is read again.
const READINGS_MAX: usize = 5;

/// A process of this machine, as `/proc` shows it. Systems without `/proc` show none: no writer is found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pid: i32,
    /// In ticks since boot: with the number it names one process, since numbers are used again.
    started: i64,
    name: String,
    state: char,
}

impl Process {
    /// The number and the start of this process.
    pub(crate) fn own() -> (i32, i64) {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        (pid, Self::inspect(pid).map_or(0, |process| process.started))
    }

    /// The process that has the write lock of the file at `path`, if it can be found.
    ///
    /// Read from `/proc/locks`: to open the file and ask for the lock would, on closing it again, drop the locks that this
    /// process has on it.
    pub(crate) fn writing(path: &Path) -> Option<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push("-shm");
        let file = identity(&PathBuf::from(beside))?;
        (0..READINGS_MAX).find_map(|_| Self::listed(file))
    }

    /// The process that has the write lock of this file, if the list of locks shows it.
    fn listed(file: (u64, u64)) -> Option<Self> {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let holders = locks.lines().filter_map(write_lock).filter(|(_, inode)| *inode == file.1);
        // The device in that list is not always the one that programs see, so the open files decide.
        holders.filter_map(|(pid, _)| Self::inspect(pid)).find(|process| process.has_open(file))
    }

    fn inspect(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = state_and_start(&stat)?;
        let name = stat.split_once('(')?.1.rsplit_once(')')?.0.to_owned();
        Some(Self { pid, started, name, state })
    }

    fn has_open(&self, file: (u64, u64)) -> bool {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return false };
        entries.flatten().any(|entry| identity(&entry.path()) == Some(file))
    }

    /// Number and start.
    pub(crate) fn identity(&self) -> (i32, i64) {
        (self.pid, self.started)
    }

    /// Whether it is stopped, by a signal or a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Kills exactly this process; whether the signal was sent.
    #[cfg(target_os = "linux")]
    pub(crate) fn kill(&self) -> bool {
        use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        // From here on the number cannot come to mean another process; so it is looked at again.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let same = Self::inspect(self.pid).is_some_and(|now| now.started == self.started && now.is_stopped());
        same && pidfd_send_signal(handle, Signal::KILL).is_ok()
    }

    /// Sends nothing: only Linux has handles that name one process for good. A stopped writer then blocks the file until it goes on.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn kill(&self) -> bool {
        false
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = if self.is_stopped() { ", which is stopped" } else { "" };
        write!(f, "process {} ({}{stopped}) has the write lock", self.pid, self.name)
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Process and inode of a line of `/proc/locks` that locks [`WRITE_LOCK`] for writing.
fn write_lock(line: &str) -> Option<(i32, u64)> {
    // "7: POSIX  ADVISORY  WRITE 4711 fd:01:1837 120 120"; one that only waits has "->" in second place.
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, "POSIX", _, "WRITE", pid, file, start, end] = words[..] else { return None };
    let last = end.parse().unwrap_or(u64::MAX);
    let covered = (start.parse().ok()?..=last).contains(&WRITE_LOCK);
    covered.then_some((pid.parse().ok()?, file.rsplit(':').next()?.parse().ok()?))
}

/// From the text of `/proc/PID/stat`. The name in it may contain anything, so what follows its end is counted.
fn state_and_start(stat: &str) -> Option<(char, i64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start field 22.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_from_their_lines() {
        assert_eq!(write_lock("7: POSIX  ADVISORY  WRITE 4711 fd:01:1837 120 120"), Some((4711, 1837)));
        assert_eq!(write_lock("7: POSIX  ADVISORY  WRITE 4711 fd:01:1837 100 EOF"), Some((4711, 1837)));
        assert_eq!(write_lock("7: POSIX  ADVISORY  READ 4711 fd:01:1837 120 120"), None);
        assert_eq!(write_lock("7: POSIX  ADVISORY  WRITE 4711 fd:01:1837 123 123"), None);
        assert_eq!(write_lock("7: -> POSIX  ADVISORY  WRITE 4711 fd:01:1837 120 120"), None);
    }

    #[test]
    fn a_name_with_brackets_hides_nothing() {
        let stat = "42 (a) b (c) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 5309 20";
        assert_eq!(state_and_start(stat), Some(('T', 5309)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_found_and_not_stopped() {
        let (pid, started) = Process::own();
        let own = Process::inspect(pid).expect("this process is there");
        assert_eq!(own.identity(), (pid, started));
        assert!(started > 0 && !own.is_stopped());
        assert!(!own.kill(), "a process that is not stopped would be killed");
    }
}
