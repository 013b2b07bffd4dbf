//! One cluster by several URLs, as the program reads it.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use watchkeeper_testkit::servers::mongodb::ReplicaSet;

use super::SourceFixture;
use crate::workspace::{Answer, Running, until};

/// A way to a server that can be shut and opened.
struct Door {
    port: u16,
    inside: Arc<Mutex<Inside>>,
}

/// Whether it is open, and the connections that pass through it.
#[derive(Default)]
struct Inside {
    is_open: bool,
    passing: Vec<TcpStream>,
}

impl Door {
    fn open_to(set: &ReplicaSet) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let inside = Arc::new(Mutex::new(Inside { is_open: true, ..Inside::default() }));
        let (server, shared) = (set.hosts()[0].clone(), Arc::clone(&inside));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut inside = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(server) = inside.is_open.then(|| TcpStream::connect(&server).ok()).flatten() else { continue };
                inside.passing.extend([&client, &server].into_iter().filter_map(|stream| stream.try_clone().ok()));
                pass(&client, &server);
                pass(&server, &client);
            }
        });
        Self { port, inside }
    }

    fn shut(&self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.is_open = false;
        inside.passing.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    fn open(&self) {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).is_open = true;
    }

    /// The URL of a database behind it.
    fn url(&self, database: &str) -> String {
        let soon = "serverSelectionTimeoutMS=2000&connectTimeoutMS=2000&heartbeatFrequencyMS=500";
        format!("mongodb://127.0.0.1:{}/{database}?directConnection=true&{soon}", self.port)
    }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// The store on a set of its own, and the source at these URLs.
fn start(fixture: &SourceFixture, store: &SourceFixture, first: &str, fallback: &str) -> Running {
    let source = format!(
        "source = {{ url = \"{first}\", collection = \"orders\", fallback = [\"{fallback}\"], come_back = \"1s\" }}\n"
    );
    fixture.configure_store(&store.url, &source);
    let running = fixture.workspace.start("only");
    until("the stream is opened", || store.checkpoint().is_some_and(|stored| stored.get_document("position").is_ok()));
    running
}

#[test]
fn another_way_to_the_same_servers_is_taken_and_the_first_is_gone_back_to() {
    let set = ReplicaSet::start(1);
    let (fixture, store) = (SourceFixture::on(&set), SourceFixture::new());
    let door = Door::open_to(&set);
    let mut only = start(&fixture, &store, &door.url(fixture.database.name()), &fixture.url);
    fixture.order(&["rope"]);
    until("it arrives by the first URL", || fixture.delivered() == ["rope"]);
    door.shut();
    fixture.order(&["tar"]);
    until("it arrives by the second", || fixture.delivered() == ["rope", "tar"]);
    door.open();
    only.says(&["the first URL answers again"]);
    fixture.order(&["sail"]);
    until("it arrives by the first URL again", || fixture.delivered() == ["rope", "tar", "sail"]);
    only.ends_in_order();
}

/// The source at these URLs, as a check finds it.
fn checked(fixture: &SourceFixture, first: &str, fallbacks: &str) -> Answer {
    let source = format!(
        "source = {{ url = \"{first}\", collection = \"orders\", fallback = [{fallbacks}], timeout = \"2s\" }}\n\
         start = \"oldest\"\n"
    );
    fixture.configure(&source);
    fixture.workspace.run(&["check"])
}

#[test]
fn a_check_warns_of_a_url_that_leads_nowhere_while_another_answers() {
    let fixture = SourceFixture::new();
    let nowhere = format!("mongodb://127.0.0.1:1/{}", fixture.database.name());
    let answer = checked(&fixture, &nowhere, &format!("{:?}", fixture.url));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let warned = |line: &str| line.contains("warning: ") && line.contains("the first URL: 127.0.0.1:1");
    assert!(answer.out.lines().any(warned), "{answer:?}");
    let answer = checked(&fixture, &fixture.url, &format!("{nowhere:?}"));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let warned = |line: &str| line.contains("warning: ") && line.contains("a fallback: 127.0.0.1:1");
    assert!(answer.out.lines().any(warned), "{answer:?}");
    // Without any that answers there is nothing to look at.
    let parts = ["source (mongodb): ", "none of 2 URLs answers: 127.0.0.1:1"];
    checked(&fixture, &nowhere, &format!("{nowhere:?}")).assert_found(1, &parts);
}

#[test]
fn a_check_names_a_fallback_of_another_cluster() {
    let (fixture, strange) = (SourceFixture::new(), ReplicaSet::start(1));
    let foreign = strange.url(fixture.database.name());
    let answer = checked(&fixture, &fixture.url, &format!("{foreign:?}"));
    answer.assert_found(1, &["a fallback: ", &strange.hosts()[0], "belongs to another cluster"]);
}

#[test]
fn another_cluster_is_refused_and_after_five_rounds_each_url_is_reported_with_its_cause() {
    let (own, strange) = (ReplicaSet::start(1), ReplicaSet::start(1));
    let (fixture, store, other) = (SourceFixture::on(&own), SourceFixture::new(), SourceFixture::on(&strange));
    let soon = "serverSelectionTimeoutMS=1000";
    let url = format!("{}&{soon}", fixture.url);
    let foreign = other.url.replace(other.database.name(), fixture.database.name());
    let mut only = start(&fixture, &store, &url, &format!("{foreign}&{soon}"));
    fixture.order(&["rope"]);
    until("it arrives", || fixture.delivered() == ["rope"]);
    own.kill(0);
    let reported = only.says(&["none of 2 URLs could be used in 5 rounds"]);
    assert!(reported.contains("no server could be reached"), "{reported}");
    assert!(reported.contains("another cluster"), "{reported}");
    own.restart(0);
    own.primary();
    // Nobody else is there, so it tries again by itself.
    fixture.order(&["tar"]);
    until("it goes on where it was", || fixture.delivered() == ["rope", "tar"]);
    only.ends_in_order();
}
