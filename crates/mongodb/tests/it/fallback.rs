//! One cluster by several URLs.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use watchkeeper_core::{ErrorKind, Limits, Source, StartAt};
use watchkeeper_mongodb::mongodb::bson::doc;
use watchkeeper_mongodb::{Config, FallbackEndpoints, View};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use crate::source::{LIMITS, Shop, read};
use crate::support::{assert_error, block_on, cx};

/// A URL at which nobody answers, which is told soon.
fn nowhere(database: &str) -> Config {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).expect("a port");
    let url = format!("mongodb://127.0.0.1:{}/{database}?replicaSet=rs0&serverSelectionTimeoutMS=300", port.port());
    Config::new(url).expect("it is one")
}

fn endpoints(places: Vec<Config>) -> FallbackEndpoints {
    FallbackEndpoints::new(places, &View::collection("orders")).expect("there are some")
}

#[test]
fn the_first_url_that_works_is_read_from_the_position() {
    block_on(async {
        let shop = Shop::open().await;
        let database = shop.client.config().database().to_owned();
        let alone = endpoints(vec![shop.base.config()]);
        let pedigree = alone.identity(&cx()).await.expect("it answers");
        let mut stream = alone.open(&cx(), StartAt::Now).await.expect("it opens");
        shop.insert(doc! { "_id": 1 }).await;
        shop.insert(doc! { "_id": 2 }).await;
        let position = read(&mut *stream, 2).await[0].position();

        let two = endpoints(vec![nowhere(&database), shop.base.config()]);
        two.verify(&cx(), &position, &pedigree).await.expect("the second one works");
        assert_eq!(two.place(), Some(shop.client.place()));
        two.identity(&cx()).await.expect("it answers");
        let mut stream = two.open(&cx(), StartAt::After(position)).await.expect("it opens");
        assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"2"[..]));
    });
}

