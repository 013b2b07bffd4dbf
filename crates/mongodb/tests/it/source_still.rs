//! Cursors that stand still, and such that are only quiet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use watchkeeper_core::{BootClock, Change, Clock, Cx, ErrorKind, Limits, Moment, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Feed, View};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::errors::in_turn;
use crate::source::{LIMITS, Shop, read_patiently};
use crate::source_scan::{slow_down_searches, write_elsewhere};
use crate::support::{Base, assert_error, block_on, cx, fail, fresh_name};

/// A wait that is long enough to be leapt over, and for a cursor to count as still.
const LONG: Limits = Limits { wait: Duration::from_secs(31), ..LIMITS };

/// How long a leap really takes: long enough for a healthy server to answer meanwhile.
const LEAP: Duration = Duration::from_millis(1_500);

/// A clock that leaps over long waits.
#[derive(Debug, Clone, Default)]
struct Leaping {
    ahead: Arc<AtomicU64>,
    /// What was last waited for, and when the leap there ends: a wait may be begun again meanwhile.
    target: Arc<Mutex<Option<(Moment, Moment)>>>,
}

impl Clock for Leaping {
    fn now(&self) -> Moment {
        BootClock.now() + Duration::from_nanos(self.ahead.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, moment: Moment) -> watchkeeper_core::clock::Sleep {
        let left = moment.since(self.now());
        if left <= LONG.wait / 2 {
            return BootClock.sleep_until(BootClock.now() + left);
        }
        let mut target = self.target.lock().expect("nobody panics");
        let end = target.filter(|(before, _)| *before == moment).map_or(BootClock.now() + LEAP, |(_, end)| end);
        *target = Some((moment, end));
        let clock = self.clone();
        Box::pin(async move {
            BootClock.sleep_until(end).await;
            let rest = moment.since(clock.now());
            clock.ahead.fetch_add(u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        })
    }

    fn wall_millis(&self) -> u64 {
        BootClock.wall_millis()
    }
}

fn leaping() -> Cx {
    Cx::new(Arc::new(Leaping::default()))
}

#[test]
fn a_cursor_that_hangs_is_given_up_and_nothing_is_lost() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let app = fresh_name();
            let feed = Feed::new(shop.base.named_client(&app).await, View::collection("orders"));
            let cx = leaping();
            let mut stream = feed.open(&cx, StartAt::Now).await.expect("it opens");
            let mut position = stream.position().expect("it is known");
            // For longer than anybody waits here.
            let hang = doc! { "blockConnection": true, "blockTimeMS": 600_000 };
            fail(&shop.client, &app, "getMore", 1, hang).await;
            let mut keys = Vec::new();
            let mut error = None;
            for n in 0..20 {
                shop.insert(doc! { "_id": n }).await;
                match stream.next_batch(&cx, LONG).await {
                    Ok(batch) => {
                        position = batch.end.clone();
                        let batch = Arc::new(batch);
                        keys.extend((0..).take(batch.len()).map(|row| key(&Change::new(Arc::clone(&batch), row))));
                    }
                    Err(reported) => {
                        error = Some((n, reported));
                        break;
                    }
                }
            }
            let (last, error) = error.expect("it is noticed that the cursor hangs");
            assert_error::<()>(Err(error), ErrorKind::Unavailable, "the cursor stands still");
            let count = usize::try_from(last + 1).expect("a count");
            let mut again = feed.open(&cx, StartAt::After(position)).await.expect("it opens");
            let rest = read_patiently(&mut *again, count - keys.len()).await;
            keys.extend(rest.iter().map(key));
            assert_eq!(keys, (0..=last).map(|n| n.to_string()).collect::<Vec<_>>());
        });
    });
}

fn key(change: &Change) -> String {
    String::from_utf8_lossy(change.key().expect("it has one")).into_owned()
}

#[test]
fn a_cursor_that_is_only_quiet_stays_open() {
    // As in a set that has lost its majority, nothing moves on.
    let arguments = ["--setParameter", "writePeriodicNoops=false"].map(str::to_owned).to_vec();
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    block_on(async {
        let shop = Shop::on(Base::on(&set)).await;
        let view = View { max_await_time: Duration::from_millis(100), ..View::collection("orders") };
        let feed = shop.feed(view);
        let leaping = leaping();
        let mut stream = feed.open(&leaping, StartAt::Now).await.expect("it opens");
        for round in 0..4 {
            let batch = stream.next_batch(&leaping, LONG).await.expect("it is not given up");
            assert!(batch.is_empty(), "{round}");
        }
        // Neither while the rest of the cluster moves on.
        for n in 0..3 {
            shop.database.collection::<Document>("elsewhere").insert_one(doc! { "_id": n }).await.expect("it is taken");
            stream.next_batch(&leaping, LONG).await.expect("it is not given up");
        }
        shop.insert(doc! { "_id": 1 }).await;
        assert_eq!(read_patiently(&mut *stream, 1).await[0].key(), Some(&b"1"[..]));
    });
}

#[test]
fn a_server_that_holds_back_its_answers_for_long_is_not_taken_for_one_that_hangs() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let view = View { max_await_time: Duration::from_secs(45), ..View::collection("orders") };
            let leaping = leaping();
            let mut stream = shop.feed(view).open(&leaping, StartAt::Now).await.expect("it opens");
            for n in 0..4 {
                let elsewhere = shop.database.collection::<Document>("elsewhere");
                elsewhere.insert_one(doc! { "_id": n }).await.expect("it is taken");
                let batch = stream.next_batch(&leaping, LONG).await.expect("the cursor is only quiet");
                assert!(batch.is_empty(), "{n}");
            }
        });
    });
}

#[test]
fn a_server_that_searches_the_oplog_for_long_is_not_taken_for_one_that_hangs() {
    in_turn(|set| {
        block_on(async {
            let shop = Shop::on(Base::on(set)).await;
            let feed = shop.feed(View::collection("orders"));
            let position = feed.open(&cx(), StartAt::Now).await.expect("it opens").position().expect("it is known");
            write_elsewhere(&shop, 60_000).await;
            shop.insert(doc! { "_id": 1 }).await;
            slow_down_searches(&shop, Duration::from_millis(150), 60).await;
            let leaping = leaping();
            let mut stream = feed.open(&leaping, StartAt::After(position)).await.expect("it opens");
            let (mut changes, mut calls) = (0, 0);
            while changes == 0 {
                changes = stream.next_batch(&leaping, LONG).await.expect("it is not given up").len();
                calls += 1;
            }
            assert!(calls > 3, "the search was over after {calls} calls, too soon to be taken for a stall");
        });
    });
}
