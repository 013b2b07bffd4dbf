//! The group's records over the memory store, with other instances coming in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use watchkeeper_core::clock::Sleep;
use watchkeeper_core::memory::RecordStore;
use watchkeeper_core::{
    Candidate, Clock, Cx, Ending, Entropy, Epoch, ErrorKind, InstanceId, Moment, Previous, PutOutcome, Record, Records,
    Result, Revision,
};
use watchkeeper_engine::group::control::{Control, Controls, ReplayRequest};
use watchkeeper_engine::group::journal::{Cause, Journal, ReleaseNotice, TAKEOVERS_KEPT, Takeover};
use watchkeeper_engine::group::poison::{CHANGES_KEPT, Poison};
use watchkeeper_engine::group::registry::{Beat, Member, Registry};
use watchkeeper_engine::group::report::{StreamActivity, StreamReport};
use watchkeeper_engine::group::slots::Slots;

/// Time passes only when a test says so, or when something sleeps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hand(Arc<AtomicU64>);

impl Hand {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let hand = self.clone();
        Box::pin(async move {
            // Whoever sleeps moves the hand, once everybody else has had a turn.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            hand.0.fetch_max(moment.nanos(), Ordering::SeqCst);
        })
    }

    fn wall_millis(&self) -> u64 {
        1_769_076_672_000 + self.now().nanos() / 1_000_000
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A store whose calls take a while, each a different one: every seed is another interleaving.
#[derive(Debug)]
struct Dawdling {
    notes: RecordStore,
    entropy: Entropy,
}

impl Dawdling {
    async fn dawdle(&self) {
        for _ in 0..self.entropy.below(6) {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Records for Dawdling {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        self.dawdle().await;
        self.notes.get(cx, name).await
    }
    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        self.dawdle().await;
        self.notes.list(cx, prefix).await
    }
    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        self.dawdle().await;
        self.notes.put_if(cx, name, expected, bytes).await
    }
    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        self.dawdle().await;
        self.notes.delete_if(cx, name, expected).await
    }
    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        self.notes.append(cx, log, bytes, keep).await
    }
    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        self.notes.tail(cx, log, limit).await
    }
    async fn changed(&self, cx: &Cx) -> Result<()> {
        self.notes.changed(cx).await
    }
}

struct World {
    clock: Arc<Hand>,
    notes: RecordStore,
    cx: Cx,
    entropy: Entropy,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(Hand::default());
        let notes = RecordStore::new(Arc::<Hand>::clone(&clock));
        let cx = Cx::new(Arc::<Hand>::clone(&clock));
        Self { clock, notes, cx, entropy: Entropy::seeded(11) }
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.notes.clone())
    }

    fn dawdling(&self, seed: u64) -> Arc<dyn Records> {
        Arc::new(Dawdling { notes: self.notes.clone(), entropy: Entropy::seeded(seed) })
    }

    fn registry(&self) -> Registry {
        Registry::new(self.records(), "shop").unhealthy_after(Duration::from_secs(60))
    }

    fn member(&self, name: &str) -> Member {
        let mut member = Member::new(self.entropy.instance(), name);
        member.config_hash = "c0ffee".into();
        member.streams = vec!["orders".into()];
        member
    }

    async fn plant(&self, name: &str, text: &str) {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        assert!(matches!(self.notes.put_if(&self.cx, name, None, bytes).await.unwrap(), PutOutcome::Done(_)));
    }
}

#[test]
fn a_silent_member_grows_unhealthy_and_is_swept() {
    block_on(async {
        let world = World::new();
        let (registry, cx) = (world.registry(), &world.cx);
        let (a, b) = (world.member("a"), world.member("b"));
        registry.register(cx, &a).await.unwrap();
        registry.register(cx, &b).await.unwrap();
        world.clock.advance(Duration::from_secs(59));
        assert_eq!(registry.heartbeat(cx, &b).await.unwrap(), Beat::Kept);
        world.clock.advance(Duration::from_secs(1));
        let health = |listed: Vec<watchkeeper_engine::group::registry::Listed>| {
            let mut health: Vec<_> = listed.into_iter().map(|one| (one.member.name, one.healthy, one.age)).collect();
            health.sort();
            health
        };
        let secs = Duration::from_secs;
        let expected = [("a".to_owned(), false, secs(60)), ("b".to_owned(), true, secs(1))];
        assert_eq!(health(registry.list(cx).await.unwrap()), expected);
        assert_eq!(registry.sweep(cx, Duration::from_secs(60)).await.unwrap(), 1);
        assert_eq!(health(registry.list(cx).await.unwrap()), expected[1..]);
        // The swept one was only slow: it comes back by its next heartbeat, and is told.
        assert_eq!(registry.heartbeat(cx, &a).await.unwrap(), Beat::Restored);
        assert_eq!(registry.list(cx).await.unwrap().len(), 2);
        registry.deregister(cx, a.instance).await.unwrap();
        registry.deregister(cx, a.instance).await.unwrap();
        assert_eq!(health(registry.list(cx).await.unwrap()), expected[1..]);
    });
}

