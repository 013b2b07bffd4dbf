//! A store of PostgreSQL that is slow to answer, and one to which many streams commit.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use watchkeeper::core::memory::{Log, NewChange};
use watchkeeper::postgres::tokio_postgres::{self, NoTls};
use watchkeeper::{
    Grade, HandlerSettings, InstanceSettings, LeaseSettings, ListenerState, ObserverExecutor, Operation, Operations,
    Routes, Running, Seams, SinkSpec, SourceTime, StartAt, StreamSettings, StreamSpec, handler, open,
};
use watchkeeper_testkit::servers::postgres::{Server, Version};

const PATIENCE: Duration = Duration::from_secs(120);

/// A line to a server, on which what it says can be held.
struct Line {
    port: u16,
    held: Arc<(Mutex<bool>, Condvar)>,
}

impl Line {
    fn to(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let (held, end): (Arc<(Mutex<bool>, Condvar)>, _) = (Arc::default(), server.port());
        let gate = Arc::clone(&held);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, end)) else { return };
                pass_on(client, server, &gate);
            }
        });
        Self { port, held }
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn hold(&self, hold: bool) {
        *self.held.0.lock().unwrap() = hold;
        self.held.1.notify_all();
    }
}

fn pass_on(client: TcpStream, server: TcpStream, gate: &Arc<(Mutex<bool>, Condvar)>) {
    let (Ok(mut questions), Ok(mut asked)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut questions, &mut asked);
        let _ = asked.shutdown(Shutdown::Both);
    });
    let gate = Arc::clone(gate);
    std::thread::spawn(move || {
        let (mut server, mut client, mut buffer) = (server, client, [0; 8_192]);
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            let held = gate.0.lock().unwrap();
            drop(gate.1.wait_while(held, |held| *held).unwrap());
            if client.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
}

/// When which change was delivered.
type Delivered = Arc<Mutex<Vec<(u64, Instant)>>>;

fn stream(name: &str, log: &Log, delivered: &Delivered) -> StreamSpec {
    let delivered = Arc::clone(delivered);
    let note = handler(move |change| {
        let number = String::from_utf8_lossy(change.body()).parse().expect("a body is a number");
        delivered.lock().unwrap().push((number, Instant::now()));
        async { Ok(()) }
    });
    let settings = HandlerSettings { grade: Grade::Idempotent, settle: Duration::ZERO, ..HandlerSettings::default() };
    let handlers = ObserverExecutor::new(Routes::new().on("*", Operations::ANY, note));
    let sink = Arc::new(handlers.with_settings(settings).expect("they are not transactional").sink());
    let mut settings = StreamSettings::new(name);
    settings.start = StartAt::Oldest;
    StreamSpec {
        settings,
        source: Arc::new(log.clone()),
        sinks: vec![SinkSpec::new("handler", sink)],
        checkpoints: None,
    }
}

fn append(log: &Log) {
    let number = log.newest() + 1;
    let change = NewChange {
        operation: Operation::Insert,
        namespace: "orders".to_owned(),
        key: Some(format!("key {number}").into()),
        body: number.to_string().into(),
        first_half: false,
    };
    log.append(change, SourceTime(number));
}

/// Appends a change every few milliseconds until it is so.
async fn appending_until(log: &Log, what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "waited too long: {what}");
        append(log);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_the_store_that_are_held_stop_no_delivery_before_the_deadline() {
    let server = Server::start(Version::V15);
    let line = Line::to(&server);
    let stores = open::stores(&line.url()).await.expect("the server is there");
    let (log, delivered) = (Log::new("log"), Delivered::default());
    let mut settings = InstanceSettings::new("shop", "only");
    let ttl = Duration::from_secs(4);
    settings.lease = LeaseSettings::new(ttl);
    let streams = vec![stream("orders", &log, &delivered)];
    let mut running = Running::start(Seams::system(), stores, settings, streams).await.expect("the settings are good");
    let status = running.status("orders").expect("it has this stream");
    let state = || status.get().state;
    let count = || delivered.lock().unwrap().len();
    appending_until(&log, "it delivers", || count() > 100).await;

    line.hold(true);
    let held = Instant::now();
    // It was renewed at most a third of a lease ago: for as long as that leaves, it works as if nothing were.
    let mut before = count();
    for step in 1..=4 {
        let end = held + ttl / 10 * step;
        appending_until(&log, "a moment passes", || Instant::now() > end).await;
        assert!(count() > before + 5, "in step {step} only {} changes were delivered", count() - before);
        assert_eq!(state(), ListenerState::Running);
        before = count();
    }
    // At the deadline it stops by itself, whatever comes.
    appending_until(&log, "it gives up", || state() != ListenerState::Running).await;
    let last = delivered.lock().unwrap().last().expect("much was delivered").1;
    assert!(last.duration_since(held) < ttl, "it delivered for {:?} without a lease", last.duration_since(held));
    let (stopped, end) = (count(), Instant::now() + Duration::from_millis(300));
    appending_until(&log, "a moment passes", || Instant::now() > end).await;
    assert_eq!(count(), stopped, "it delivered after it had given up");

    line.hold(false);
    let newest = log.newest();
    let has = |number: u64| delivered.lock().unwrap().iter().any(|(one, _)| *one == number);
    appending_until(&log, "it goes on", || has(newest)).await;
    running.shutdown();
    running.join().await.expect("it ends in order");
    let mut numbers: Vec<u64> = delivered.lock().unwrap().iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "something was lost");
}

/// Four instances of one group with 50 streams each, all of which renew and commit at the same time. A thousand do so in the tests
/// of the store itself, where they do not cost other tests their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_streams_of_many_instances_commit_without_a_deadlock() {
    let server = Server::start(Version::V18);
    let url = server.url("postgres");
    // A log for each: what one has acknowledged is gone from it.
    let logs: Vec<Log> = (0..200).map(|number| Log::new(&format!("log {number}"))).collect();
    let (delivered, mut instances) = (Delivered::default(), Vec::new());
    for (instance, logs) in logs.chunks(50).enumerate() {
        let stores = open::stores(&url).await.expect("the server is there");
        let named = |(number, log)| stream(&format!("stream-{instance}-{number}"), log, &delivered);
        let streams = logs.iter().enumerate().map(named).collect();
        let mut settings = InstanceSettings::new("shop", &format!("instance-{instance}"));
        // Long, since this is not about a machine that is too slow.
        settings.lease = LeaseSettings::new(Duration::from_secs(60));
        instances.push(Running::start(Seams::system(), stores, settings, streams).await.expect("they are good"));
    }
    let (admin, connection) = tokio_postgres::connect(&url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    let begun = Instant::now();
    loop {
        logs.iter().for_each(append);
        let sql = "SELECT count(*) FROM watchkeeper.checkpoints WHERE seq >= 3";
        if admin.query_one(sql, &[]).await.expect("it can be asked").get::<_, i64>(0) == 200 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "not all of them commit");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("200 streams have committed three times each after {:?}", begun.elapsed());
    for mut instance in instances {
        instance.shutdown();
        instance.join().await.expect("it ends in order");
    }
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(admin.query_one(sql, &[]).await.expect("it can be asked").get::<_, i64>(0), 0);
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}
