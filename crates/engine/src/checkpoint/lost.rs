//! Checkpoints that are missing or damaged, although the stream has committed before.
//!
//! A stream that ever committed never begins anew by itself: it halts, and a person decides where it goes on.

use watchkeeper_core::{Checkpoint, CheckpointStore, Component, Cx, Error, ErrorKind, LeaseKey, Result, StoreIdentity};

use super::history::{History, HistoryEntry};
use crate::group::store_binding::StoreBindings;

/// What a person needs to know about the checkpoint of a stream that has lost it: what is wrong with it, and the newest position that
/// its history has.
pub fn lost(stream: &str, what: &str, newest: Option<&HistoryEntry>) -> Error {
    let history = match newest {
        Some(entry) => format!("the newest position of its history is {}, committed by {}", entry.position, entry.by),
        None => "its history has no position".to_owned(),
    };
    Error::corrupt(format!("the checkpoint of stream {stream:?} {what}, although it was committed before; {history}"))
        .remedy(choose_position(stream, newest))
        .raised_by(&Component::Checkpoints)
}

/// How a person decides where a stream goes on that has lost its position: most often at the newest one of its history.
pub fn choose_position(stream: &str, newest: Option<&HistoryEntry>) -> String {
    let anew = format!("begin anew with `watchkeeper checkpoint reset {stream}`");
    match newest {
        Some(entry) => format!(
            "choose where it goes on: `watchkeeper checkpoint set {stream} {}`, another position that `watchkeeper checkpoint history \
             {stream}` lists, or {anew}",
            entry.position
        ),
        None => format!("choose where it goes on: `watchkeeper checkpoint set {stream} POSITION`, or {anew}"),
    }
}

/// Whether a checkpoint of `stream` was ever stored in `store`. The home record says so, but not for streams that began before it was
/// written there, nor once it was deleted: a history with positions proves it too. A stream that began in another store has nothing to
/// lose in this one.
///
/// # Errors
/// What the records say when they do not answer.
pub async fn has_committed(
    cx: &Cx,
    bindings: &StoreBindings,
    (stream, store): (&str, StoreIdentity),
    history: &History,
) -> Result<bool> {
    if bindings.has_committed(cx, stream, store).await? {
        return Ok(true);
    }
    let began_elsewhere = bindings.store(cx, stream).await?.is_some_and(|binding| binding != store);
    Ok(!began_elsewhere && history.has_entries(cx).await?)
}

/// The newest position of a history, as far as it can be read.
pub async fn newest(cx: &Cx, history: &History) -> Option<HistoryEntry> {
    cx.run(history.read(cx, 1)).await.ok()?.into_iter().next()
}

/// The checkpoint of a stream as people see it. One that is missing or damaged although the stream has committed before is shown as
/// halted for that reason, which is what the next instance makes of it.
///
/// # Errors
/// What keeps the stores from answering.
pub async fn load(
    cx: &Cx,
    (store, bindings): (&dyn CheckpointStore, &StoreBindings),
    (stream, key): (&str, &LeaseKey),
    history: &History,
) -> Result<Option<Checkpoint>> {
    let what = match cx.run(store.load(cx, key)).await {
        Ok(Some(checkpoint)) if checkpoint.halted.is_none() && checkpoint.has_lost_position() => {
            "has no position".to_owned()
        }
        Ok(Some(checkpoint)) => return Ok(Some(checkpoint)),
        Ok(None) => {
            let identity = cx.run(store.identity(cx)).await?;
            match cx.run(has_committed(cx, bindings, (stream, identity), history)).await? {
                true => "is missing".to_owned(),
                false => return Ok(None),
            }
        }
        Err(error) if error.kind() == ErrorKind::Corrupt => format!("cannot be read ({})", error.message()),
        Err(error) => return Err(error),
    };
    let error = lost(stream, &what, newest(cx, history).await.as_ref());
    Ok(Some(Checkpoint::lost(None, &error)))
}