#[test]
fn a_garbled_or_newer_record_does_not_blind_the_group() {
    block_on(async {
        let world = World::new();
        let id = world.entropy.instance();
        world.plant("shop/instances/garbage", "{").await;
        world
            .plant("shop/instances/newer", &format!(r#"{{"v":9,"instance":"{id}","name":"new","mood":"good"}}"#))
            .await;
        let listed = world.registry().list(&world.cx).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.member.instance).collect::<Vec<_>>(), [id]);
    });
}

#[test]
fn a_member_with_more_streams_than_fit_into_a_record_is_listed_whole() {
    block_on(async {
        let world = World::new();
        let (registry, cx) = (world.registry(), &world.cx);
        let names = |count: usize| (0..count).map(|number| format!("stream-{number:05}")).collect::<Vec<_>>();
        let member = |name: &str, count: usize| {
            let mut member = world.member(name);
            member.streams = names(count);
            member.reports = names(count).iter().map(|name| StreamReport::new(name, StreamActivity::Running)).collect();
            member
        };
        let records = || async { world.notes.list(cx, "shop/instances/").await.unwrap().len() };
        let [mut large, small, gone] = [member("large", 3_000), member("small", 1), member("gone", 2_000)];
        for member in [&large, &small, &gone] {
            registry.register(cx, member).await.unwrap();
        }
        registry.deregister(cx, gone.instance).await.unwrap();
        let listed = || async {
            let members = registry.list(cx).await.unwrap().into_iter().map(|one| one.member);
            let mut reported: Vec<_> = members.map(|member| (member.name, member.streams, member.reports)).collect();
            reported.sort_by(|a, b| a.0.cmp(&b.0));
            reported
        };
        let reported = |member: &Member| (member.name.clone(), member.streams.clone(), member.reports.clone());
        assert!(records().await > 6, "it does not fit into six");
        assert_eq!(listed().await, [reported(&large), reported(&small)]);
        // Fewer streams take fewer records, and none of them is left over.
        large.streams.truncate(1_500);
        large.reports.truncate(1_500);
        assert_eq!(registry.heartbeat(cx, &large).await.unwrap(), Beat::Kept);
        assert_eq!(listed().await, [reported(&large), reported(&small)]);
        large.streams.truncate(2);
        large.reports.truncate(2);
        registry.heartbeat(cx, &large).await.unwrap();
        assert_eq!((listed().await, records().await), (vec![reported(&large), reported(&small)], 2));
        // Another process removes all records of one that is dead, and counts it once.
        registry.register(cx, &gone).await.unwrap();
        world.registry().deregister(cx, gone.instance).await.unwrap();
        assert_eq!(records().await, 2);
        registry.register(cx, &gone).await.unwrap();
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(world.registry().sweep(cx, Duration::from_secs(60)).await.unwrap(), 3);
        assert_eq!(records().await, 0);
        assert_eq!(registry.heartbeat(cx, &gone).await.unwrap(), Beat::Restored);
        assert_eq!(listed().await, [reported(&gone)]);
    });
}

