//! What people want of a stream. Instances read it and act; nothing here is fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Cx, Epoch, Record, Records, Result, TenureId};

use super::report::millis;
use super::{amend, decode};

/// Asks the holder to deliver dead letters again, between two batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayRequest {
    /// Grows with every request, so that one is not served twice.
    pub id: u64,
    /// Only those of this sink.
    #[serde(default)]
    pub sink: Option<String>,
    /// Only these numbers of the ledger; none means all open ones. A letter whose elder of the same key is not among
    /// them has to wait for it.
    #[serde(default)]
    pub numbers: Vec<u64>,
}

/// Asks the holder to give dead letters up, with its next commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeRequest {
    /// Grows with every request, so that one is not served twice.
    pub id: u64,
    /// Only those of this sink.
    #[serde(default)]
    pub sink: Option<String>,
    /// Only these numbers of the ledger; none means all open ones.
    #[serde(default)]
    pub numbers: Vec<u64>,
}

/// Operators' moves that hold the stream still while they are under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// Their tenures.
    pub under_way: BTreeSet<TenureId>,
    /// Whether people had paused the stream, or did so since.
    pub paused_by_people: bool,
    /// So long after the record was written none of them is under way any more: a program that is still there has lifted its pause by then.
    /// `None`: nobody knows.
    #[serde(default)]
    pub patience_millis: Option<u64>,
}

/// The desired state of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Control {
    /// Nobody should run it.
    #[serde(default)]
    pub paused: bool,
    /// The name of the instance that should run it, as long as that is there.
    #[serde(default)]
    pub preferred: Option<String>,
    /// Whoever holds this epoch or an older one should leave in order.
    #[serde(default)]
    pub hand_over: Option<Epoch>,
    /// Its checkpoint says halted. Only a hint that saves an acquire.
    #[serde(default)]
    pub halted_hint: bool,
    /// The epoch of the last move that lifted a halt. Instances tell by it that the stream was resumed, however soon after the halt
    /// that was, and a hint of an older epoch that is written late counts no more.
    #[serde(default)]
    pub resumed: Option<Epoch>,
    /// Grows with every request that instances that stay away from the stream try it at once.
    #[serde(default)]
    pub tries: u64,
    /// The newest request to replay dead letters.
    #[serde(default)]
    pub replay: Option<ReplayRequest>,
    /// The newest request to purge dead letters.
    #[serde(default)]
    pub purge: Option<PurgeRequest>,
    /// Why it is paused without anyone having asked for that.
    #[serde(default)]
    pub moves: Option<Moves>,
    /// What a newer version wrote. It is kept, so that an old instance that changes one field does
    /// not undo the others.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

impl Control {
    /// An operator's request that no instance runs the stream.
    pub fn pause(&mut self) {
        self.paused = true;
        if let Some(moves) = &mut self.moves {
            moves.paused_by_people = true;
        }
    }

    /// An operator's request that it runs. It also ends the pause of a move whose program died, sooner than its patience does; a move
    /// that is alive is protected by its lease.
    pub fn unpause(&mut self) {
        self.paused = false;
        self.moves = None;
    }

    /// An operator's request that instances that stay away from the stream, or wait to connect it, try it at once.
    pub fn try_now(&mut self) {
        self.tries += 1;
    }

    /// Whether the holder of `epoch` should leave in order.
    pub fn asks_to_leave(&self, epoch: Epoch) -> bool {
        self.paused || self.hand_over.is_some_and(|newest| epoch <= newest)
    }

    /// Hints that the checkpoint was found halted under `epoch`, unless it was resumed since.
    pub fn hint_halted(&mut self, epoch: Epoch) {
        self.halted_hint |= self.resumed.is_none_or(|resumed| epoch > resumed);
    }

    /// Notes that a halt was lifted under `epoch`.
    pub fn note_resumed(&mut self, epoch: Epoch) {
        self.halted_hint = false;
        self.resumed = self.resumed.max(Some(epoch));
    }

    /// Pauses for an operator's move, which gives up after `patience`.
    pub fn begin_move(&mut self, tenure: TenureId, patience: Option<Duration>) {
        let (paused_by_people, patience) = (self.paused, patience.map(millis));
        let first = || Moves { under_way: BTreeSet::new(), paused_by_people, patience_millis: Some(0) };
        let moves = self.moves.get_or_insert_with(first);
        moves.under_way.insert(tenure);
        moves.patience_millis = moves.patience_millis.zip(patience).map(|(other, own)| other.max(own));
        self.paused = true;
    }

    /// Ends the moves of programs that are gone, where the record was written `age` ago. Nobody else lifts their pause.
    fn forget_dead_moves(&mut self, age: Duration) {
        let patience = self.moves.as_ref().and_then(|moves| moves.patience_millis);
        if patience.is_some_and(|patience| age > Duration::from_millis(patience)) {
            self.end_moves();
        }
    }

    fn end_moves(&mut self) {
        if let Some(moves) = self.moves.take() {
            self.paused = moves.paused_by_people;
        }
    }

    /// Ends an operator's move; the last one restores what people want.
    pub fn end_move(&mut self, tenure: TenureId) {
        let Some(moves) = &mut self.moves else { return };
        moves.under_way.remove(&tenure);
        if moves.under_way.is_empty() {
            self.end_moves();
        }
    }
}

/// The desired states of a group's streams.
#[derive(Debug, Clone)]
pub struct Controls {
    records: Arc<dyn Records>,
    prefix: String,
}

impl Controls {
    /// The desired states of `group`'s streams.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        Self { records, prefix: format!("{group}/control/") }
    }

    /// What is wanted of a stream; the default when nobody has said anything.
    pub async fn read(&self, cx: &Cx, stream: &str) -> Result<Control> {
        let record = self.records.get(cx, &self.name(stream)).await?;
        Ok(record.as_ref().map(current).transpose()?.unwrap_or_default())
    }

    /// What is wanted of every stream that anyone has said something about, in one round trip.
    ///
    /// # Errors
    /// `Corrupt` when one of them cannot be read: it might say "paused", so nothing is assumed.
    /// Callers go on with what they knew.
    pub async fn read_all(&self, cx: &Cx) -> Result<BTreeMap<String, Control>> {
        let records = self.records.list(cx, &self.prefix).await?;
        let named = |record| Some((record_stream(record, &self.prefix)?, record));
        records.iter().filter_map(named).map(|(stream, record)| Ok((stream.to_owned(), current(record)?))).collect()
    }

    /// Changes what is wanted of a stream; `change` is repeated on a fresh copy when someone else
    /// wrote in between. The answer is what is wanted now.
    ///
    /// # Errors
    /// `Unavailable` when that happened too often in a row.
    pub async fn update(&self, cx: &Cx, stream: &str, change: impl Fn(&mut Control)) -> Result<Control> {
        let change = |control: &mut Control, age| {
            control.forget_dead_moves(age);
            change(control);
        };
        amend(&*self.records, cx, &self.name(stream), change).await
    }

    fn name(&self, stream: &str) -> String {
        format!("{}{stream}", self.prefix)
    }
}

/// What a record says now.
fn current(record: &Record) -> Result<Control> {
    let mut control: Control = decode(record)?;
    control.forget_dead_moves(record.age);
    Ok(control)
}

fn record_stream<'a>(record: &'a watchkeeper_core::Record, prefix: &str) -> Option<&'a str> {
    record.name.strip_prefix(prefix)
}
