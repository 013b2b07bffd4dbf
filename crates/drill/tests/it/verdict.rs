use watchkeeper_drill::{Arrival, Entry, Ledger, Verdict};

/// A ledger of changes 1 to `count` of one key, all acknowledged but these.
fn ledger(count: u64, unknown: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for number in 1..=count {
        assert_eq!(ledger.next("a"), number);
        ledger.enter("a", if unknown.contains(&number) { Entry::Unknown } else { Entry::Acknowledged });
    }
    ledger
}

/// Arrivals of key `a`, as (epoch, number).
fn arrivals(list: &[(u64, u64)]) -> Vec<Arrival> {
    list.iter().map(|(epoch, number)| Arrival { key: "a".to_owned(), number: *number, epoch: *epoch }).collect()
}

fn judged(count: u64, unknown: &[u64], list: &[(u64, u64)]) -> Verdict {
    Verdict::new(&ledger(count, unknown), &arrivals(list), 0)
}

#[test]
fn a_run_without_a_flaw_is_sound() {
    let verdict = judged(4, &[], &[(1, 1), (1, 2), (2, 3), (2, 4)]);
    assert!(verdict.is_sound(), "{verdict}");
    assert_eq!((verdict.written, verdict.delivered, verdict.duplicated.count), (4, 4, 0));
}

#[test]
fn what_was_acknowledged_and_is_missing_is_lost() {
    let verdict = judged(3, &[], &[(1, 1), (1, 2)]);
    assert_eq!(verdict.lost.count, 1);
    assert_eq!(verdict.lost.examples, ["change 3 of a never arrived"]);
}

#[test]
fn what_was_never_answered_may_be_missing_or_there() {
    let missing = judged(3, &[2], &[(1, 1), (1, 3)]);
    assert!(missing.is_sound(), "{missing}");
    assert_eq!((missing.written, missing.unknown, missing.delivered), (2, 1, 2));
    let there = judged(3, &[2], &[(1, 1), (1, 2), (1, 3)]);
    assert!(there.is_sound(), "{there}");
    assert_eq!((there.written, there.delivered), (3, 3));
}

#[test]
fn a_new_epoch_may_repeat_but_not_pass_over() {
    let repeated = judged(3, &[], &[(1, 1), (1, 2), (2, 2), (2, 3)]);
    assert!(repeated.is_sound(), "{repeated}");
    assert_eq!(repeated.duplicated.count, 1);
    let passed = judged(4, &[], &[(1, 1), (2, 3), (3, 2), (3, 3), (3, 4)]);
    assert_eq!(passed.out_of_order.count, 1);
    assert!(passed.out_of_order.examples[0].contains("though 2 had not arrived"), "{passed}");
}

#[test]
fn within_an_epoch_nothing_is_passed_over() {
    let swapped = judged(3, &[], &[(1, 1), (1, 3), (1, 2)]);
    assert_eq!(swapped.out_of_order.count, 1, "{swapped}");
    let backwards = judged(3, &[], &[(1, 2), (1, 1), (1, 3)]);
    assert_ne!(backwards.out_of_order.count, 0, "{backwards}");
}

#[test]
fn an_epoch_may_deliver_a_run_again() {
    let again = judged(4, &[], &[(1, 1), (1, 2), (1, 3), (1, 2), (1, 3), (1, 4)]);
    assert!(again.is_sound(), "{again}");
    assert_eq!(again.duplicated.count, 2);
    let broken_off = judged(4, &[], &[(1, 1), (1, 2), (1, 3), (1, 1), (1, 4)]);
    assert_eq!(broken_off.out_of_order.count, 1, "{broken_off}");
}

#[test]
fn an_older_epoch_after_a_newer_one_is_stale() {
    let mut list = arrivals(&[(1, 1), (2, 2)]);
    list.push(Arrival { key: "b".to_owned(), number: 1, epoch: 1 });
    let mut ledger = ledger(2, &[]);
    ledger.enter("b", Entry::Acknowledged);
    let verdict = Verdict::new(&ledger, &list, 3);
    assert_eq!((verdict.stale_accepted.count, verdict.stale_refused), (1, 3));
    assert_eq!(verdict.out_of_order.count, 0, "another key has an order of its own");
    assert!(!verdict.is_sound());
}

#[test]
fn what_nobody_wrote_is_strange() {
    let verdict = judged(1, &[], &[(1, 1), (1, 2)]);
    assert_eq!(verdict.strange.count, 1);
    assert!(!verdict.is_sound());
}

/// The verdict on a copy of one key with `count` acknowledged changes, to which these were written.
fn copied(count: u64, writes: &[u64]) -> Verdict {
    let writes: Vec<_> = writes.iter().map(|number| (0, *number)).collect();
    Verdict::of_copy(&ledger(count, &[]), &arrivals(&writes))
}

#[test]
fn a_copy_may_pass_over_values_but_not_go_back_or_end_early() {
    let good = copied(3, &[1, 3, 3]);
    assert!(good.is_sound() && good.duplicated.count == 1, "{good:?}");
    let early = copied(3, &[1, 2]);
    assert_eq!((early.lost.count, early.stale_accepted.count), (1, 0));
    let stale = copied(3, &[3, 2, 3]);
    assert_eq!((stale.lost.count, stale.stale_accepted.count), (0, 1));
    assert_eq!(copied(1, &[1, 2]).strange.count, 1);
}
