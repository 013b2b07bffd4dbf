use bytes::Bytes;
use watchkeeper_core::{Epoch, Grade, TenureId};
use watchkeeper_testkit::history::{Committed, Delivery, History, SourceChange, Verdict};

/// What the source told: one letter per change, in order; `-` is a barrier.
fn source(keys: &str) -> Vec<SourceChange> {
    let changes = (1..).zip(keys.chars());
    changes.map(|(number, key)| SourceChange { number, key: key_of(key), id: format!("log:{number}") }).collect()
}

fn key_of(key: char) -> Option<Bytes> {
    (key != '-').then(|| Bytes::copy_from_slice(key.to_string().as_bytes()))
}

/// Numbers under epochs, like `1: 1 2 3 | 2: 3 4`.
fn deliveries(source: &[SourceChange], text: &str) -> Vec<Delivery> {
    let mut all = Vec::new();
    for part in text.split('|').filter(|part| !part.trim().is_empty()) {
        let (epoch, numbers) = part.split_once(':').expect("an epoch before the numbers");
        let epoch = epoch.trim().parse().expect("an epoch");
        for number in numbers.split_whitespace() {
            let number: usize = number.parse().expect("a number");
            let SourceChange { id, key, .. } = source[number - 1].clone();
            let tenure = TenureId(uuid::Uuid::from_u128(u128::from(epoch)));
            all.push(Delivery { epoch: Epoch(epoch), tenure, id, key });
        }
    }
    all
}

fn history(grade: Grade, keys: &str, text: &str) -> History {
    let source = source(keys);
    let deliveries = deliveries(&source, text);
    History::new(grade, source, deliveries)
}

fn judge(grade: Grade, keys: &str, text: &str) -> Verdict {
    history(grade, keys, text).judge()
}

/// The run with commits like `(epoch, through)`.
fn judge_with_commits(grade: Grade, keys: &str, text: &str, commits: &[(u64, u64)]) -> Verdict {
    let commits = commits.iter().map(|(epoch, through)| Committed { epoch: Epoch(*epoch), through: *through });
    History { commits: commits.collect(), ..history(grade, keys, text) }.judge()
}

fn faults(verdict: &Verdict) -> Vec<&'static str> {
    verdict.faults().iter().map(|(name, _)| *name).collect()
}

