//! Which transactions had ended at a moment, as the server says it.

use std::fmt;
use std::str::FromStr;

use watchkeeper_core::{Error, Result};

/// More than this never run at once: a server has at most 262,143 sessions, and as many prepared transactions.
const IN_PROGRESS_MAX: u64 = 1 << 20;

/// A `pg_snapshot`: transactions below `xmax` had ended, except those in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    xmin: u64,
    xmax: u64,
    /// Ascending, all of them in `xmin..xmax`.
    in_progress: Vec<u64>,
}

impl Snapshot {
    /// Before the first transaction.
    pub(crate) fn nothing() -> Self {
        Self { xmin: 3, xmax: 3, in_progress: Vec::new() }
    }

    /// The first transaction that had not begun.
    pub(crate) fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Those that had begun and not ended.
    pub(crate) fn in_progress(&self) -> &[u64] {
        &self.in_progress
    }

    /// Whether everything that had ended here had ended there too. Snapshots of one server are always ordered by this.
    pub(crate) fn is_in(&self, later: &Self) -> bool {
        let still_running = later.in_progress.iter().take_while(|xid| **xid < self.xmax);
        let mut not_ended = still_running.chain(&[]);
        if !not_ended.all(|xid| self.in_progress.binary_search(xid).is_ok()) {
            return false;
        }
        // What had not begun there may be known here only as running.
        let unknown = self.xmax.saturating_sub(later.xmax);
        let running = self.in_progress.len() - self.in_progress.partition_point(|xid| *xid < later.xmax);
        running as u64 == unknown
    }

    /// What had ended here, and all transactions below `xid`.
    pub(crate) fn with_all_below(&self, xid: u64) -> Self {
        let in_progress = self.in_progress.iter().copied().filter(|running| *running >= xid).collect();
        Self::new(self.xmax.max(xid), in_progress)
    }

    /// What had ended both here and there.
    pub(crate) fn common(&self, other: &Self) -> Self {
        let xmax = self.xmax.min(other.xmax);
        let both = self.in_progress.iter().chain(&other.in_progress).copied();
        let mut in_progress: Vec<u64> = both.filter(|xid| *xid < xmax).collect();
        in_progress.sort_unstable();
        in_progress.dedup();
        Self::new(xmax, in_progress)
    }

    fn new(xmax: u64, in_progress: Vec<u64>) -> Self {
        Self { xmin: in_progress.first().copied().unwrap_or(xmax), xmax, in_progress }
    }

    /// Appends it in few bytes: in-progress transactions as gaps and runs, since many that run at once began together.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        put(into, self.xmin);
        put(into, self.xmax - self.xmin);
        let runs = self.runs();
        put(into, runs.len() as u64);
        for (gap, length) in runs {
            put(into, gap);
            put(into, length);
        }
    }

    fn runs(&self) -> Vec<(u64, u64)> {
        let (mut runs, mut next): (Vec<(u64, u64)>, u64) = (Vec::new(), self.xmin);
        for xid in &self.in_progress {
            match runs.last_mut() {
                Some((_, length)) if *xid == next => *length += 1,
                _ => runs.push((xid - next, 1)),
            }
            next = xid + 1;
        }
        runs
    }

    /// Takes one off the front; `None` if there is none.
    pub(super) fn decode(from: &mut &[u8]) -> Option<Self> {
        let xmin = take(from)?;
        let xmax = xmin.checked_add(take(from)?)?;
        let (mut in_progress, mut next) = (Vec::new(), xmin);
        for _ in 0..take(from)? {
            let start = next.checked_add(take(from)?)?;
            next = start.checked_add(take(from)?)?;
            if next > xmax || in_progress.len() as u64 + (next - start) > IN_PROGRESS_MAX {
                return None;
            }
            in_progress.extend(start..next);
        }
        Some(Self { xmin, xmax, in_progress })
    }
}

