//! Finds all changes of a transaction that the tables do not take.

use std::ops::Range;

use watchkeeper_core::{Change, Error};

use super::rekey::halves;
use super::{Apply, Failure, Open, deferred};

const MARK: &str = "SAVEPOINT watchkeeper_part";
const KEEP: &str = "RELEASE SAVEPOINT watchkeeper_part";
const UNDO: &str = "ROLLBACK TO SAVEPOINT watchkeeper_part; RELEASE SAVEPOINT watchkeeper_part";

/// Applies changes in order, without those that are refused, also by constraints that are looked at only at the end: the answer is
/// their places, with the reasons. If there are any, nothing is applied for certain.
///
/// # Errors
/// Nothing is known of any change, and the transaction is good for nothing.
pub(super) async fn apply(
    apply: &dyn Apply,
    open: &Open<'_>,
    changes: &[Change],
) -> Result<Vec<(usize, Error)>, Failure> {
    open.run(deferred::MARK).await?;
    let mut refused = apply_parts(apply, open, changes).await?;
    if deferred::refusal(open).await?.is_some() {
        open.run(deferred::UNDO).await?;
        let is_good = |place: &usize| !refused.iter().any(|(at, _)| at == place);
        let rest: Vec<usize> = (0..changes.len()).filter(is_good).collect();
        refused.extend(deferred::blame(apply, open, changes, &rest).await?);
    }
    Ok(refused)
}

/// Applies changes in order, without those that are refused at once. A part that is refused is undone and halved, so that a few bad
/// ones among many good ones cost little, and many cost no more than each change alone.
async fn apply_parts(apply: &dyn Apply, open: &Open<'_>, changes: &[Change]) -> Result<Vec<(usize, Error)>, Failure> {
    let (mut refused, mut parts) = (Vec::new(), Vec::new());
    push(&mut parts, 0..changes.len());
    while let Some(part) = parts.pop() {
        open.run(MARK).await?;
        match apply.apply(open, &changes[part.clone()]).await {
            Ok(()) => open.run(KEEP).await?,
            Err(Failure::Refused(at, error)) => {
                open.run(UNDO).await?;
                let at = at.map(|at| part.start + at).filter(|at| part.contains(at));
                match (at, middle(changes, &part)) {
                    (Some(at), _) => {
                        refused.push((at, error));
                        push(&mut parts, at + 1..part.end);
                        push(&mut parts, part.start..at);
                    }
                    (None, Some(middle)) => {
                        push(&mut parts, middle..part.end);
                        push(&mut parts, part.start..middle);
                    }
                    // The second half of a key update stands for both.
                    (None, None) => refused.push((part.end - 1, error)),
                }
            }
            Err(failed @ Failure::Failed(_)) => return Err(failed),
        }
    }
    Ok(refused)
}

fn push(parts: &mut Vec<Range<usize>>, part: Range<usize>) {
    if !part.is_empty() {
        parts.push(part);
    }
}

/// Where a part can be halved: not between the halves of a key update, of which the second needs what the first takes away.
fn middle(changes: &[Change], part: &Range<usize>) -> Option<usize> {
    let middle = part.start + part.len() / 2;
    let splits = |at: usize| at > part.start && at < part.end && halves(&changes[at - 1..]).is_none();
    [middle, middle + 1, middle.saturating_sub(1)].into_iter().find(|at| splits(*at))
}