#[test]
fn of_ten_that_race_for_three_slots_exactly_three_get_in() {
    for seed in 0..200 {
        block_on(async {
            let world = World::new();
            let records = world.dawdling(seed);
            let members: Vec<Member> = (0..10).map(|number| world.member(&format!("m{number}"))).collect();
            let enter = |member: &Member| {
                let (records, cx, member) = (Arc::clone(&records), world.cx.clone(), member.clone());
                async move {
                    let registry = Registry::new(Arc::clone(&records), "shop");
                    registry.register(&cx, &member).await.unwrap();
                    Slots::new(records, "shop", 3).enter(&cx, &registry, &member).await
                }
            };
            let answers = join_all(members.iter().map(enter)).await;
            let mut entered: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
            entered.sort();
            assert_eq!(entered, [&0, &1, &2], "seed {seed}");
            let refusal = answers.iter().find_map(|answer| answer.as_ref().err()).unwrap();
            assert_eq!(refusal.kind(), ErrorKind::Config);
            let reported = refusal.to_string();
            assert!(reported.contains("takes 3") && reported.contains("max_listeners"), "{reported}");
            let inside = members.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            inside.for_each(|(member, _)| assert!(reported.contains(&member.name), "{reported} lacks {}", member.name));
        });
    }
}

#[test]
fn of_many_that_race_for_one_dead_slot_exactly_one_gets_it() {
    for seed in 0..100 {
        block_on(async {
            let world = World::new();
            let (cx, dead) = (&world.cx, world.member("dead"));
            let registry = world.registry();
            registry.register(cx, &dead).await.unwrap();
            let slots = Slots::new(world.records(), "shop", 1);
            assert_eq!(slots.enter(cx, &registry, &dead).await.unwrap(), 0);
            world.clock.advance(Duration::from_secs(61));
            let records = world.dawdling(seed);
            let heirs: Vec<Member> = (0..5).map(|number| world.member(&format!("h{number}"))).collect();
            let answers = join_all(heirs.iter().map(|heir| {
                let (records, cx) = (Arc::clone(&records), cx.clone());
                async move {
                    let registry = Registry::new(Arc::clone(&records), "shop");
                    registry.register(&cx, heir).await.unwrap();
                    Slots::new(records, "shop", 1).enter(&cx, &registry, heir).await
                }
            }));
            assert_eq!(answers.await.iter().filter(|answer| answer.is_ok()).count(), 1, "seed {seed}");
            assert!(!slots.has(cx, dead.instance).await.unwrap());
        });
    }
}

#[test]
fn a_slot_is_kept_given_back_and_needs_a_registration() {
    block_on(async {
        let world = World::new();
        let (cx, registry, slots) = (&world.cx, world.registry(), Slots::new(world.records(), "shop", 1));
        let (a, b) = (world.member("a"), world.member("b"));
        assert_eq!(slots.enter(cx, &registry, &a).await.unwrap_err().kind(), ErrorKind::Internal);
        registry.register(cx, &a).await.unwrap();
        registry.register(cx, &b).await.unwrap();
        assert_eq!(slots.enter(cx, &registry, &a).await.unwrap(), 0);
        assert_eq!(slots.enter(cx, &registry, &a).await.unwrap(), 0);
        assert_eq!(slots.enter(cx, &registry, &b).await.unwrap_err().kind(), ErrorKind::Config);
        // Another's slot is not given back by mistake.
        slots.leave(cx, b.instance).await.unwrap();
        assert!(slots.has(cx, a.instance).await.unwrap());
        slots.leave(cx, a.instance).await.unwrap();
        assert_eq!(slots.enter(cx, &registry, &b).await.unwrap(), 0);
    });
}

#[test]
fn a_lowered_limit_lets_those_within_it_stay() {
    block_on(async {
        let world = World::new();
        let (cx, registry) = (&world.cx, world.registry());
        let members = [world.member("a"), world.member("b"), world.member("c")];
        for (number, member) in members.iter().enumerate() {
            registry.register(cx, member).await.unwrap();
            let slots = Slots::new(world.records(), "shop", 3);
            assert_eq!(slots.enter(cx, &registry, member).await.unwrap(), number);
        }
        let lowered = Slots::new(world.records(), "shop", 1);
        assert_eq!(lowered.enter(cx, &registry, &members[0]).await.unwrap(), 0);
        for member in &members[1..] {
            assert_eq!(lowered.enter(cx, &registry, member).await.unwrap_err().kind(), ErrorKind::Config);
        }
    });
}