#[test]
fn after_five_rounds_without_a_change_it_stops_with_the_cause_of_each() {
    block_on(async {
        let shop = Shop::open().await;
        let database = shop.client.config().database().to_owned();
        let (one, two) = (nowhere(&database), nowhere(&database));
        let hosts = [one.place(), two.place()];
        let gone = endpoints(vec![one, two]);
        for round in 1..=5 {
            let error = gone.identity(&cx()).await.expect_err("nobody answers");
            let expected = if round < 5 { ErrorKind::Unavailable } else { ErrorKind::Config };
            assert_eq!(error.kind(), expected, "round {round}: {error}");
            assert!(hosts.iter().all(|host| error.message().contains(host)), "{error}");
        }
        // It is let in again later, with all rounds before it.
        let error = gone.identity(&cx()).await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn a_stream_begins_with_the_first_url_that_has_the_collection() {
    block_on(async {
        let shop = Shop::open().await;
        let database = shop.client.config().database().to_owned();
        let set = ReplicaSet::start(1);
        let without = Config::new(crate::support::url(&set, &database)).expect("it is one");
        let three = endpoints(vec![nowhere(&database), without.clone(), shop.base.config()]);
        three.identity(&cx()).await.expect("the third one has it");
        assert_eq!(three.place(), Some(shop.client.place()));
        three.open(&cx(), StartAt::Now).await.expect("it opens");
        let refused = endpoints(vec![without.clone(), without]).identity(&cx()).await;
        assert_error(refused, ErrorKind::Config, "there is no collection \"orders\"");
    });
}

#[test]
fn a_refused_connection_is_reported_as_such() {
    block_on(async {
        let place = nowhere("shop").place();
        let host = place.strip_suffix("/shop").expect("it ends so");
        let config = || {
            let mut config = Config::new(format!("mongodb://{host}/shop?replicaSet=rs0")).expect("it is one");
            config.timeout = Duration::from_secs(2);
            config
        };
        let cx = cx().within(Duration::from_secs(2));
        let error = endpoints(vec![config(), config()]).identity(&cx).await.expect_err("nobody answers");
        assert_eq!(error.message().matches("refused").count(), 2, "{error}");
    });
}

#[test]
fn a_delivered_change_makes_the_rounds_before_it_count_no_more() {
    block_on(async {
        let set = ReplicaSet::start(1);
        let shop = Shop::on(crate::support::Base::on(&set)).await;
        let url = format!("{}&serverSelectionTimeoutMS=300", shop.base.url());
        let one = endpoints(vec![Config::new(url).expect("it is one")]);
        let pedigree = one.identity(&cx()).await.expect("it answers");
        let mut stream = one.open(&cx(), StartAt::Now).await.expect("it opens");
        shop.insert(doc! { "_id": 1 }).await;
        let first = read(&mut *stream, 1).await[0].position();
        drop(stream);
        let fruitless = async |times: usize| {
            set.kill(0);
            for round in 0..times {
                let error = one.verify(&cx(), &first, &pedigree).await.expect_err("nobody answers");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{round}: {error}");
            }
            set.restart(0);
            set.primary();
            for _ in 0..100 {
                if one.verify(&cx(), &first, &pedigree).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("it does not come back");
        };
        fruitless(2).await;
        let shop = shop.again().await;
        let mut stream = one.open(&cx(), StartAt::After(first.clone())).await.expect("it opens");
        shop.insert(doc! { "_id": 2 }).await;
        read(&mut *stream, 1).await;
        drop(stream);
        set.kill(0);
        for round in 1..=5 {
            let kind = one.verify(&cx(), &first, &pedigree).await.expect_err("nobody answers").kind();
            assert_eq!(kind == ErrorKind::Config, round == 5, "round {round}");
        }
    });
}

#[test]
fn another_cluster_is_no_way_to_go_on() {
    block_on(async {
        let shop = Shop::open().await;
        let set = ReplicaSet::start(1);
        let other = Shop::on(crate::support::Base::on(&set)).await;
        let alone = endpoints(vec![shop.base.config()]);
        let pedigree = alone.identity(&cx()).await.expect("it answers");
        let mut stream = alone.open(&cx(), StartAt::Now).await.expect("it opens");
        shop.insert(doc! { "_id": 1 }).await;
        let position = read(&mut *stream, 1).await[0].position();
        let strangers = endpoints(vec![other.base.config(), other.base.config()]);
        let refused = strangers.verify(&cx(), &position, &pedigree).await;
        let named = |host: &str, cause: &str| format!("{host}: {cause}");
        let stranger = named(other.client.place(), "the checkpoint belongs to another cluster");
        assert_error(refused, ErrorKind::PositionLost, &format!("2 URLs can be used: {stranger}"));
        // The own cluster may come back: what a stranger says is not the last word.
        let gone = nowhere("shop");
        let gone_named = named(&gone.place(), "no server could be reached");
        let away = endpoints(vec![gone, other.base.config()]);
        for round in 1..=5 {
            let refused = away.verify(&cx(), &position, &pedigree).await.expect_err("none leads on");
            assert_eq!(refused.kind() == ErrorKind::Config, round == 5, "round {round}: {refused}");
            assert!([&gone_named, &stranger].iter().all(|cause| refused.message().contains(*cause)), "{refused}");
            assert!(refused.advice().is_some(), "{refused}");
        }
    });
}

#[test]
fn the_first_url_is_gone_back_to() {
    block_on(async {
        let set = ReplicaSet::start(1);
        let shop = Shop::on(crate::support::Base::on(&set)).await;
        let database = shop.client.config().database().to_owned();
        // The same server by another way in, which is away at first.
        let door = Door::closed(&set);
        let first = Config::new(door.url(&database)).expect("it is one");
        let both = endpoints(vec![first, shop.base.config()]).come_back_after(Duration::from_millis(500));
        both.identity(&cx()).await.expect("the second one answers");
        let mut stream = both.open(&cx(), StartAt::Now).await.expect("it opens");
        assert_eq!(both.place(), Some(shop.client.place()));
        door.open();
        let mut error = None;
        for _ in 0..100 {
            let limits = Limits { wait: Duration::from_millis(100), ..LIMITS };
            if let Err(reported) = stream.next_batch(&cx(), limits).await {
                error = Some(reported);
                break;
            }
        }
        assert_error(error.map_or(Ok(()), Err), ErrorKind::Unavailable, "the first URL answers again");
        both.identity(&cx()).await.expect("the first one answers");
        assert_ne!(both.place(), Some(shop.client.place()));
    });
}

/// Another way to a server: connections are passed on once it is open.
struct Door {
    server: String,
    listener: std::sync::Mutex<Option<TcpListener>>,
    port: u16,
}

impl Door {
    fn closed(set: &ReplicaSet) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        // Whoever connects waits in the queue, without an answer.
        Self { server: set.hosts()[0].clone(), listener: std::sync::Mutex::new(Some(listener)), port }
    }

    fn url(&self, database: &str) -> String {
        let timeouts = "serverSelectionTimeoutMS=300&connectTimeoutMS=300&heartbeatFrequencyMS=500";
        format!("mongodb://127.0.0.1:{}/{database}?directConnection=true&{timeouts}", self.port)
    }

    fn open(&self) {
        let listener = self.listener.lock().expect("nobody panicked").take().expect("it is opened once");
        let server = self.server.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = std::net::TcpStream::connect(&server) else { return };
                pass(client.try_clone(), server.try_clone());
                pass(Ok(server), Ok(client));
            }
        });
    }
}

fn pass(from: std::io::Result<std::net::TcpStream>, to: std::io::Result<std::net::TcpStream>) {
    let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
}
