use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use watchkeeper::core::Entropy;
use watchkeeper::sqlite::rusqlite::{self, Connection, ErrorCode};
use watchkeeper::{Error, Result};
use watchkeeper_drill::{Entry, Ledger};

/// Between two changes: some three hundred a second.
const PACE: Duration = Duration::from_micros(3_300);

/// How many orders there are.
const ORDERS: u64 = 36;

/// How long a change waits for other writers of the file.
const BUSY: Duration = Duration::from_secs(2);

/// The application: changes orders, each change in a transaction of its own, and keeps the ledger of what it wrote.
#[derive(Debug)]
pub(super) struct Writer {
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Ledger>>>,
}

impl Writer {
    /// Begins to write into the shop at `path`. Times are told from `origin`.
    pub(super) fn start(path: &Path, origin: Instant) -> Result<Self> {
        let connection = connect(path).map_err(|error| cannot("open the shop's database", error))?;
        let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let shop = Shop { connection, origin, written: Arc::clone(&written), stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new().name("writer".to_owned()).spawn(move || shop.run());
        let thread = thread.map_err(|error| Error::unavailable("could not start a thread").caused_by(error))?;
        Ok(Self { written, stop, thread: Some(thread) })
    }

    /// How many changes were written so far.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Stops, and hands over the ledger.
    ///
    /// # Errors
    /// Why it had to stop before.
    pub(super) fn stop(&mut self) -> Result<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = || Error::internal("the writer has ended already");
        self.thread.take().ok_or_else(ended)?.join().unwrap_or_else(|_| Err(Error::internal("the writer panicked")))
    }
}

fn cannot(what: &str, error: rusqlite::Error) -> Error {
    Error::internal(format!("the writer cannot {what}: {error}")).caused_by(error)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // Nobody pulls the plug in a demo: the application need not wait for the disk. Instances do.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

struct Shop {
    connection: Connection,
    origin: Instant,
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Shop {
    fn run(self) -> Result<Ledger> {
        let (mut ledger, dice) = (Ledger::default(), Entropy::from_system());
        let mut due = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let id = format!("order {:02}", dice.below(ORDERS) + 1);
            if self.change(&id, ledger.next(&id))? {
                ledger.enter(&id, Entry::Acknowledged);
                self.written.fetch_add(1, Ordering::Relaxed);
            }
            due = (due + PACE).max(Instant::now());
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(ledger)
    }

    /// Makes change `n` of an order; whether it was made. One that had to wait too long was not, and its number is used
    /// again.
    fn change(&self, id: &str, n: u64) -> Result<bool> {
        let sql = "INSERT INTO orders VALUES (?1, ?2, ?3)
            ON CONFLICT (id) DO UPDATE SET n = excluded.n, written_micros = excluded.written_micros";
        let micros = i64::try_from(self.origin.elapsed().as_micros()).unwrap_or(i64::MAX);
        let made = self.connection.prepare_cached(sql).and_then(|mut sql| sql.execute((id, n.cast_signed(), micros)));
        match made {
            Ok(_) => Ok(true),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
            Err(error) => Err(cannot("change an order", error)),
        }
    }
}
