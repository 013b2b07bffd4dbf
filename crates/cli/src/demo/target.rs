use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use watchkeeper::sqlite::rusqlite::{self, Connection, OpenFlags};
use watchkeeper::{Error, Result};
use watchkeeper_drill::Arrival;

/// Over which time the rate is told.
const RATE_OVER: Duration = Duration::from_secs(1);

/// What the sink has received, read back from its own file.
#[derive(Debug)]
pub(super) struct Target {
    connection: Connection,
    origin: Instant,
    after: i64,
    arrivals: Vec<Arrival>,
    /// When the first change of each epoch was seen in the file.
    epochs: BTreeMap<u64, Instant>,
    /// The last looks that found something: when, and how much.
    recent: VecDeque<(Instant, usize)>,
    lag: Duration,
    /// When something was last seen to arrive.
    last: Instant,
}

impl Target {
    /// Reads the file at `path`, from its beginning. Times are told from `origin`, as the writer does.
    pub(super) fn open(path: &Path, origin: Instant) -> Result<Self> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(unreadable)?;
        let (arrivals, epochs, recent) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Ok(Self { connection, origin, after: 0, arrivals, epochs, recent, lag: Duration::ZERO, last: origin })
    }

    /// Looks for what is new. A look that finds nothing costs some microseconds.
    pub(super) fn read_new(&mut self) -> Result<()> {
        let found = self.read().map_err(unreadable)?;
        let now = Instant::now();
        self.recent.retain(|(at, _)| now.duration_since(*at) < RATE_OVER);
        let Some((_, newest_micros)) = found.last() else { return Ok(()) };
        let newest = Duration::from_micros(newest_micros.cast_unsigned());
        self.lag = now.duration_since(self.origin).saturating_sub(newest);
        self.recent.push_back((now, found.len()));
        self.last = now;
        for (arrival, _) in found {
            self.epochs.entry(arrival.epoch).or_insert(now);
            self.arrivals.push(arrival);
        }
        Ok(())
    }

    fn read(&mut self) -> rusqlite::Result<Vec<(Arrival, i64)>> {
        let sql = "SELECT number, id, n, epoch, written_micros FROM received WHERE number > ?1 ORDER BY number";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query([self.after])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let (number, epoch): (i64, i64) = (row.get(2)?, row.get(3)?);
            let (number, epoch) = (number.cast_unsigned(), epoch.cast_unsigned());
            found.push((Arrival { key: row.get(1)?, number, epoch }, row.get(4)?));
            self.after = row.get(0)?;
        }
        Ok(found)
    }

    /// Everything that arrived, in the order of arrival.
    pub(super) fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// How many changes arrived.
    pub(super) fn received(&self) -> u64 {
        self.arrivals.len() as u64
    }

    /// The newest epoch of which a change has arrived.
    pub(super) fn newest_epoch(&self) -> u64 {
        self.epochs.keys().next_back().copied().unwrap_or(0)
    }

    /// The first epoch after this one of which a change has arrived, and when its first was seen.
    pub(super) fn next_epoch(&self, after: u64) -> Option<(u64, Instant)> {
        self.epochs.range(after + 1..).next().map(|(epoch, at)| (*epoch, *at))
    }

    /// Changes that arrived within the last second.
    pub(super) fn per_second(&self) -> usize {
        self.recent.iter().map(|(_, count)| count).sum()
    }

    /// How long the newest change that arrived had been under way; while nothing arrives, this grows.
    pub(super) fn lag(&self) -> Duration {
        self.lag.max(self.last.elapsed())
    }
}

fn unreadable(error: rusqlite::Error) -> Error {
    Error::internal(format!("what arrived cannot be read: {error}")).caused_by(error)
}
