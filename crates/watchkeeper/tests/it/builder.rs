use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::mpsc;
use watchkeeper::sqlite::{ChangeLog, Client, Config, tools};
use watchkeeper::{
    Back, ErrorKind, Grade, HandlerError, HandlerSettings, ListenerState, Operations, Position, StartAt, Stores,
    Stream, Watch, Watchkeeper, open,
};

/// Where the other process finds the files.
const FOLDER: &str = "WATCHKEEPER_TEST_FOLDER";

/// Long enough that a takeover within a fraction of it was not brought about by its expiry.
const LEASE: Duration = Duration::from_secs(20);

async fn shop(folder: &Path) -> Client {
    let client = Client::open(&open::cx(), Config::new(folder.join("shop.db"))).await.expect("a file can be made");
    let table = "CREATE TABLE IF NOT EXISTS orders(id INTEGER PRIMARY KEY, item TEXT NOT NULL)";
    client.write(&open::cx(), move |shop| Ok(shop.execute_batch(table)?)).await.expect("a table can be made");
    tools::install(&open::cx(), &client, &["orders"]).await.expect("it can be logged");
    client
}

async fn order(shop: &Client, item: &'static str) {
    let insert = move |shop: &watchkeeper::sqlite::rusqlite::Transaction<'_>| {
        Ok(shop.execute("INSERT INTO orders(item) VALUES (?1)", [item])?)
    };
    shop.write(&open::cx(), insert).await.expect("orders can be written");
}

async fn stores(folder: &Path) -> Stores {
    open::stores(&format!("sqlite:{}", folder.join("state.db").display())).await.expect("a file can be made")
}

async fn stream(folder: &Path, reported: mpsc::Sender<String>) -> Stream {
    let address = format!("sqlite:{}", folder.join("shop.db").display());
    let source = open::source(&address, "shop", "orders").await.expect("it is logged");
    let at_once = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
    let stream = Stream::new("orders", source).start_at(StartAt::Oldest).handlers(at_once);
    stream.configure(|settings| settings.checkpoint.every = Duration::from_millis(10)).on(
        "orders",
        Operations::ANY,
        move |change| {
            let reported = reported.clone();
            async move {
                let item = change.get(&["after", "item"])?;
                reported.send(format!("{item:?}")).await.map_err(HandlerError::retry)
            }
        },
    )
}

async fn start(folder: &Path, reported: mpsc::Sender<String>) -> Watch {
    let builder = Watchkeeper::builder("shop").store(stores(folder).await).lease(LEASE);
    builder.stream(stream(folder, reported).await).start().await.expect("the settings are right")
}

/// What is started by the test below, in a process of its own; without the variable there is nothing to do.
#[tokio::test]
async fn other_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (reported, mut arrived) = mpsc::channel(10);
    let watch = start(Path::new(&folder), reported).await;
    // Ends with the one who started it, at the latest.
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    tokio::select! {
        biased;
        _ = parent => {}
        () = async { while let Some(item) = arrived.recv().await { println!("\nitem={item}"); } } => {}
    }
    drop(watch);
}

#[tokio::test]
async fn a_killed_process_is_relieved_long_before_its_lease_expires() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let shop = shop(folder.path()).await;
    order(&shop, "rope").await;
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--exact", "builder::other_process", "--nocapture"]).env(FOLDER, folder.path());
    let mut first = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program starts");
    let mut lines = BufReader::new(first.stdout.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("rope"))), "the first has the watch");

    let (reported, mut arrived) = mpsc::channel(10);
    let second = start(folder.path(), reported).await;
    let mut status = second.status("orders").expect("the stream is there");
    while status.see().holder.is_none() {
        status.changed().await.expect("the instance is running");
    }
    // It has seen the holder, and has this long to be answered by it.
    let early = tokio::time::timeout(Duration::from_millis(500), arrived.recv()).await;
    assert!(early.is_err(), "it stands by");

    first.kill().expect("it is our own child");
    let killed = Instant::now();
    order(&shop, "lamp").await;
    while !arrived.recv().await.expect("the handlers live as long as their stream").contains("lamp") {}
    assert!(killed.elapsed() < LEASE / 4, "it took {:?}", killed.elapsed());
    first.wait().expect("it is our own child");
    second.shutdown().await.expect("it had joined");
}