#[test]
fn updates_of_one_control_by_many_are_all_kept() {
    for seed in 0..50 {
        block_on(async {
            let world = World::new();
            let controls = Controls::new(world.dawdling(seed), "shop");
            let pause = controls.update(&world.cx, "orders", |control| control.pause());
            let prefer = controls.update(&world.cx, "orders", |control| control.preferred = Some("b".into()));
            let leave = controls.update(&world.cx, "orders", |control| control.hand_over = Some(Epoch(4)));
            let replay = Some(ReplayRequest { id: 1, sink: None, numbers: Vec::new() });
            let again = controls.update(&world.cx, "orders", |control| control.replay = replay.clone());
            let (a, b, c, d) = tokio::join!(pause, prefer, leave, again);
            assert!([a, b, c, d].iter().all(Result::is_ok));
            let control = controls.read(&world.cx, "orders").await.unwrap();
            assert!(control.paused && control.preferred.as_deref() == Some("b"), "seed {seed}");
            assert_eq!((control.hand_over, &control.replay), (Some(Epoch(4)), &replay));
        });
    }
}

#[test]
fn controls_of_all_streams_are_read_at_once_and_keep_what_they_do_not_know() {
    block_on(async {
        let world = World::new();
        let controls = Controls::new(world.records(), "shop");
        world.plant("shop/control/orders", r#"{"v":2,"paused":true,"speed":"slow"}"#).await;
        world.plant("shop2/control/other", r#"{"paused":true}"#).await;
        controls.update(&world.cx, "orders", |control| control.halted_hint = true).await.unwrap();
        controls.update(&world.cx, "a/b", |control| control.hand_over = Some(Epoch(3))).await.unwrap();
        let all = controls.read_all(&world.cx).await.unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a/b", "orders"]);
        assert_eq!(all["orders"].rest["speed"], "slow");
        assert!(all["orders"].paused && all["orders"].halted_hint);
        assert!(all["a/b"].asks_to_leave(Epoch(3)) && !all["a/b"].asks_to_leave(Epoch(4)));
        assert_eq!(controls.read(&world.cx, "unknown").await.unwrap(), Default::default());
        world.plant("shop/control/torn", r#"{"paused":tr"#).await;
        let error = controls.read_all(&world.cx).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("shop/control/torn"), "{error}");
    });
}

#[test]
fn a_control_that_others_change_all_the_time_is_given_up() {
    block_on(async {
        let world = World::new();
        let controls = Controls::new(world.records(), "shop");
        let rival = |control: &mut watchkeeper_engine::group::control::Control| {
            // The memory store answers at once, so the rival's write is done inside ours.
            let other = Controls::new(world.records(), "shop");
            let bump = async {
                let next = |control: &mut watchkeeper_engine::group::control::Control| {
                    control.hand_over = Some(control.hand_over.unwrap_or_default().next());
                };
                other.update(&world.cx, "orders", next).await
            };
            futures_util::FutureExt::now_or_never(bump).unwrap().unwrap();
            control.paused = true;
        };
        let error = controls.update(&world.cx, "orders", rival).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!controls.read(&world.cx, "orders").await.unwrap().paused);
    });
}

#[test]
fn the_last_of_several_moves_restores_what_people_want() {
    let entropy = Entropy::seeded(3);
    let (a, b) = (entropy.tenure(), entropy.tenure());
    let mut control = watchkeeper_engine::group::control::Control::default();
    control.begin_move(a, None);
    control.begin_move(b, None);
    control.end_move(a);
    assert!(control.paused);
    control.end_move(b);
    assert_eq!(control, Default::default());
    control.begin_move(a, None);
    control.pause();
    control.end_move(a);
    assert!(control.paused && control.moves.is_none());
}

#[test]
fn the_pause_of_a_move_whose_program_died_ends_by_itself() {
    block_on(async {
        let world = World::new();
        let (cx, controls) = (&world.cx, Controls::new(world.records(), "shop"));
        let (a, b) = (world.entropy.tenure(), world.entropy.tenure());
        let secs = Duration::from_secs;
        let paused = || async { controls.read(cx, "orders").await.unwrap().paused };
        controls.update(cx, "orders", |control| control.begin_move(a, Some(secs(40)))).await.unwrap();
        world.clock.advance(secs(30));
        controls.update(cx, "orders", |control| control.begin_move(b, Some(secs(20)))).await.unwrap();
        controls.update(cx, "orders", |control| control.end_move(b)).await.unwrap();
        world.clock.advance(secs(40));
        assert!(paused().await, "the first one may still be there");
        world.clock.advance(secs(1));
        assert!(!paused().await);
        assert!(!controls.read_all(cx).await.unwrap()["orders"].paused);
        // The record still has it. What people want next does not bring it back.
        let now = controls.update(cx, "orders", Control::pause).await.unwrap();
        assert!(now.paused && now.moves.is_none(), "{now:?}");
        // What people had paused stays so, and a move of which nobody knows how long it waits is not given up.
        controls.update(cx, "orders", |control| control.begin_move(a, Some(secs(1)))).await.unwrap();
        world.clock.advance(secs(2));
        assert!(paused().await);
        controls.update(cx, "orders", Control::unpause).await.unwrap();
        controls.update(cx, "orders", |control| control.begin_move(a, None)).await.unwrap();
        world.clock.advance(secs(100_000));
        assert!(paused().await);
    });
}

fn takeover(epoch: u64) -> Takeover {
    let mut takeover = Takeover::new(1, Epoch(epoch), "b", Cause::Released);
    takeover.from = Some("a".into());
    takeover.vacant_millis = 5;
    takeover
}

#[test]
fn the_journal_gives_the_newest_takeovers_first_and_keeps_a_bounded_number() {
    block_on(async {
        let world = World::new();
        let journal = Journal::new(world.records(), "shop");
        for epoch in 1..=205 {
            journal.append(&world.cx, "orders", &takeover(epoch)).await.unwrap();
        }
        let newest = journal.recent(&world.cx, "orders", 2).await.unwrap();
        assert_eq!(newest, [takeover(205), takeover(204)]);
        assert_eq!(journal.recent(&world.cx, "orders", 1_000).await.unwrap().len(), TAKEOVERS_KEPT);
        assert_eq!(journal.recent(&world.cx, "other", 10).await.unwrap(), []);
    });
}

#[test]
fn a_farewell_counts_only_for_its_own_tenure() {
    block_on(async {
        let world = World::new();
        let journal = Journal::new(world.records(), "shop");
        assert_eq!(journal.release_notice(&world.cx, "orders").await.unwrap(), None);
        let tenure = world.entropy.tenure();
        let old = world.entropy.tenure();
        journal.leave(&world.cx, "orders", old, Cause::Failed, "disk full").await.unwrap();
        journal.leave(&world.cx, "orders", tenure, Cause::Stalled, "no progress for 9 s").await.unwrap();
        world.clock.advance(Duration::from_secs(2));
        let (release_notice, age) = journal.release_notice(&world.cx, "orders").await.unwrap().unwrap();
        assert_eq!(age, Duration::from_secs(2));
        let previous = |tenure, ending| {
            let instance = world.entropy.instance();
            let candidate = Candidate { instance, name: "a".into(), address: None, tenure };
            Previous { candidate, epoch: Epoch(1), ending, vacant: Duration::ZERO }
        };
        let deduce = |tenure, ending| Cause::deduce(Some(&previous(tenure, ending)), Some(&release_notice));
        assert_eq!(deduce(tenure, Ending::Released), Cause::Stalled);
        assert_eq!(deduce(old, Ending::Released), Cause::Released);
        assert_eq!(deduce(old, Ending::Expired), Cause::Expired);
        assert_eq!(deduce(old, Ending::Broken), Cause::Crashed);
        assert_eq!(Cause::deduce(None, Some(&release_notice)), Cause::First);
        assert_eq!(Cause::deduce(Some(&previous(tenure, Ending::Broken)), None::<&ReleaseNotice>), Cause::Crashed);
    });
}

#[test]
fn a_fatal_change_is_counted_once_per_instance() {
    block_on(async {
        let world = World::new();
        let poison = Poison::new(world.records(), "shop");
        let (a, b) = (world.entropy.instance(), world.entropy.instance());
        let record = |id: String, instance: InstanceId| {
            let (poison, cx) = (poison.clone(), world.cx.clone());
            async move { poison.record(&cx, "orders", &id, instance).await.unwrap() }
        };
        let id = || "x:01".to_owned();
        assert_eq!(record(id(), a).await, 1);
        assert_eq!(record(id(), a).await, 1);
        assert_eq!(record(id(), b).await, 2);
        // As many others push it out, however long their ids are.
        for number in 0..CHANGES_KEPT {
            let long = format!("{}{number}", "long".repeat(20_000));
            assert_eq!(record(long.clone(), a).await, 1);
            assert_eq!(record(long, b).await, 2);
        }
        assert_eq!(record(id(), b).await, 1);
        poison.clear(&world.cx, "orders").await.unwrap();
        assert_eq!(record(id(), a).await, 1);
    });
}
