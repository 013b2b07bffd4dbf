//! Instances as a whole: joining, several streams, leaving.

use watchkeeper_core::{Epoch, ErrorKind, Records, Verdict};
use watchkeeper_engine::listener::ListenerState::{Initializing, Running, Stopped};
use watchkeeper_testkit::faults::{Fault, Gate};

use crate::support::*;

#[test]
fn heartbeats_do_not_answer_each_other() {
    let harness = Harness::new();
    let (a, _b, _c) = (harness.start("a"), harness.start("b"), harness.start("c"));
    harness.run_for(60 * SECOND);
    // One every 2.5 to 5 seconds, and what belongs to joining and taking the watch.
    let written = a.faults.records.calls("put_if");
    assert!((12..40).contains(&written), "{written} records were written in a minute");
}

#[test]
fn one_instance_more_than_may_listen_is_refused_with_the_names_of_those_there() {
    let harness = Harness::new();
    let start = |name| harness.instance(name).set(|it| it.max_listeners = Some(2)).start();
    let (a, b) = (start("a"), start("b"));
    harness.run_for(SECOND);
    let mut c = start("c");
    let error = harness.block_on(c.running.join()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let said = error.to_string();
    assert!(said.contains("takes 2 instances") && said.contains("a (") && said.contains("b ("), "{said}");
    assert!(said.contains("max_listeners"), "it says what to do: {said}");
    assert_eq!((c.state(), harness.town.listens("c")), (Stopped, false));
    assert_eq!(members(&harness), 2, "it left no trace");
    b.stop(&harness);
    let c = start("c");
    harness.run_for(SECOND);
    assert_ne!(c.state(), Stopped, "there is room again");
    drop(a);
}

fn members(harness: &Harness) -> usize {
    memory(harness.notes.list(&harness.cx(), "shop/instances/")).len()
}

#[test]
fn the_place_of_a_crashed_instance_is_free_when_it_counts_as_gone() {
    let harness = Harness::new();
    let start = |name| harness.instance(name).set(|it| it.max_listeners = Some(1)).start();
    let a = start("a");
    harness.until("a runs", || a.is_running());
    a.node.kill();
    let mut b = start("b");
    assert!(harness.block_on(b.running.join()).is_err(), "it may only be slow");
    harness.run_for(61 * SECOND);
    let c = start("c");
    harness.until("c runs", || c.is_running());
}

#[test]
fn an_instance_that_lost_its_place_stands_down_and_comes_back_when_there_is_room() {
    let harness = Harness::new();
    let start = |name| harness.instance(name).set(|it| it.max_listeners = Some(1)).start();
    let a = start("a");
    harness.until("a runs", || a.is_running());
    // Only its heartbeats do not arrive: the lease is renewed all the while.
    a.faults.records.always("put_if", Fault::Reject(ErrorKind::Unavailable));
    harness.run_for(61 * SECOND);
    assert!(a.is_running(), "the registry takes nothing away");
    let b = start("b");
    harness.run_for(SECOND);
    a.faults.records.heal("put_if");
    harness.until("b runs", || b.is_running());
    assert!(!a.is_running(), "there is place for one");
    harness.run_for(60 * SECOND);
    assert!(b.is_running() && !a.is_running(), "it stays so");
    b.stop(&harness);
    harness.until("a has a place again", || a.is_running());
}

#[test]
fn an_instance_that_is_proved_dead_is_struck_from_the_registry_at_once() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("a runs", || a.is_running());
    let b = harness.start("b");
    harness.until("b watches a", || harness.town.watches("a") == 1);
    assert_eq!(members(&harness), 2);
    a.node.kill();
    harness.town.judge("a", Verdict::Dead);
    let began = harness.now();
    harness.until("nobody takes a for a standby", || members(&harness) == 1);
    assert!(harness.now().since(began) < SECOND, "long before silence would have told");
    harness.until("b runs", || b.is_running());
}

#[test]
fn instances_with_other_settings_are_distinguished_in_the_registry() {
    let harness = Harness::new();
    let start =
        |name, fingerprint: &str| harness.instance(name).set(|it| it.fingerprint = fingerprint.to_owned()).start();
    let (_a, _b, _c) = (start("a", "all tables"), start("b", "all tables"), start("c", "one table"));
    harness.run_for(SECOND);
    let records = memory(harness.notes.list(&harness.cx(), "shop/instances/"));
    let hash = |record: &watchkeeper_core::Record| {
        let member: watchkeeper_engine::group::registry::Member = serde_json::from_slice(&record.bytes).unwrap();
        (member.name, member.config_hash)
    };
    let hashes: std::collections::BTreeMap<_, _> = records.iter().map(hash).collect();
    assert_eq!(hashes["a"], hashes["b"]);
    assert_ne!(hashes["a"], hashes["c"]);
}

