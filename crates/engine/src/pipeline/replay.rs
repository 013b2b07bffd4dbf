//! Replays or purges dead letters inside a tenure, between batches.
//!
//! Letters of one key go in the order of their numbers. What is rejected again stays, and so does what
//! is behind it. What is delivered is settled by the next commit, and its key is no longer parked.

use std::collections::BTreeSet;
use std::sync::Arc;

use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, Change, CheckpointStore, Component, Error, Grade, LeaseKey, LedgerQuery, LedgerRecord, Limits, Operation,
    Resolution, Result, Source, StartAt, StoredChange,
};

use super::lanes::Job;
use super::opening_state::{Failure, OpeningState};
use super::sink_delivery::SinkDelivery;
use crate::delivery::parking::{OnReject, Park, replay_order};
use crate::group::control::Controls;
use crate::stream::SinkSpec;
use crate::tenure::run_for;

/// What people ask of the dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRequest {
    /// Grows with every request, so that one is not served twice.
    pub id: u64,
    /// Only letters of this sink.
    pub sink: Option<String>,
    /// Only these numbers; none means all.
    pub numbers: Vec<u64>,
    /// Deliver them again, or give them up.
    pub what: Resolution,
}

/// The ledger of one stream, as a tenure sees it.
#[derive(Debug)]
pub struct DeadLetters {
    store: Arc<dyn CheckpointStore>,
    key: LeaseKey,
    source: Arc<dyn Source>,
    /// Where a served request is removed, and under which stream.
    controls: Option<(Controls, String)>,
    /// The newest request that was served, of each kind.
    served: [u64; 2],
    /// Whether letters are under way: a call may be abandoned.
    serving: bool,
    /// What this opening has settled. The store may not know of it yet.
    settled: BTreeSet<u64>,
}

/// Records read at once.
const PAGE: usize = 500;

/// Batches looked through for a change that was too large to keep.
const SEARCH_BATCHES_MAX: usize = 1_000;

impl DeadLetters {
    /// The ledger under `key`.
    pub fn new(store: Arc<dyn CheckpointStore>, key: LeaseKey, source: Arc<dyn Source>) -> Self {
        Self { store, key, source, controls: None, served: [0; 2], serving: false, settled: BTreeSet::new() }
    }

    /// Strikes served wishes off the control record of `stream`.
    #[must_use]
    pub fn cleared_by(mut self, controls: Controls, stream: &str) -> Self {
        self.controls = Some((controls, stream.to_owned()));
        self
    }

    /// The first of `requests` that has not been served.
    pub fn newest(&self, requests: &[DeadLetterRequest]) -> Option<DeadLetterRequest> {
        let is_new = |letter_request: &&DeadLetterRequest| {
            letter_request.id > self.served[usize::from(letter_request.what == Resolution::Purged)]
        };
        requests.iter().find(is_new).cloned()
    }

    /// Takes a request for served: neither this tenure nor the next one serves it again. What it did not
    /// come to is still open, for operators to see and to request again.
    pub async fn mark_served(&mut self, opening_state: &OpeningState, letter_request: &DeadLetterRequest) {
        self.served[usize::from(letter_request.what == Resolution::Purged)] = letter_request.id;
        let Some((controls, stream)) = &self.controls else { return };
        let cx = opening_state.tenure.cx().within(opening_state.stream.settings.timeouts.commit);
        let struck = controls.update(&cx, stream, |control| {
            control
                .replay
                .take_if(|request| letter_request.what == Resolution::Replayed && request.id == letter_request.id);
            control
                .purge
                .take_if(|request| letter_request.what == Resolution::Purged && request.id == letter_request.id);
        });
        if let Err(error) = cx.run(struck).await {
            tracing::debug!(%error, "a served wish was not struck off");
        }
    }

    /// Whether letters are under way: if so, a call to a sink may have been abandoned.
    pub fn is_serving(&self) -> bool {
        self.serving
    }

    /// Marks whether letters are under way.
    pub fn set_serving(&mut self, serving: bool) {
        self.serving = serving;
    }

    /// All open letters.
    pub async fn open(&self, opening_state: &OpeningState) -> Result<Vec<LedgerRecord>> {
        let cx = opening_state.tenure.cx().within(opening_state.stream.settings.timeouts.commit);
        let mut letters = open_letters(&cx, &*self.store, &self.key).await?;
        letters.retain(|record| !self.settled.contains(&record.number));
        Ok(letters)
    }

    /// Takes a letter for settled, whatever the store still says of it.
    pub fn mark_settled(&mut self, number: u64) {
        self.settled.insert(number);
    }

    /// Serves a request. The pipeline is quiet meanwhile.
    pub async fn serve(
        &mut self,
        opening_state: &OpeningState,
        deliveries: &[Arc<SinkDelivery>],
        letter_request: &DeadLetterRequest,
    ) -> Result<(), Failure> {
        let letters = self.open(opening_state).await.map_err(Failure::of)?;
        let total = letters.len();
        let mut settled = 0;
        for delivery in deliveries
            .iter()
            .filter(|delivery| letter_request.sink.as_deref().is_none_or(|sink| sink == delivery.name()))
        {
            let of_sink = |record: &&LedgerRecord| record.entry.sink == delivery.name();
            let own: Vec<_> = letters.iter().filter(of_sink).cloned().collect();
            for of_key in replay_order(own) {
                settled += self.serve_key(opening_state, delivery, letter_request, of_key).await?;
            }
        }
        tracing::info!(stream = opening_state.stream.settings.name, open = total, settled, "dead letters were served");
        opening_state.want_commit();
        Ok(())
    }

