//! The verdict on a copy that keeps the newest value of every key.
//!
//! * Its last value of each key is the newest one that was acknowledged, or a later one whose outcome is unknown.
//! * A value never replaces a newer one. That would be the late write of an older epoch: a copy shows no epochs.

use std::collections::BTreeMap;

use crate::ledger::{Entry, Ledger};
use crate::verdict::{Arrival, Verdict};

pub(crate) fn judge(ledger: &Ledger, writes: &[Arrival], verdict: &mut Verdict) {
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    for Arrival { key, number, .. } in writes {
        if ledger.get(key, *number).is_none() {
            verdict
                .strange
                .note(|| format!("change {number} of {key} was written to the copy, but never to the source"));
        }
        match values.insert(key, *number) {
            Some(before) if before > *number => {
                verdict.stale_accepted.note(|| format!("change {number} of {key} replaced change {before}"));
            }
            Some(before) if before == *number => {
                verdict.duplicated.note(|| format!("change {number} of {key} was written twice"));
            }
            _ => {}
        }
    }
    verdict.delivered = writes.len() as u64;
    for (_, _, entry) in ledger.entries() {
        verdict.written += u64::from(entry == Entry::Acknowledged);
        verdict.unknown += u64::from(entry == Entry::Unknown);
    }
    for (key, newest) in ledger.newest() {
        let value = values.get(key).copied().unwrap_or(0);
        if value < newest {
            verdict.lost.note(|| format!("the copy ends with change {value} of {key}, not with {newest}"));
        }
    }
}