/// As the server writes it: `xmin:xmax:xid,xid`.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (n, xid) in self.in_progress.iter().enumerate() {
            write!(f, "{}{xid}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Snapshot {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::corrupt(format!("{text:?} is not a snapshot of a server"));
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or_else(wrong);
        let (xmin, xmax) = (number()?, number()?);
        let list = parts.next().ok_or_else(wrong)?;
        let listed = list.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().map_err(|_| wrong()));
        let in_progress = listed.collect::<Result<Vec<u64>>>()?;
        let is_ascending = in_progress.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = in_progress.iter().all(|xid| (xmin..xmax).contains(xid));
        if xmin > xmax || !is_ascending || !is_inside {
            return Err(wrong());
        }
        Ok(Self { xmin, xmax, in_progress })
    }
}

/// Seven bits a byte, the lowest first.
fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push((number & 0x7f) as u8);
}

fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("it is one")
    }

    #[test]
    fn text_and_bytes_give_it_back() {
        for text in ["3:3:", "10:20:10,14,15,19", "100:100:", "9223372036854775807:9223372036854775808:"] {
            let (snapshot, mut bytes) = (snapshot(text), Vec::new());
            assert_eq!(snapshot.to_string(), text);
            snapshot.encode(&mut bytes);
            let mut rest = &bytes[..];
            assert_eq!(Snapshot::decode(&mut rest), Some(snapshot));
            assert!(rest.is_empty());
            for short in 0..bytes.len() {
                assert_eq!(Snapshot::decode(&mut &bytes[..short]), None, "{short} bytes of {text}");
            }
        }
    }

    #[test]
    fn a_long_list_takes_few_bytes() {
        let running = (5_000..10_000).map(|xid: u64| xid.to_string()).collect::<Vec<_>>().join(",");
        let (snapshot, mut bytes) = (snapshot(&format!("5000:11000:{running}")), Vec::new());
        snapshot.encode(&mut bytes);
        assert!(bytes.len() < 10, "{} bytes", bytes.len());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "1", "1:2", "2:1:", "1:5:4,3", "1:5:5", "1:5:0", "a:b:c", "1:5:2,x"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
        assert_eq!(Snapshot::decode(&mut &[3, 1, 1, 0, 2][..]), None, "more run than there are");
        let mut bytes = vec![3];
        put(&mut bytes, 1 << 40);
        bytes.extend([1, 0]);
        put(&mut bytes, 1 << 39);
        assert_eq!(Snapshot::decode(&mut &bytes[..]), None, "more run than a server has room for");
    }

    fn all_small() -> Vec<Snapshot> {
        let mut all = Vec::new();
        for xmax in 3..8u64 {
            for running in 0..1u64 << (xmax - 3) {
                let in_progress: Vec<u64> = (3..xmax).filter(|xid| running >> (xid - 3) & 1 == 1).collect();
                all.push(Snapshot::new(xmax, in_progress));
            }
        }
        all
    }

    fn ended(snapshot: &Snapshot, xid: u64) -> bool {
        xid < snapshot.xmax && !snapshot.in_progress.contains(&xid)
    }

    /// Against the definition, over all small snapshots.
    #[test]
    fn what_is_common_and_what_is_below_are_sets_of_what_had_ended() {
        let all = all_small();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let common = a.common(b);
            assert!((3..9).all(|xid| ended(&common, xid) == (ended(a, xid) && ended(b, xid))), "{a} and {b}: {common}");
            assert_eq!(common.to_string().parse::<Snapshot>().expect("it is one"), common);
        }
        for (a, below) in all.iter().flat_map(|a| (3..9).map(move |below| (a, below))) {
            let more = a.with_all_below(below);
            assert!((3..9).all(|xid| ended(&more, xid) == (ended(a, xid) || xid < below)), "{a} below {below}: {more}");
            assert_eq!(more.to_string().parse::<Snapshot>().expect("it is one"), more);
        }
    }

    /// Against the definition, over all small snapshots.
    #[test]
    fn being_in_another_is_inclusion_of_what_had_ended() {
        let all = all_small();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let included = (3..8).all(|xid| !ended(a, xid) || ended(b, xid));
            assert_eq!(a.is_in(b), included, "{a} in {b}");
        }
    }
}