    /// Settles the letters of one key, the oldest first, until one is rejected again.
    async fn serve_key(
        &mut self,
        opening_state: &OpeningState,
        delivery: &SinkDelivery,
        letter_request: &DeadLetterRequest,
        of_key: Vec<LedgerRecord>,
    ) -> Result<u64, Failure> {
        let mut settled = 0;
        for record in &of_key {
            if !letter_request.numbers.is_empty() && !letter_request.numbers.contains(&record.number) {
                break;
            }
            if letter_request.what == Resolution::Replayed && !self.deliver(opening_state, delivery, record).await? {
                break;
            }
            opening_state.draft().resolve.push((record.number, letter_request.what));
            self.mark_settled(record.number);
            delivery.parked().unpark(&record.entry);
            settled += 1;
        }
        Ok(settled)
    }

    /// Delivers one letter and makes it durable; false when it was rejected again.
    async fn deliver(
        &self,
        opening_state: &OpeningState,
        delivery: &SinkDelivery,
        record: &LedgerRecord,
    ) -> Result<bool, Failure> {
        let Some((batch, row)) = self.find(opening_state, record).await? else { return Ok(false) };
        let job = Job { piece: u64::MAX, part: 0, batch, rows: vec![row] };
        delivery.deliver_letter(opening_state, &job).await
    }

    /// The change of a letter, as it was kept or read again. `None` when it is not to be had: the letter
    /// stays open, and the stream goes on.
    pub async fn find(
        &self,
        opening_state: &OpeningState,
        record: &LedgerRecord,
    ) -> Result<Option<(Arc<Batch>, u32)>, Failure> {
        let id = &record.entry.change_id;
        let Some(change) = &record.entry.change else { return Ok(None) };
        let payload = match change.operation {
            // Our own words, whatever the source speaks.
            Operation::Gap => Arc::new(JsonPayload),
            _ => self.source.payload(),
        };
        let batch = match change.to_batch(payload) {
            Some(mut batch) => {
                // Apart from all batches of this opening, which count up from 0.
                batch.seq = u64::MAX;
                Arc::new(batch)
            }
            None => match self.read_again(opening_state, record, change).await {
                Ok(batch) => batch,
                Err(_) if opening_state.tenure.loss().is_some() => return Err(Failure::Lost),
                Err(error) => {
                    tracing::warn!(change = id, %error, "a dead letter could not be read again; it stays");
                    return Ok(None);
                }
            },
        };
        let row = (0..batch.len() as u32).find(|row| batch.id(*row).to_string() == *id);
        Ok(row.map(|row| (batch, row)))
    }

    /// Reads a change that was too large to keep from the source again.
    async fn read_again(
        &self,
        opening_state: &OpeningState,
        record: &LedgerRecord,
        change: &StoredChange,
    ) -> Result<Arc<Batch>> {
        let settings = &opening_state.stream.settings;
        let cx = opening_state.tenure.cx().within(settings.timeouts.read);
        let start = record.entry.before.clone().map_or(StartAt::Oldest, StartAt::After);
        let mut stream = run_for(&cx, &Component::Source, self.source.open(&cx, start)).await?;
        let limits = Limits { wait: settings.limits.wait, ..settings.limits };
        let mut found = None;
        for _ in 0..SEARCH_BATCHES_MAX {
            let batch = Arc::new(run_for(&cx, &Component::Source, stream.next_batch(&cx, limits)).await?);
            let is_it = |row: &u32| {
                Change::new(Arc::clone(&batch), *row).position() == change.position
                    && batch.rows()[*row as usize].half == change.half
            };
            if (0..batch.len() as u32).any(|row| is_it(&row)) {
                found = Some(batch);
                break;
            }
        }
        run_for(&cx, &Component::Source, stream.close(&cx)).await?;
        found.ok_or_else(|| Error::position_lost(format!("change {} is gone", record.entry.change_id)))
    }
}

/// Says that a letter may be older than what the target has of its key. Only a key that is parked waits for its letters; a versioned
/// target itself leaves out what is older.
pub fn warn_if_stale(spec: &SinkSpec, batch: &Batch, row: u32) {
    let waits = spec.on_reject != OnReject::DeadLetter { park: Park::Change };
    if waits || spec.sink.profile().grade == Grade::Versioned {
        return;
    }
    tracing::warn!(
        sink = spec.name,
        change = %batch.id(row),
        "a dead letter is delivered although later changes of its key may have been before it: the target may have an older row now; change the row once more in the source, or purge such letters, or let later changes wait (park = \"key\")"
    );
}

/// All open letters under `key`, in the order of their numbers.
pub async fn open_letters(
    cx: &watchkeeper_core::Cx,
    store: &dyn CheckpointStore,
    key: &LeaseKey,
) -> Result<Vec<LedgerRecord>> {
    let mut letters = Vec::new();
    let mut after = 0;
    loop {
        let query = LedgerQuery { after, limit: PAGE, open_only: true };
        let page = run_for(cx, &Component::Checkpoints, store.ledger(cx, key, &query)).await?;
        let Some(last) = page.last() else { return Ok(letters) };
        after = last.number;
        letters.extend(page.into_iter().filter(|record| record.entry.kind.is_letter()));
    }
}
