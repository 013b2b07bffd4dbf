//! Operating a stream from a program.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use watchkeeper::core::memory::{Checkpoints, Leases, Log, NewChange, RecordStore};
use watchkeeper::{
    ErrorKind, HandlerError, HandlerSettings, ListenerState, OnReject, Operation, Operations, Park, Seams, SourceTime,
    StartAt, StoreIdentity, Stores, Stream, StreamActivity, StreamOperator, StreamStatus, Watch, Watchkeeper,
};

struct Shop {
    log: Log,
    stores: Stores,
}

impl Shop {
    fn new() -> Self {
        let seams = Seams::system();
        let stores = Stores {
            leases: Arc::new(Leases::new(Arc::clone(&seams.clock))),
            checkpoints: Arc::new(Checkpoints::new(StoreIdentity(seams.entropy.uuid()))),
            records: Arc::new(RecordStore::new(Arc::clone(&seams.clock))),
        };
        Self { log: Log::new("shop"), stores }
    }

    fn order(&self, item: &'static str) {
        let change = NewChange {
            operation: Operation::Insert,
            namespace: "orders".to_owned(),
            key: Some(item.into()),
            body: item.into(),
            first_half: false,
        };
        self.log.append(change, SourceTime(0));
    }

    /// An instance whose handler tells what it has, and rejects what is forbidden. It calls that fatal after a `!`, and after a `?`
    /// its target is away.
    async fn start(&self, name: &str, on_reject: OnReject, forbidden: &Arc<std::sync::Mutex<&'static str>>) -> Started {
        let (reported, arrived) = mpsc::channel(10);
        let at_once = HandlerSettings { settle: Duration::ZERO, ..HandlerSettings::default() };
        let forbidden = Arc::clone(forbidden);
        let stream = Stream::new("orders", Arc::new(self.log.clone()))
            .start_at(StartAt::Oldest)
            .handlers(at_once)
            .on_reject(on_reject)
            .configure(|settings| {
                settings.checkpoint.every = Duration::from_millis(10);
                settings.retry.fatal_instances = 10;
                settings.retry.backoff.max = Duration::from_millis(50);
            })
            .on("orders", Operations::ANY, move |change| {
                let (reported, forbidden) = (reported.clone(), Arc::clone(&forbidden));
                async move {
                    let item = String::from_utf8_lossy(change.body()).into_owned();
                    let forbidden = *forbidden.lock().expect("nobody panics with it");
                    match forbidden.strip_suffix(item.as_str()) {
                        Some("") => return Err(HandlerError::reject(std::io::Error::other("forbidden"))),
                        Some("!") => return Err(HandlerError::fatal(std::io::Error::other("fatal"))),
                        Some("?") => return Err(HandlerError::retry(std::io::Error::other("away"))),
                        _ => {}
                    }
                    reported.send(item).await.map_err(HandlerError::retry)
                }
            });
        let builder = Watchkeeper::builder("shop").store(self.stores.clone()).named(name).without_peers();
        let builder = builder.lease(Duration::from_secs(2)).configure(|settings| {
            settings.heartbeat_every = Duration::from_millis(20);
        });
        let watch = builder.stream(stream).start().await.expect("the settings are right");
        let operator = watch.operate("orders").expect("there is such a stream");
        assert!(watch.operate("nothing").is_none());
        Started { watch, operator, arrived }
    }
}

struct Started {
    watch: Watch,
    operator: StreamOperator,
    arrived: mpsc::Receiver<String>,
}

impl Started {
    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(Duration::from_secs(20), self.arrived.recv()).await.expect("it comes in time");
        next.expect("the handlers live as long as their stream")
    }

    async fn until_status(&self, what: &str, is_so: impl Fn(&StreamStatus) -> bool) {
        let status = self.watch.status("orders").expect("the stream is there");
        until(what, async || is_so(&status.get())).await;
    }

    async fn until_holding(&self, holds: bool) {
        let mut status = self.watch.status("orders").expect("the stream is there");
        while status.see().epoch.is_some() != holds {
            status.changed().await.expect("the instance is running");
        }
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("waited too long: {what}"));
}

#[tokio::test]
async fn a_stream_is_paused_resumed_and_handed_over() {
    let (shop, allowed) = (Shop::new(), Arc::default());
    let mut first = shop.start("first", OnReject::Stop, &allowed).await;
    shop.order("rope");
    assert_eq!(first.next().await, "rope");
    first.operator.pause().await.expect("the store answers");
    first.until_holding(false).await;
    assert!(first.operator.is_paused().await.expect("the store answers"));
    shop.order("lamp");
    assert_eq!(first.operator.resume().await.expect("the store answers"), None);
    assert_eq!(first.next().await, "lamp");

    let mut second = shop.start("second", OnReject::Stop, &allowed).await;
    let refused = second.operator.hand_over(Some("third")).await.expect_err("nobody has this name");
    assert!(refused.kind() == ErrorKind::Config && refused.to_string().contains("no instance \"third\""), "{refused}");
    first.until_holding(true).await;
    until("the second one is asked for", async || {
        // Also one that has no watch can ask whoever has it, as soon as it is known that it can run the stream.
        second.operator.hand_over(Some("second")).await.is_ok_and(|asked| asked)
    })
    .await;
    second.until_holding(true).await;
    shop.order("tar");
    assert_eq!(second.next().await, "tar");
    assert!(!second.operator.hand_over(Some("second")).await.expect("the store answers"), "it has it already");
}

