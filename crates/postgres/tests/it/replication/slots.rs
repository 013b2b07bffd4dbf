use std::time::Duration;

use watchkeeper_core::{ErrorKind, Position, Source, StartAt};
use watchkeeper_postgres::replication::Lsn;
use watchkeeper_postgres::{Config, Replication};
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, LIMITS, Watch, assert_error, block_beside, block_on, cx, on_both, server};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY, v text)";

async fn confirmed(base: &Base<'_>) -> Lsn {
    let query = format!("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{}'", base.name);
    Lsn::parse(&base.ask(&query).await).expect("a place of the log")
}

fn place(position: &Position) -> Lsn {
    Lsn(u64::from_be_bytes(position.bytes[..8].try_into().expect("eight bytes")))
}

/// Waits until the server has heard from the reader so often.
async fn heard(base: &Base<'_>, times: usize) {
    let query = format!(
        "SELECT coalesce(max(r.reply_time)::text, '') FROM pg_stat_replication r
        JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = '{}'",
        base.name
    );
    let (mut last, mut count) = (base.ask(&query).await, 0);
    for _ in 0..6_000 {
        let now = base.ask(&query).await;
        if now != last {
            (last, count) = (now, count + 1);
        }
        if count >= times {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the server hears nothing");
}

#[test]
fn the_slot_moves_with_what_is_acknowledged_and_not_before() {
    on_both(THINGS, async |base| {
        let mut watch = Watch::open(&base.source(), StartAt::Now).await;
        let before = confirmed(base).await;
        base.run("INSERT INTO things VALUES (1)").await;
        base.run("INSERT INTO things VALUES (2)").await;
        let changes = watch.changes(2).await;
        heard(base, 2).await;
        assert_eq!(confirmed(base).await, before, "the slot moved although nothing was acknowledged");
        watch.stream.acknowledge(&cx(), &changes[1].position()).await.unwrap();
        for _ in 0..6_000 {
            if confirmed(base).await == place(&changes[1].position()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(confirmed(base).await, place(&changes[1].position()));
        watch.close().await;
    });
}

#[test]
fn what_an_operator_may_go_back_to_is_held() {
    on_both(THINGS, async |base| {
        let mut settings = base.settings();
        settings.rewind = Duration::from_secs(3_600);
        let source = base.source_with(settings);
        let mut watch = Watch::open(&source, StartAt::Now).await;
        let before = confirmed(base).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let change = watch.changes(1).await.remove(0);
        watch.stream.acknowledge(&cx(), &change.position()).await.unwrap();
        heard(base, 2).await;
        watch.close().await;
        assert_eq!(confirmed(base).await, before);
        let mut again = Watch::open(&source, StartAt::Oldest).await;
        assert_eq!(again.changes(1).await[0].id().to_string(), change.id().to_string());
        again.close().await;
    });
}

#[test]
fn the_slot_of_a_quiet_table_moves_on() {
    on_both(&format!("{THINGS}; CREATE TABLE others(id int PRIMARY KEY)"), async |base| {
        let source = base.source();
        let mut watch = Watch::open(&source, StartAt::Now).await;
        let before = confirmed(base).await;
        base.run("INSERT INTO others SELECT generate_series(1, 1000)").await;
        let written = Lsn::parse(&base.ask("SELECT pg_current_wal_lsn()::text").await).unwrap();
        let mut end = None;
        for _ in 0..120 {
            let batch = watch.stream.next_batch(&cx(), LIMITS).await.unwrap();
            assert!(batch.is_empty());
            if place(&batch.end) >= written {
                end = Some(batch.end);
                break;
            }
        }
        let end = end.expect("the position moves on without changes");
        watch.stream.acknowledge(&cx(), &end).await.unwrap();
        for _ in 0..6_000 {
            if confirmed(base).await > before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(confirmed(base).await, place(&end));
        base.run("INSERT INTO things VALUES (1)").await;
        let reported = watch.changes(1).await[0].position();
        // The last transaction that was told is held for a while, but not for ever.
        base.run("SELECT pg_logical_emit_message(false, 'else', repeat('x', 1 << 20)) FROM generate_series(1, 20)")
            .await;
        let mut moved = false;
        for _ in 0..120 {
            let batch = watch.stream.next_batch(&cx(), LIMITS).await.unwrap();
            moved |= place(&batch.end).0 > place(&reported).0 + (16 << 20);
            if moved {
                break;
            }
        }
        assert!(moved, "the position stays at the last change");
        watch.close().await;
        let mut again = Watch::open(&source, StartAt::After(end)).await;
        again.changes(1).await;
        again.close().await;
    });
}

#[test]
fn a_holder_whose_time_is_over_is_relieved() {
    on_both(THINGS, async |base| {
        let (old, new) = (base.source(), base.source());
        let mut first = Watch::open(&old, StartAt::Now).await;
        base.run("INSERT INTO things VALUES (1)").await;
        let change = first.changes(1).await.remove(0);
        let mut second = Watch::open(&new, StartAt::After(change.position())).await;
        base.run("INSERT INTO things VALUES (2)").await;
        second.changes(1).await;
        let error = first.error().await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // A late acknowledgement of the old holder changes nothing.
        let before = confirmed(base).await;
        first.stream.acknowledge(&cx(), &change.position()).await.unwrap();
        first.close().await;
        assert_eq!(confirmed(base).await, before);
        base.run("INSERT INTO things VALUES (3)").await;
        second.changes(1).await;
        second.close().await;
    });
}

#[test]
fn a_holder_that_is_none_of_ours_is_named_and_left_alone() {
    on_both(THINGS, async |base| {
        let url = format!("{}?application_name=someone", base.url());
        let theirs = Replication::new(Config::new(&url).unwrap(), base.settings());
        let mut first = Watch::open(&theirs, StartAt::Now).await;
        let refused = base.source().open(&cx(), StartAt::Now).await.map(drop);
        assert_error(refused, ErrorKind::Unavailable, "is held by \"someone\"");
        base.run("INSERT INTO things VALUES (1)").await;
        first.changes(1).await;
        first.close().await;
    });
}

#[test]
fn the_reader_of_another_stream_is_named_and_left_alone() {
    on_both(THINGS, async |base| {
        let stream = |name: &str| {
            let mut settings = base.settings();
            settings.stream = Some(format!("shop/{name}"));
            base.source_with(settings)
        };
        let mut first = Watch::open(&stream("orders"), StartAt::Now).await;
        for start in [StartAt::Now, StartAt::Snapshot] {
            let refused = stream("parcels").open(&cx(), start).await.map(drop);
            assert_error(refused, ErrorKind::Unavailable, "is held by \"watchkeeper shop/orders#");
        }
        base.run("INSERT INTO things VALUES (1)").await;
        first.changes(1).await;
        // Whoever takes the stream over ends it.
        let mut second = Watch::open(&stream("orders"), StartAt::Now).await;
        assert_eq!(first.error().await.kind(), ErrorKind::Unavailable);
        base.run("INSERT INTO things VALUES (2)").await;
        second.changes(1).await;
        first.close().await;
        second.close().await;
    });
}

#[test]
fn a_second_reader_of_this_process_does_not_take_the_slot_from_the_first() {
    on_both(THINGS, async |base| {
        let source = base.source();
        let mut first = Watch::open(&source, StartAt::Now).await;
        let start = first.stream.position().unwrap();
        base.run("INSERT INTO things VALUES (1)").await;
        first.changes(1).await;
        let mut second = Watch::open(&source, StartAt::After(start)).await;
        second.changes(1).await;
        let mut looking = source.peek(&cx(), StartAt::Now).await.unwrap();
        base.run("INSERT INTO things VALUES (2)").await;
        first.changes(1).await;
        second.changes(1).await;
        looking.next_batch(&cx(), LIMITS).await.unwrap();
        second.close().await;
        looking.close(&cx()).await.unwrap();
        first.close().await;
    });
}

#[test]
fn a_reader_that_is_held_up_keeps_its_connection() {
    for version in Version::ALL {
        let server = server(version, &["wal_sender_timeout = '3s'"]);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            let mut watch = Watch::open(&base.source(), StartAt::Now).await;
            let pid = format!("SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = '{}'", base.name);
            let before = base.ask(&pid).await;
            // Far more than the reader and both sockets hold, so that the server has to wait for us.
            base.run("INSERT INTO things SELECT g, repeat('v', 1000) FROM generate_series(1, 30000) g").await;
            base.run("SELECT pg_sleep(8)").await;
            watch.changes(30_000).await;
            assert_eq!(base.ask(&pid).await, before, "the server has ended the connection");
            watch.close().await;
        });
    }
}

#[test]
fn a_server_can_stop_while_it_is_read_and_goes_on_where_it_was() {
    for version in Version::ALL {
        let server = server(version, &[]);
        let (source, position, name) = block_beside(async {
            let base = Base::new(&server, THINGS).await;
            let source = base.source();
            let mut watch = Watch::open(&source, StartAt::Now).await;
            base.run("INSERT INTO things VALUES (1)").await;
            let position = watch.changes(1).await[0].position();
            // Something is confirmed, and something is not: the server would wait for that.
            watch.stream.acknowledge(&cx(), &position).await.unwrap();
            heard(&base, 1).await;
            base.run("INSERT INTO things VALUES (2)").await;
            watch.changes(1).await;
            let pedigree = source.identity(&cx()).await.unwrap();
            server.restart();
            let error = watch.error().await;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            watch.close().await;
            source.verify(&cx(), &position, &pedigree).await.unwrap();
            (source, position, base.name)
        });
        block_on(async {
            let mut watch = Watch::open(&source, StartAt::After(position)).await;
            let sql = super::bench::connect(&server.url(&name)).await;
            sql.batch_execute("INSERT INTO things VALUES (3)").await.unwrap();
            watch.changes(2).await;
            watch.close().await;
        });
    }
}
