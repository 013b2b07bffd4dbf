//! What is special about MongoDB: elections, open transactions, runtimes, users.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watchkeeper_core::options::WrittenSetting;
use watchkeeper_core::{
    AcquireRequest, Acquired, Backend, Candidate, CheckpointStore, CheckpointWrite, Claim, Commit, Entropy, Epoch,
    ErrorKind, Facts, Grant, Lease, LeaseKey, LeaseStore, Options, Origin, Reason, Renewal, Result,
};
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::{Checkpoints, Client, Config, Leases, MongoDb};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::support::{Base, assert_error, block_on, cx, edit, fresh_name, shared, url};

/// A lease that outlasts its test.
const LONG: Duration = Duration::from_secs(60);

fn ask(key: &str, ttl: Duration) -> AcquireRequest {
    let entropy = Entropy::from_system();
    let candidate =
        Candidate { instance: entropy.instance(), name: "a".to_owned(), address: None, tenure: entropy.tenure() };
    AcquireRequest { key: LeaseKey::new(key), candidate, ttl, floor: Epoch::ZERO, break_holder: None }
}

async fn granted(leases: &Leases, ask: &AcquireRequest) -> Grant {
    match leases.try_acquire(&cx(), ask).await.expect("the server answers") {
        Acquired::Granted { grant, .. } => grant,
        Acquired::Held(holder) => panic!("a free key is held by {holder:?}"),
    }
}

fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
    CheckpointWrite {
        grant: grant.clone(),
        seq,
        position: None,
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts::default(),
        ledger: Vec::new(),
        resolve: Vec::new(),
    }
}

/// Whatever someone wrote into a lease: it decides about nobody's writes, so it is granted as one that was forgotten, and the other
/// streams do not notice.
#[test]
fn a_garbled_lease_is_granted_again_and_spares_the_others() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let leases = Leases::open(&cx(), client.clone()).await.expect("the collections can be made");
        for garbled in [
            doc! { "epoch": "garbage" },
            doc! { "until": "garbage" },
            doc! { "holder": "garbage" },
            doc! { "holder": { "name": 7 } },
            doc! { "previous": "garbage" },
            doc! { "epoch": "garbage", "until": 7, "holder": [], "previous": { "epoch": "garbage" } },
        ] {
            let (ttl, other) = (Duration::from_millis(300), granted(&leases, &ask(&fresh_name(), LONG)).await);
            let key = fresh_name();
            granted(&leases, &ask(&key, ttl)).await;
            edit(&client, "watchkeeper_leases", &LeaseKey::new(key.as_str()), garbled.clone()).await;
            let holders =
                leases.holders(&cx(), &[LeaseKey::new(key.as_str()), other.key.clone()]).await.expect("an answer");
            assert_eq!(holders[1].as_ref().map(|holder| holder.epoch), Some(other.epoch), "{garbled}");
            // The claim of the checkpoint answers with the newest epoch, and the lease is asked for above it.
            let above = AcquireRequest { floor: Epoch(7), ..ask(&key, LONG) };
            let grant = loop {
                match leases.try_acquire(&cx(), &above).await.unwrap_or_else(|error| panic!("{garbled}: {error}")) {
                    Acquired::Granted { grant, .. } => break grant,
                    Acquired::Held(holder) => cx().sleep(holder.remaining).await,
                }
            };
            assert!(grant.epoch > Epoch(7), "{garbled}: {grant:?}");
            let renewed = leases.renew(&cx(), &[Lease { grant: grant.clone(), ttl: LONG }]).await.expect("an answer");
            assert_eq!(renewed, [Renewal::Held], "{garbled}");
            let holders = leases.holders(&cx(), std::slice::from_ref(&grant.key)).await.expect("an answer");
            assert_eq!(holders[0].as_ref().map(|holder| holder.epoch), Some(grant.epoch), "{garbled}");
        }
    });
}

/// Repeats a call unchanged, as the engine does, while the servers elect.
async fn insist<T>(mut call: impl AsyncFnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {
                assert!(begun.elapsed() < Duration::from_secs(30), "no answer after an election: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("an election is no {error}"),
        }
    }
}

