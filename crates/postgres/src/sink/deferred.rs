//! Finds the changes of a transaction that constraints refuse which are looked at only when it ends.
//!
//! Such a constraint says what has to be so at the end, not after each change: a child may come before its parent. So no change can be
//! tried for itself. What is left out is made as little as can be instead: beginning with nothing, changes are taken back in, many at a
//! time and then fewer, wherever the constraints then hold. What none of these can be taken back in is to blame.

use std::ops::Range;

use watchkeeper_core::{Change, Error};

use super::rekey::halves;
use super::{Apply, Failure, Open};

pub(super) const MARK: &str = "SAVEPOINT watchkeeper_whole";
pub(super) const UNDO: &str = "ROLLBACK TO SAVEPOINT watchkeeper_whole; RELEASE SAVEPOINT watchkeeper_whole";

/// Looks at all constraints now that would be looked at when the transaction ends.
const SETTLE: &str = "SET CONSTRAINTS ALL IMMEDIATE";

/// A change, or both halves of a key update, with why it cannot be taken in.
struct Unit {
    places: Range<usize>,
    error: Option<Error>,
}

/// Whether everything that was applied can stay: `None`, or why not. Then it has to be undone.
pub(super) async fn refusal(open: &Open<'_>) -> Result<Option<Error>, Failure> {
    match open.run(SETTLE).await {
        Ok(()) => Ok(None),
        Err(Failure::Refused(_, error)) => Ok(Some(error)),
        Err(failed @ Failure::Failed(_)) => Err(failed),
    }
}

/// Which of the changes at these `places` are to blame, where all of them together cannot stay, with the reasons. In an open
/// transaction in which nothing is applied; nothing is afterwards either.
///
/// # Errors
/// Nothing is known of any change, and the transaction is good for nothing.
pub(super) async fn blame(
    apply: &dyn Apply,
    open: &Open<'_>,
    changes: &[Change],
    places: &[usize],
) -> Result<Vec<(usize, Error)>, Failure> {
    let mut taken = vec![false; changes.len()];
    let mut left = units(changes, places);
    let mut many = left.len().div_ceil(2);
    loop {
        let before = left.len();
        let mut at = 0;
        while at < left.len() {
            let end = (at + many).min(left.len());
            let part = || left[at..end].iter().flat_map(|unit| unit.places.clone());
            let tried = part().fold(taken.clone(), |mut tried, place| {
                tried[place] = true;
                tried
            });
            match attempt(apply, open, changes, &tried).await? {
                None => {
                    taken = tried;
                    left.drain(at..end);
                }
                Some(error) => {
                    left[at].error = Some(error);
                    at = end;
                }
            }
        }
        if many == 1 && left.len() == before {
            break;
        }
        many = (many / 2).max(1);
    }
    if left.is_empty() {
        // Somebody else has mended it meanwhile.
        return Err(Error::unavailable("changes that were refused together are not any more").into());
    }
    // The second half of a key update stands for both.
    Ok(left.into_iter().filter_map(|unit| Some((unit.places.end - 1, unit.error?))).collect())
}

fn units(changes: &[Change], places: &[usize]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for place in places.iter().copied() {
        match units.last_mut() {
            Some(unit) if unit.places.end == place && halves(&changes[place - 1..]).is_some() => unit.places.end += 1,
            _ => units.push(Unit { places: place..place + 1, error: None }),
        }
    }
    units
}

/// Applies the changes that are `taken`, and undoes that: `None`, or why they cannot stay.
async fn attempt(
    apply: &dyn Apply,
    open: &Open<'_>,
    changes: &[Change],
    taken: &[bool],
) -> Result<Option<Error>, Failure> {
    let chosen: Vec<Change> =
        changes.iter().zip(taken).filter(|(_, taken)| **taken).map(|(change, _)| change.clone()).collect();
    open.run(MARK).await?;
    let refused = match apply.apply(open, &chosen).await {
        Ok(()) => refusal(open).await?,
        Err(Failure::Refused(_, error)) => Some(error),
        Err(failed @ Failure::Failed(_)) => return Err(failed),
    };
    open.run(UNDO).await?;
    Ok(refused)
}