#[tokio::test]
async fn a_stream_is_moved_back_over_what_it_has_delivered() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let shop = shop(folder.path()).await;
    let (reported, mut arrived) = mpsc::channel(10);
    let watch = start(folder.path(), reported).await;
    let mut status = watch.status("orders").expect("the stream is there");
    let mut before = None;
    for item in ["rope", "lamp", "tar"] {
        order(&shop, item).await;
        assert!(arrived.recv().await.expect("the handlers live as long as their stream").contains(item));
        // Each has a checkpoint of its own.
        while status.see().position == before {
            status.changed().await.expect("the instance is running");
        }
        before = status.see().position.clone();
    }
    let orders = watch.operate("orders").expect("the stream is there");
    let refused = orders.rewind(Back::Changes(20)).await.expect_err("there were not so many");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    orders.rewind(Back::Changes(2)).await.expect("the history reaches back so far");
    for item in ["lamp", "tar"] {
        assert!(arrived.recv().await.expect("the handlers live as long as their stream").contains(item));
    }
    watch.shutdown().await.expect("it had joined");
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    shop(folder.path()).await;
    let reported = || mpsc::channel(1).0;
    let builder = || Watchkeeper::builder("shop");
    let graded = HandlerSettings { grade: Grade::Transactional, ..HandlerSettings::default() };
    let (any, short) = ("0.0.0.0:0".parse().expect("an address"), Duration::from_millis(1));
    let stream = || stream(folder.path(), reported());
    let store = || stores(folder.path());
    for (builder, cause) in [
        (builder().stream(stream().await), "no store"),
        (builder().store(store().await), "no stream"),
        (builder().store(store().await).stream(stream().await.handlers(graded)), "transactional"),
        (builder().store(store().await).stream(stream().await).lease(short), "100 ms"),
        (builder().store(store().await).stream(stream().await.concurrency(0)), "concurrency"),
        (builder().store(store().await).stream(stream().await).configure(|all| all.name.clear()), "no name"),
        (
            builder()
                .store(store().await)
                .stream(stream().await)
                .peers(watchkeeper::peers::Settings { listen: any, ..watchkeeper::peers::Settings::default() }),
            "0.0.0.0",
        ),
    ] {
        let error = builder.start().await.expect_err(cause);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(cause), "{error} does not say {cause:?}");
        assert!(error.to_string().contains("]; "), "{error} has no remedy");
    }
}

#[tokio::test]
async fn the_defaults_are_the_hosts_name_and_peers_on_this_machine() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    shop(folder.path()).await;
    let watch = start(folder.path(), mpsc::channel(1).0).await;
    let instance = watch.running().instance();
    let address = instance.address.clone().expect("it listens for peers");
    assert!(instance.seams.peers.is_local(&address), "{address}");
    assert!(!instance.settings.name.is_empty());
    let alone = Watchkeeper::builder("alone").named("first").without_peers().store(stores(folder.path()).await);
    let alone = alone.stream(stream(folder.path(), mpsc::channel(1).0).await).start().await.expect("it starts");
    let instance = alone.running().instance();
    assert_eq!((instance.settings.name.as_str(), &instance.address), ("first", &None));
}

#[tokio::test]
async fn it_runs_until_it_is_reported_to_end_and_then_releases() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    shop(folder.path()).await;
    let watch = start(folder.path(), mpsc::channel(1).0).await;
    let mut status = watch.status("orders").expect("the stream is there");
    let on_watch = async move {
        while status.see().state != ListenerState::Running {
            status.changed().await.expect("the instance is running");
        }
    };
    watch.until(on_watch).await.expect("it had joined");
    // Within a second lease only because the first one was released.
    let (reported, mut arrived) = mpsc::channel(1);
    let second = start(folder.path(), reported).await;
    order(&shop(folder.path()).await, "rope").await;
    let arrived = tokio::time::timeout(LEASE / 2, arrived.recv()).await.expect("the lease was released");
    assert_eq!(arrived.as_deref(), Some("Some(Str(\"rope\"))"));
    second.shutdown().await.expect("it had joined");
}

#[tokio::test]
async fn the_status_of_a_running_stream_serialises_with_position_and_lag() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let shop = shop(folder.path()).await;
    let (reported, mut arrived) = mpsc::channel(1);
    let watch = start(folder.path(), reported).await;
    order(&shop, "rope").await;
    arrived.recv().await.expect("the handlers live as long as their stream");
    let mut status = watch.status("orders").expect("the stream is there");
    while status.see().position.is_none() {
        status.changed().await.expect("the instance is running");
    }
    let seen = status.see().clone();
    let json = serde_json::to_value(&seen).expect("a status is data");
    assert_eq!((&json["stream"], &json["state"], &json["epoch"]), (&json!("orders"), &json!("running"), &json!(1)));
    assert_eq!((&json["halted"], &json["openings"], &json["last_error"]), (&json!(false), &json!(1), &json!(null)));
    let position: Position = serde_json::from_value(json["position"].clone()).expect("it is a position");
    assert_eq!(ChangeLog::number(&position).expect("it is one of a SQLite log"), 1);
    let lag: Duration = serde_json::from_value(json["lag"].clone()).expect("it is a duration");
    assert_eq!(Some(lag), seen.lag, "one change is committed, so there is a lag");
    watch.shutdown().await.expect("it had joined");
}

#[tokio::test]
async fn an_unknown_address_is_refused_without_repeating_its_secrets() {
    for address in ["oracle://scott:tiger@db/shop", "state.db", ""] {
        let error = open::stores(address).await.expect_err("there is no such backend");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(!error.to_string().contains("tiger"), "{error}");
        assert!(open::source(address, "shop", "orders").await.is_err());
    }
}