#[test]
fn lease_and_checkpoint_go_on_through_elections_under_the_same_epoch() {
    let set = ReplicaSet::with(&ReplicaSetSettings {
        nodes: 3,
        election_timeout_ms: Some(1_000),
        ..ReplicaSetSettings::default()
    });
    block_on(async {
        let base = Base::on(&set);
        let client = base.client().await;
        let leases = Leases::open(&cx(), client.clone()).await.expect("the collections can be made");
        let checkpoints = Checkpoints::open(&cx(), client).await.expect("the collections can be made");
        let ttl = Duration::from_secs(60);
        let grant = granted(&leases, &ask("orders", ttl)).await;
        checkpoints.claim(&cx(), &grant).await.expect("it is free");
        let lease = [Lease { grant: grant.clone(), ttl }];
        for (seq, election) in
            [ReplicaSet::step_down as fn(&ReplicaSet), |set| _ = set.kill_primary()].iter().enumerate()
        {
            election(&set);
            let bounded = || cx().within(Duration::from_secs(2));
            assert_eq!(insist(async || leases.renew(&bounded(), &lease).await).await, [Renewal::Held]);
            let next = [write(&grant, seq as u64 + 1)];
            let answers = insist(async || checkpoints.commit(&bounded(), &next).await).await;
            assert!(matches!(answers[..], [Commit::Committed | Commit::AlreadyDone]), "{answers:?}");
        }
        let stored = checkpoints.load(&cx(), &grant.key).await.expect("two of three are a majority");
        assert_eq!(stored.map(|stored| (stored.epoch, stored.seq)), Some((grant.epoch, 2)));
    });
}

/// Opens a transaction that has written the checkpoint of `grant`, as a holder that died in the middle of one leaves it.
async fn leave_open(client: &Client, grant: &Grant) -> watchkeeper_mongodb::mongodb::ClientSession {
    let driver = client.driver(&cx()).await.expect("it is open");
    let checkpoints =
        client.database(&cx()).await.expect("it is open").collection::<Document>("watchkeeper_checkpoints");
    let mut session = driver.start_session().await.expect("a session can be started");
    let id = session.id().get("id").cloned().expect("a session has an id");
    let key = doc! { "_id": grant.key.as_str() };
    checkpoints.update_one(key.clone(), doc! { "$set": { "sessions": [id] } }).await.expect("it is registered");
    session.start_transaction().await.expect("a transaction can be started");
    let touch = checkpoints.update_one(key, doc! { "$set": { "seq": 1_i64 } });
    touch.session(&mut session).await.expect("the document is there");
    session
}

#[test]
fn a_claim_ends_the_open_transaction_of_the_one_it_replaces() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let checkpoints = Checkpoints::open(&cx(), client.clone()).await.expect("the collections can be made");
        let entropy = Entropy::from_system();
        let key = LeaseKey::new("orders");
        let old = Grant { key: key.clone(), tenure: entropy.tenure(), epoch: Epoch(1) };
        let new = Grant { key, tenure: entropy.tenure(), epoch: Epoch(2) };
        checkpoints.claim(&cx(), &old).await.expect("it is free");
        let mut session = leave_open(&client, &old).await;
        let begun = Instant::now();
        assert_eq!(checkpoints.claim(&cx(), &new).await.expect("nobody is in the way"), Claim::Claimed(None));
        assert!(begun.elapsed() < Duration::from_secs(1), "the claim took {:?}", begun.elapsed());
        assert!(session.commit_transaction().await.is_err(), "the old transaction cannot be committed any more");
        assert_eq!(checkpoints.commit(&cx(), &[write(&old, 1)]).await.expect("an answer"), [Commit::Fenced]);
        assert_eq!(checkpoints.commit(&cx(), &[write(&new, 1)]).await.expect("an answer"), [Commit::Committed]);
    });
}

#[test]
fn a_separate_client_needs_nothing_of_the_runtime_that_made_it() {
    let base = Base::new();
    let (leases, grant, separate) = block_on(async {
        let leases = Leases::open(&cx(), base.client().await).await.expect("the collections can be made");
        let grant = granted(&leases, &ask("orders", Duration::from_secs(60))).await;
        let separate = leases.separate(&cx()).await.expect("nothing is sent");
        (leases, grant, separate)
    });
    // The runtime that all of the above lives on is gone; a keeper's thread must not notice.
    let renewed = block_on(async {
        let lease = [Lease { grant, ttl: Duration::from_secs(60) }];
        separate.renew(&cx(), &lease).await.expect("it has connections of its own")
    });
    assert_eq!(renewed, [Renewal::Held]);
    drop(leases);
}

