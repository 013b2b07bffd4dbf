use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    BootClock, Change, ChangeStream, Clock, Cx, Limits, Moment, Operation, Position, Source, StartAt,
};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::{ChangeLog, Client};
use watchkeeper_testkit::servers::postgres::Version;

use crate::support::{Base, cx};

/// A database with a logged table `things`.
pub(super) struct Shop {
    pub(super) base: Base,
    pub(super) client: Client,
    /// A bare connection, as an application has it.
    pub(super) application: tokio_postgres::Client,
}

pub(super) const THINGS: &str = "CREATE TABLE things (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0, name text)";

impl Shop {
    pub(super) async fn new(version: Version) -> Self {
        Self::with(version, THINGS, "things").await
    }

    pub(super) async fn with(version: Version, sql: &str, table: &str) -> Self {
        let base = Base::new(version).await;
        let (client, application) = (base.client().await, base.admin().await);
        application.batch_execute(sql).await.expect("a table can be made");
        install(&cx(), &client, &[table], Wake::Notify).await.expect("it can be logged");
        Self { base, client, application }
    }

    /// A connection of another session.
    pub(super) async fn session(&self) -> tokio_postgres::Client {
        self.base.admin().await
    }

    pub(super) async fn run(&self, sql: &str) {
        self.application.batch_execute(sql).await.expect("the application may do this");
    }

    pub(super) async fn log(&self) -> ChangeLog {
        ChangeLog::open(&cx(), self.client.clone(), "it").await.expect("there is a log")
    }
}

/// A wait that no machine is too slow for, unless nothing comes.
pub(crate) const LIMITS: Limits = Limits { rows: 1_000, bytes: 1 << 30, wait: Duration::from_millis(50) };

/// Reads until so many changes came, for at most a minute.
pub(super) async fn read(stream: &mut dyn ChangeStream, count: usize) -> Vec<Change> {
    read_with(stream, count, LIMITS).await
}

pub(super) async fn read_with(stream: &mut dyn ChangeStream, count: usize, limits: Limits) -> Vec<Change> {
    let (begun, mut changes) = (cx().now(), Vec::new());
    while changes.len() < count {
        assert!(cx().now().since(begun) < Duration::from_secs(60), "{} of {count} changes came", changes.len());
        let batch = Arc::new(stream.next_batch(&cx(), limits).await.expect("the log can be read"));
        changes.extend((0..).take(batch.len()).map(|row| Change::new(Arc::clone(&batch), row)));
    }
    assert_eq!(changes.len(), count, "more came than there should be");
    changes
}

/// Whether nothing more is there.
pub(super) async fn is_quiet(stream: &mut dyn ChangeStream) -> bool {
    stream.next_batch(&cx(), LIMITS).await.expect("the log can be read").is_empty()
}

/// What each change is, with its key and body.
pub(super) fn received(changes: &[Change]) -> Vec<(Operation, String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("keys and bodies are text");
    let key = |change: &Change| change.key().map(text).unwrap_or_default();
    changes.iter().map(|change| (change.operation(), key(change), text(change.body()))).collect()
}

/// A clock that is a minute ahead: what is told from time to time is told now.
#[derive(Debug)]
struct Ahead;

const MINUTE: Duration = Duration::from_secs(60);

impl Clock for Ahead {
    fn now(&self) -> Moment {
        BootClock.now() + MINUTE
    }

    fn sleep_until(&self, moment: Moment) -> watchkeeper_core::clock::Sleep {
        BootClock.sleep_until(BootClock.now() + moment.since(self.now()))
    }

    fn wall_millis(&self) -> u64 {
        BootClock.wall_millis()
    }
}

/// The end of a log in which nothing has happened since a position. As long as others write to the server it is not certain yet.
pub(super) async fn moved_on(log: &ChangeLog, from: &Position) -> Position {
    let begun = cx().now();
    loop {
        assert!(cx().now().since(begun) < MINUTE, "a quiet log does not move on");
        let mut stream = log.peek(&cx(), StartAt::After(from.clone())).await.expect("it opens");
        let received = stream.next_batch(&Cx::new(Arc::new(Ahead)), LIMITS).await.expect("the log can be read");
        assert!(received.is_empty());
        if log.compare(from, &received.end) == Some(std::cmp::Ordering::Less) {
            return received.end;
        }
    }
}

pub(super) fn ahead() -> Cx {
    Cx::new(Arc::new(Ahead))
}