#[tokio::test]
async fn dead_letters_are_listed_replayed_and_purged() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("rope"));
    let mut only = shop.start("only", OnReject::DeadLetter { park: Park::Key }, &forbidden).await;
    for item in ["rope", "lamp"] {
        shop.order(item);
    }
    assert_eq!(only.next().await, "lamp");
    let letters = async || only.operator.dead_letters().await.expect("the store answers");
    until("it is a dead letter", async || letters().await.len() == 1).await;
    assert!(letters().await[0].entry.cause.contains("forbidden"));
    *forbidden.lock().expect("nobody panics with it") = "tar";
    only.operator.replay(&[]).await.expect("the store answers");
    until("it is settled", async || letters().await.is_empty()).await;
    shop.order("tar");
    until("the next one is a dead letter", async || letters().await.len() == 1).await;
    let number = letters().await[0].number;
    only.operator.purge(&[number]).await.expect("the store answers");
    until("it is given up", async || letters().await.is_empty()).await;
    assert_eq!(only.next().await, "rope", "what was replayed was delivered, what was purged was not");
    assert!(only.arrived.try_recv().is_err());
}

#[tokio::test]
async fn a_halt_is_lifted() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("rope"));
    let mut only = shop.start("only", OnReject::Stop, &forbidden).await;
    shop.order("rope");
    let mut status = only.watch.status("orders").expect("the stream is there");
    while !status.see().halted {
        status.changed().await.expect("the instance is running");
    }
    *forbidden.lock().expect("nobody panics with it") = "";
    let lifted = only.operator.resume().await.expect("the stores answer").expect("it was halted");
    assert!(lifted.cause.contains("forbidden"), "{}", lifted.cause);
    assert_eq!(only.next().await, "rope");
}

#[tokio::test]
async fn a_change_that_halts_is_skipped() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("rope"));
    let mut only = shop.start("only", OnReject::Stop, &forbidden).await;
    shop.order("lamp");
    assert_eq!(only.next().await, "lamp");
    for item in ["rope", "tar"] {
        shop.order(item);
    }
    only.until_status("it is halted", |status| status.halted).await;
    let skipped = only.operator.skip("ropes are sold out").await.expect("a change follows");
    assert_eq!(skipped.len(), 1);
    assert_eq!(only.next().await, "tar");
    only.until_status("it is halted no more", |status| !status.halted).await;
    let delivered = |status: &StreamStatus| status.lag == Some(Duration::ZERO);
    only.until_status("all is delivered", delivered).await;
    let refused = only.operator.skip("nothing is left").await.expect_err("no change follows");
    assert!(refused.kind() == ErrorKind::Config && refused.to_string().contains("no change after"), "{refused}");
}

#[tokio::test]
async fn a_halt_is_shown_by_instances_that_start_later() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("rope"));
    let first = shop.start("first", OnReject::Stop, &forbidden).await;
    shop.order("rope");
    first.until_status("it is halted", |status| status.halted).await;
    first.watch.shutdown().await.expect("it has joined");

    let mut second = shop.start("second", OnReject::Stop, &forbidden).await;
    let names_cause = |status: &StreamStatus| status.last_error.as_ref().is_some_and(|it| it.contains("forbidden"));
    let is_shown =
        |status: &StreamStatus| status.halted && status.state == ListenerState::Stopped && names_cause(status);
    second.until_status("the halt of the first one is shown", is_shown).await;
    *forbidden.lock().expect("nobody panics with it") = "";
    second.operator.resume().await.expect("the stores answer").expect("it was halted");
    assert_eq!(second.next().await, "rope");
    second.until_status("it is halted no more", |status| !status.halted).await;
}

#[tokio::test]
async fn instances_that_gave_up_try_a_resumed_stream_at_once() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("!rope"));
    let mut first = shop.start("first", OnReject::Stop, &forbidden).await;
    let mut second = shop.start("second", OnReject::Stop, &forbidden).await;
    shop.order("rope");
    for instance in [&first, &second] {
        let has_given_up = |status: &StreamStatus| status.epoch.is_none() && status.last_error.is_some();
        instance.until_status("it has given up", has_given_up).await;
    }
    *forbidden.lock().expect("nobody panics with it") = "";
    assert_eq!(first.operator.resume().await.expect("the store answers"), None);
    let arrived = tokio::time::timeout(Duration::from_secs(20), async {
        tokio::select! {
            item = first.arrived.recv() => item,
            item = second.arrived.recv() => item,
        }
    });
    assert_eq!(arrived.await.expect("nobody waits for the end of a bar").as_deref(), Some("rope"));
}

#[tokio::test]
async fn a_status_says_that_a_target_is_away() {
    let shop = Shop::new();
    let forbidden = Arc::new(std::sync::Mutex::new("?lamp"));
    let mut only = shop.start("only", OnReject::Stop, &forbidden).await;
    shop.order("rope");
    assert_eq!(only.next().await, "rope");
    only.until_status("it runs", |status| status.doing == StreamActivity::Running && status.trouble.is_none()).await;
    shop.order("lamp");
    let is_away = |status: &StreamStatus| {
        let trouble = status.trouble.as_ref();
        status.doing == StreamActivity::Recovering
            && trouble.is_some_and(|it| it.error.contains("away") && it.attempts > 1)
    };
    only.until_status("its target is away", is_away).await;
    let lasts = |status: &StreamStatus| status.not_delivering >= Some(Duration::from_millis(200));
    only.until_status("it is said for how long", lasts).await;
    let lags = |status: &StreamStatus| status.lag >= Some(Duration::from_millis(200));
    only.until_status("it lags the longer the longer that lasts", lags).await;
    *forbidden.lock().expect("nobody panics with it") = "";
    assert_eq!(only.next().await, "lamp");
    let is_well = |status: &StreamStatus| {
        status.doing == StreamActivity::Running && status.trouble.is_none() && status.not_delivering.is_none()
    };
    only.until_status("it delivers again", is_well).await;
}