#[test]
fn asking_for_a_held_lease_writes_nothing() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        let leases = Leases::open(&cx(), client.clone()).await.expect("the collections can be made");
        granted(&leases, &ask("orders", Duration::from_secs(60))).await;
        let oplog =
            client.driver(&cx()).await.expect("it is open").database("local").collection::<Document>("oplog.rs");
        let ours = doc! { "ns": format!("{}.watchkeeper_leases", client.config().database()) };
        let before = oplog.count_documents(ours.clone()).await.expect("the oplog can be read");
        assert!(before > 0, "a grant is written");
        for _ in 0..5 {
            let answer = leases.try_acquire(&cx(), &ask("orders", Duration::from_secs(60))).await;
            assert!(matches!(answer, Ok(Acquired::Held(_))), "{answer:?}");
        }
        assert_eq!(oplog.count_documents(ours).await.expect("the oplog can be read"), before);
    });
}

#[test]
fn collections_of_a_newer_version_are_refused() {
    let base = Base::new();
    block_on(async {
        let client = base.client().await;
        Leases::open(&cx(), client.clone()).await.expect("the collections can be made");
        let meta = client.database(&cx()).await.expect("it is open").collection::<Document>("watchkeeper_meta");
        let newer = doc! { "$set": { "version": 99_i64 } };
        meta.update_one(doc! { "_id": "identity" }, newer).await.expect("it can be written");
        assert_error(Leases::open(&cx(), client).await, ErrorKind::Config, "version 99");
    });
}

#[test]
fn the_identity_is_of_the_database_and_not_of_the_url() {
    let (base, other) = (Base::new(), Base::new());
    block_on(async {
        let open = async |base: &Base| Checkpoints::open(&cx(), base.client().await).await.expect("it can be opened");
        let (a, b, c) = (open(&base).await, open(&base).await, open(&other).await);
        assert_eq!(a.store_identity(), b.store_identity());
        assert_eq!(a.identity(&cx()).await.expect("it can be read"), a.store_identity());
        assert_ne!(a.store_identity(), c.store_identity());
    });
}

#[test]
fn users_are_let_in_by_their_password_which_is_never_shown() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let key = folder.path().join("key");
    std::fs::write(&key, "c2VjcmV0IG9mIHRoZSBzZXQ=").expect("a file can be written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let arguments = vec!["--auth".to_owned(), "--keyFile".to_owned(), key.display().to_string()];
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    block_on(async {
        let direct = format!("mongodb://{}/?directConnection=true", set.hosts()[0]);
        let first = watchkeeper_mongodb::mongodb::Client::with_uri_str(direct).await.expect("the server is there");
        let user = doc! { "createUser": "keeper", "pwd": "hunter2", "roles": ["root"] };
        first.database("admin").run_command(user).await.expect("the first user can be made from here");
        let url = |password: &str| {
            let rest = url(&set, &fresh_name()).replace("mongodb://", "");
            format!("mongodb://keeper:{password}@{rest}&authSource=admin")
        };
        let wrong = Client::open(&cx(), Config::new(url("hunter3")).expect("a URL")).await;
        assert!(!format!("{wrong:?}").contains("hunter3"), "{wrong:?}");
        let error = match wrong {
            Err(error) => error,
            // Greeting is allowed to everyone; nothing else is.
            Ok(client) => Leases::open(&cx(), client).await.expect_err("the password is wrong"),
        };
        assert!(!format!("{error} {error:?}").contains("hunter3"), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let client = Client::open(&cx(), Config::new(url("hunter2")).expect("a URL")).await.expect("it is right");
        assert!(!format!("{client:?}").contains("hunter2"), "{client:?}");
        Leases::open(&cx(), client).await.expect("this user may do it");
    });
}

#[test]
fn a_store_is_named_by_its_url_in_a_file() {
    block_on(async {
        let origin = || Origin::new("watchkeeper.toml:3");
        let mut options = Options::new("group.store", origin());
        options.insert("url", WrittenSetting::text(url(shared(), &fresh_name()), origin()));
        options.insert("timeout", WrittenSetting::text("3s", origin()));
        let offer = MongoDb.store(&cx(), &mut options).await.expect("the server is there");
        options.finish().expect("all settings are known");
        assert!(offer.leases.is_some() && offer.checkpoints.is_some() && offer.records.is_some());

        let mut options = Options::new("group.store", origin());
        options.insert("url", WrittenSetting::text("mongodb://user:hunter2@:x/y", origin()));
        let error = MongoDb.store(&cx(), &mut options).await.expect_err("this is no URL");
        assert!(error.to_string().starts_with("watchkeeper.toml:3: group.store.url: "), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    });
}

#[test]
fn a_check_of_the_store_changes_nothing_and_tells_of_a_set_of_one() {
    block_on(async {
        let (origin, name) = (Origin::new("watchkeeper.toml:3"), fresh_name());
        let mut options = Options::new("group.store", origin.clone());
        options.insert("url", WrittenSetting::text(url(shared(), &name), origin));
        let findings = MongoDb.check_store(&cx(), &mut options).await.expect("the server is there");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].what.contains("has 1 of the three"), "{findings:?}");
        let client = Client::open(&cx(), Config::new(url(shared(), &name)).expect("a URL")).await.expect("it is there");
        let made = client.database(&cx()).await.expect("it is open").list_collection_names().await.expect("an answer");
        assert!(made.is_empty(), "a check has made {made:?}");
    });
}