#[track_caller]
fn assert_clean(verdict: &Verdict) {
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn keys_may_overtake_each_other_but_not_themselves() {
    assert_clean(&judge(Grade::Plain, "abab", "1: 2 1 4 3"));
    let verdict = judge(Grade::Plain, "abab", "1: 1 4 2 3");
    assert_eq!(faults(&verdict), ["out of order"]);
    assert_eq!(verdict.out_of_order.examples, ["epoch 1 delivered change 2 after change 4"]);
}

#[test]
fn what_never_arrives_is_lost() {
    let verdict = judge(Grade::Plain, "aab", "1: 1 2");
    assert_eq!(faults(&verdict), ["lost"]);
    assert_eq!(verdict.lost.examples, ["change 3 (log:3) never arrived"]);
}

#[test]
fn what_was_not_committed_may_still_be_under_way() {
    let under_way = |through| {
        let commits = vec![Committed { epoch: Epoch(1), through }];
        History { drained: false, commits, ..history(Grade::Plain, "aab", "1: 1 2") }.judge()
    };
    assert_clean(&under_way(2));
    assert_eq!(faults(&under_way(3)), ["lost"]);
}

#[test]
fn what_stands_in_the_ledger_is_not_lost_and_may_come_late() {
    let excuse = |text: &str| {
        let excused = ["log:2".to_owned()].into();
        History { excused, ..history(Grade::Plain, "aaa", text) }.judge()
    };
    assert_clean(&excuse("1: 1 3"));
    assert_clean(&excuse("1: 1 3 2"));
    assert_eq!(faults(&judge(Grade::Plain, "aaa", "1: 1 3")), ["lost", "passed over"]);
}

#[test]
fn a_contiguous_replay_is_a_duplicate_and_in_order() {
    let verdict = judge(Grade::Plain, "aaaa", "1: 1 2 3 2 3 4");
    assert_clean(&verdict);
    assert_eq!(verdict.duplicated.count, 2);
    assert_clean(&judge(Grade::Plain, "aaaa", "1: 1 2 3 1 2 1 2 3 4"));
}

#[test]
fn a_replay_with_holes_is_out_of_order() {
    assert_eq!(faults(&judge(Grade::Plain, "aaaa", "1: 1 2 3 1 3 4")), ["out of order"]);
    assert_eq!(faults(&judge(Grade::Plain, "aaaa", "1: 1 2 3 2 4")), ["out of order"]);
}

#[test]
fn a_barrier_separates_all_keys() {
    assert_clean(&judge(Grade::Plain, "ab-ab", "1: 2 1 3 5 4"));
    let early = judge(Grade::Plain, "ab-ab", "1: 2 1 5 3 4");
    assert!(faults(&early).contains(&"out of order"), "{early}");
    let late = judge(Grade::Plain, "ab-ab", "1: 1 3 2 4 5");
    assert!(faults(&late).contains(&"out of order"), "{late}");
    assert_eq!(faults(&judge(Grade::Plain, "--", "1: 2 1")), ["out of order"]);
}

#[test]
fn a_new_epoch_starts_at_or_before_the_last_commit_and_one() {
    assert_clean(&judge_with_commits(Grade::Plain, "aaaa", "1: 1 2 3 | 2: 2 3 4", &[(1, 1), (2, 4)]));
    let verdict = judge_with_commits(Grade::Plain, "aaaa", "1: 1 2 3 | 2: 4", &[(1, 1), (2, 4)]);
    assert_eq!(faults(&verdict), ["passed over"]);
    assert_eq!(verdict.passed_over.count, 2);
}

#[test]
fn what_was_committed_is_not_delivered_again() {
    let commits = [(1, 2), (2, 3)];
    let verdict = judge_with_commits(Grade::Plain, "aaa", "1: 1 2 | 2: 2 3", &commits);
    assert_eq!(faults(&verdict), ["needless"]);
    assert_clean(&judge_with_commits(Grade::Plain, "aaa", "1: 1 2 | 2: 3", &commits));
    // An operator's move back is a commit, too.
    assert_clean(&judge_with_commits(Grade::Plain, "aaa", "1: 1 2 | 3: 1 2 3", &[(1, 2), (2, 0), (3, 3)]));
}

#[test]
fn epochs_do_not_interleave_where_the_target_fences() {
    let text = "1: 1 | 2: 1 | 1: 2 | 2: 2 3";
    assert_clean(&judge(Grade::Plain, "aaa", text));
    for grade in [Grade::Fenced, Grade::Transactional] {
        assert!(faults(&judge(grade, "aaa", text)).contains(&"interleaved"), "{grade:?}");
    }
    assert_clean(&judge(Grade::Fenced, "aaa", "1: 1 2 | 2: 1 2 3"));
}

#[test]
fn a_versioned_target_lets_no_key_go_back_and_swallows_repeats() {
    // Epoch 2 wrote 2 and 3 again, without effect.
    assert_clean(&judge_with_commits(Grade::Versioned, "aaaa", "1: 1 2 3 | 2: 4", &[(1, 1), (2, 4)]));
    // A late write of the old epoch to another key, which the new one then finds done.
    assert_clean(&judge(Grade::Versioned, "aba", "1: 1 | 2: 3 | 1: 2"));
    assert_eq!(faults(&judge(Grade::Versioned, "aaa", "1: 1 2 | 2: 3 | 1: 2")), ["interleaved"]);
}

#[test]
fn one_epoch_is_one_tenure() {
    let mut two = history(Grade::Plain, "aa", "1: 1 2");
    two.deliveries[1].tenure = TenureId(uuid::Uuid::from_u128(99));
    assert_eq!(faults(&two.judge()), ["interleaved"]);
}

#[test]
fn a_transactional_target_sees_nothing_twice() {
    let text = "1: 1 2 | 2: 2 3";
    assert_clean(&judge(Grade::Fenced, "aaa", text));
    assert_eq!(faults(&judge(Grade::Transactional, "aaa", text)), ["duplicated"]);
    assert_clean(&judge(Grade::Transactional, "aaa", "1: 1 2 | 2: 3"));
}

#[test]
fn what_the_source_never_reported_is_strange() {
    let mut invented = history(Grade::Plain, "aa", "1: 1 2");
    invented.deliveries[1].id = "log:77".to_owned();
    assert_eq!(faults(&invented.judge()), ["lost", "strange"]);
    let mut moved = history(Grade::Plain, "aa", "1: 1 2");
    moved.deliveries[1].key = key_of('z');
    assert_eq!(faults(&moved.judge()), ["strange"]);
}