#[test]
fn each_stream_has_a_lease_of_its_own() {
    let harness = Harness::new();
    let plan = |name| harness.instance(name).and_stream("users");
    let a = plan("a").start();
    harness.until("a has both", || a.is_running() && a.status_of("users").state == Running);
    let b = plan("b").start();
    harness.run_for(6 * SECOND);
    harness.want(|control| control.hand_over = Some(Epoch(1)));
    harness.until("b has one", || b.is_running());
    harness.run_for(3 * TTL);
    let holder = |stream| harness.holder_of(stream).unwrap().candidate.name;
    assert_eq!((holder("orders").as_str(), holder("users").as_str()), ("b", "a"));
    harness.append(&["x"]);
    harness.until("both are committed", || harness.committed() == 1 && harness.committed_of("users") == 1);
    let renewals = a.faults.leases.calls("renew");
    assert!(renewals > 0);
    b.stop(&harness);
    harness.until("a has both again", || a.is_running() && a.status_of("users").state == Running);
    harness.until("they are apart in the lease store", || harness.holder().is_some_and(|(_, epoch)| epoch == Epoch(3)));
    assert_eq!(harness.holder_of("users").unwrap().epoch, Epoch(1), "the other was not touched");
}

#[test]
fn a_failure_of_one_stream_is_no_failure_of_the_others() {
    let harness = Harness::new();
    let mut plan = harness.instance("a").and_stream("users");
    let broken = harness.script();
    broken.always("open", Fault::Reject(ErrorKind::Denied));
    let source =
        watchkeeper_testkit::faults::FaultySource::new(std::sync::Arc::new(harness.log.clone()), broken.clone());
    plan.streams[1].source = std::sync::Arc::new(source);
    let a = plan.start();
    harness.append(&["a"]);
    harness.until("the other one works", || harness.committed() == 1);
    harness.run_for(60 * SECOND);
    assert_eq!((a.state(), a.status().tenures, harness.committed_of("users")), (Running, 1, 0));
    assert!(broken.calls("open") > 1, "it is tried again, for want of another instance");
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_starts() {
    let harness = Harness::new();
    let refused = |plan: Plan| harness.block_on(plan.try_start()).err().expect("it is refused").to_string();
    assert!(refused(harness.instance("a").and_stream("orders")).contains("two streams are named \"orders\""));
    assert!(refused(harness.instance("")).contains("has no name"));
    let short = refused(harness.instance("a").stream(|it| it.concurrency = 0));
    assert!(short.contains("concurrency"), "{short}");
    assert_eq!((members(&harness), harness.town.listens("a")), (0, false));
}

#[test]
fn records_that_do_not_answer_delay_the_start_and_do_not_end_it() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.records.always("put_if", Fault::Reject(ErrorKind::Unavailable));
    let a = plan.start();
    harness.run_for(30 * SECOND);
    assert_eq!(a.state(), Initializing);
    a.faults.records.heal("put_if");
    harness.until("it runs", || a.is_running());
}

#[test]
fn records_that_fail_later_do_not_stop_the_work() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    for call in ["get", "list", "put_if", "delete_if", "append", "tail", "changed"] {
        a.faults.records.always(call, Fault::Reject(ErrorKind::Unavailable));
    }
    for round in 1..=20 {
        harness.append(&["a"]);
        harness.until("it is committed", || harness.committed() == round);
        harness.run_for(5 * SECOND);
    }
    assert_eq!((a.state(), a.status().tenures), (Running, 1));
    a.stop(&harness);
    assert_eq!(harness.holder(), None, "and the lease is given back");
}

#[test]
fn dropping_an_instance_is_a_crash() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    harness.run_for(SECOND);
    let (renewals, script) = (a.faults.leases.calls("renew"), a.faults.leases.clone());
    drop(a);
    harness.run_for(TTL / 2);
    assert_eq!(harness.holder(), Some(("a".to_owned(), Epoch(1))), "nothing was given back");
    harness.run_for(TTL);
    assert_eq!((harness.holder(), script.calls("renew")), (None, renewals), "and nothing is renewed");
}

#[test]
fn an_instance_answers_its_peers_until_its_lease_is_given_back() {
    let harness = Harness::new();
    let a = harness.start("a");
    harness.until("it runs", || a.is_running());
    let tenure = harness.holder_of("orders").unwrap().candidate.tenure;
    assert!(harness.town.listens("a") && harness.town.answers("a", tenure));
    let gate = Gate::default();
    a.faults.leases.next("release", Fault::Hold(gate.clone()));
    a.running.shutdown();
    harness.until("it releases", || gate.arrived() == 1);
    assert!(harness.town.listens("a") && harness.town.answers("a", tenure), "a release must not look like a death");
    gate.open();
    a.stop(&harness);
    assert!(!harness.town.listens("a") && !harness.town.answers("a", tenure));
}

#[test]
fn a_shutdown_before_it_has_joined_ends_it() {
    let harness = Harness::new();
    let plan = harness.instance("a");
    plan.faults.records.always("put_if", Fault::Reject(ErrorKind::Unavailable));
    let a = plan.start();
    harness.run_for(SECOND);
    a.stop(&harness);
    assert_eq!(harness.holder(), None);
}
