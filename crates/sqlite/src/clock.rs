//! The clock that all processes of this machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use watchkeeper_core::clock::CLOCK;
use watchkeeper_core::{Error, Result};

/// A point in the life of this machine, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Which boot: milliseconds of another one mean nothing.
    pub(crate) boot: String,
    /// Milliseconds since that boot, suspend included.
    pub(crate) millis: i64,
}

/// Reads the boot id, which does not change while this process lives.
pub(crate) fn boot_id() -> Result<String> {
    let text = read_boot_id()
        .map_err(|error| Error::config("the kernel tells no boot id").remedy("mount /proc").caused_by(error))?;
    Ok(text.trim().to_owned())
}

#[cfg(target_os = "linux")]
fn read_boot_id() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

/// As macOS tells it.
#[cfg(not(target_os = "linux"))]
fn read_boot_id() -> std::io::Result<String> {
    let output = std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Stamp {
    /// Now, in the boot with this id.
    pub(crate) fn now(boot: &str) -> Self {
        let now = clock_gettime(CLOCK);
        Self { boot: boot.to_owned(), millis: now.tv_sec * 1_000 + now.tv_nsec / 1_000_000 }
    }

    /// This point, later by `duration`. Rounded up, since a lease must not end early.
    pub(crate) fn after(&self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        Self { boot: self.boot.clone(), millis: self.millis.saturating_add(millis) }
    }

    /// How long until this point; `None` when it has passed, as all of another boot have.
    pub(crate) fn left(&self, now: &Self) -> Option<Duration> {
        let ahead = self.boot == now.boot && self.millis > now.millis;
        ahead.then(|| millis(self.millis - now.millis))
    }

    /// How long ago this point was. Of another boot it is known only that it was before this one.
    pub(crate) fn age(&self, now: &Self) -> Duration {
        if self.boot == now.boot { millis(now.millis - self.millis) } else { millis(now.millis) }
    }
}

fn millis(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// Milliseconds since 1970, for people who look into the tables.
pub(crate) fn wall_millis() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(boot: &str, millis: i64) -> Stamp {
        Stamp { boot: boot.to_owned(), millis }
    }

    #[test]
    fn another_boot_has_expired_whatever_its_numbers() {
        let now = stamp("b", 1_000);
        assert_eq!(stamp("b", 1_500).left(&now), Some(Duration::from_millis(500)));
        assert_eq!(stamp("b", 1_000).left(&now), None);
        assert_eq!(stamp("a", 9_000).left(&now), None);
    }

    #[test]
    fn what_was_written_before_the_boot_is_at_least_as_old_as_the_boot() {
        let now = stamp("b", 1_000);
        assert_eq!(stamp("b", 400).age(&now), Duration::from_millis(600));
        assert_eq!(stamp("a", 900).age(&now), Duration::from_millis(1_000));
    }

    #[test]
    fn parts_of_a_millisecond_are_rounded_up() {
        assert_eq!(stamp("b", 5).after(Duration::from_micros(1_001)).millis, 7);
    }
}