#[test]
fn a_release_wakes_another_client_within_moments() {
    let base = Base::new();
    block_on(async {
        let a = Leases::open(&cx(), base.client().await).await.expect("the collections can be made");
        let b: Arc<dyn LeaseStore> = Arc::new(Leases::open(&cx(), base.client().await).await.expect("they are there"));
        let mut slowest = Duration::ZERO;
        for _ in 0..10 {
            let grant = granted(&a, &ask("orders", Duration::from_secs(60))).await;
            let mut wakeups = b.wakeups(&cx()).await.expect("the collection is there");
            a.release(&cx(), &grant).await.expect("it is ours");
            let begun = Instant::now();
            let soon = cx().within(Duration::from_secs(5));
            soon.run(wakeups.next(&soon)).await.expect("a release is told");
            slowest = slowest.max(begun.elapsed());
        }
        assert!(slowest < Duration::from_millis(500), "a release was told only after {slowest:?}");
    });
}

#[test]
fn a_server_that_stops_answering_is_not_reported_as_one_that_is_not_the_primary() {
    let set = ReplicaSet::start(1);
    block_on(async {
        let soon = "connectTimeoutMS=500&serverSelectionTimeoutMS=1000";
        let config = Config::new(format!("{}&{soon}", url(&set, &fresh_name()))).expect("the URL is one");
        let client = Client::open(&cx(), config).await.expect("the server is there");
        let driver = client.driver(&cx()).await.expect("it is open").clone();
        // A call that is on its way when the driver's monitor loses touch with the server.
        let slow = doc! { "hello": 1, "topologyVersion": topology(&driver).await, "maxAwaitTimeMS": 60_000_i64 };
        let call = tokio::spawn(async move { driver.database("admin").run_command(slow).await });
        set.freeze(0);
        let failed = call.await.expect("it does not panic").expect_err("the server does not answer");
        set.go_on(0);
        // Of a write nobody knows whether it happened.
        let written = client.error(failed.clone(), watchkeeper_mongodb::CallPurpose::Writing);
        assert_eq!(written.kind(), ErrorKind::Unknown, "{written}");
        let error = client.error(failed, watchkeeper_mongodb::CallPurpose::Reading);
        assert!(!error.to_string().contains("not the primary"), "{error}");
        assert_error::<()>(Err(error), ErrorKind::Unavailable, "the driver lost touch with the server");
    });
}

async fn topology(driver: &watchkeeper_mongodb::mongodb::Client) -> Document {
    let hello = driver.database("admin").run_command(doc! { "hello": 1 }).await.expect("the server answers");
    hello.get_document("topologyVersion").expect("it has one").clone()
}
