//! A source that has as many changes as are asked for and costs next to nothing.
//!
//! Batches of 1,000 rows with keys of 16 bytes, positions of 8 and bodies of about 100. The bodies are
//! made once; only what a [`Batch`] owns for itself (rows, keys, positions) is made per batch.

use std::cmp::Ordering as Order;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, ChangeStream, Cx, Error, Finding, Limits, Operation, Payload, Pedigree, Position, Result,
    RowParts, Source, SourceTime, StartAt, Version, Window,
};

use crate::meter;
use crate::tally::Tally;

/// Rows of one batch.
pub(crate) const ROWS: u64 = 1_000;

/// Whose memory the bodies of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bodies {
    /// All batches share one buffer, so that the generator costs little.
    Shared,
    /// Every batch has a copy of its own, as from a real source, so that heap figures are honest.
    Owned,
}

/// A log of `total` changes.
#[derive(Debug, Clone)]
pub(crate) struct Generator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    total: u64,
    ownership: Bodies,
    bodies: Bytes,
    spans: Vec<Range<usize>>,
    /// Batches with changes that were asked for.
    batches: AtomicU64,
    /// Bytes of one whole batch, as the engine's window counts them.
    batch_bytes: AtomicUsize,
    /// The most heap in use when a batch was given out, for each third of the log.
    peaks: [AtomicUsize; 3],
    acknowledged: Tally,
}

impl Generator {
    /// A log of `total` changes, a multiple of [`ROWS`].
    pub(crate) fn new(total: u64, ownership: Bodies) -> Self {
        let mut bodies = Vec::new();
        let spans = (0..ROWS).map(|row| append_body(&mut bodies, row)).collect();
        let shared = Shared {
            total,
            ownership,
            bodies: bodies.into(),
            spans,
            batches: AtomicU64::new(0),
            batch_bytes: AtomicUsize::new(0),
            peaks: Default::default(),
            acknowledged: Tally::up_to(total),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Batches with changes that were asked for.
    pub(crate) fn batches(&self) -> u64 {
        self.shared.batches.load(Ordering::Acquire)
    }

    /// Bytes of one batch, as the engine's window counts them; zero before the first.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.shared.batch_bytes.load(Ordering::Acquire)
    }

    /// The most heap in use when a batch was given out, for each third of the log.
    pub(crate) fn peaks(&self) -> [usize; 3] {
        std::array::from_fn(|third| self.shared.peaks[third].load(Ordering::Acquire))
    }

    /// What was committed.
    pub(crate) fn acknowledged(&self) -> &Tally {
        &self.shared.acknowledged
    }

    /// The number of changes before `position`.
    pub(crate) fn number(position: &Position) -> Result<u64> {
        let bytes = position.bytes.as_ref().try_into();
        bytes.map(u64::from_be_bytes).map_err(|_| Error::corrupt("a position of this log has 8 bytes"))
    }
}

fn append_body(bodies: &mut Vec<u8>, row: u64) -> Range<usize> {
    let start = bodies.len();
    let body = format!(
        r#"{{"order":{row:08},"customer":"c-{:06}","status":"paid","amount":{:07},"note":"left at the door"}}"#,
        row * 7,
        row * 1_301
    );
    bodies.extend_from_slice(body.as_bytes());
    start..bodies.len()
}

/// Sixteen bytes that differ in every change: its number, and its number scattered.
fn key(number: u64) -> [u8; 16] {
    let scattered = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(number) << 64) | u128::from(scattered)).to_be_bytes()
}

impl Shared {
    fn batch(&self, after: u64, rows: u64) -> Batch {
        let mut builder = BatchBuilder::new("generated".into(), Arc::new(JsonPayload));
        let namespace = builder.namespace("shop.orders");
        for (number, body) in (after + 1..=after + rows).zip(&self.spans) {
            let parts = RowParts {
                operation: Operation::Insert,
                namespace,
                half: 0,
                committable: true,
                key: Some(&key(number)),
                position: &number.to_be_bytes(),
                body: &[],
                time: SourceTime(number),
                version: Version { time: number, ordinal: 0 },
            };
            builder.push_in_place(parts, body.clone());
        }
        let bodies = match self.ownership {
            Bodies::Shared => self.bodies.clone(),
            Bodies::Owned => Bytes::copy_from_slice(&self.bodies),
        };
        builder.finish_over(bodies, position(after + rows))
    }

    fn note(&self, after: u64, batch: &Batch) {
        self.batches.fetch_add(1, Ordering::AcqRel);
        self.batch_bytes.fetch_max(batch.size(), Ordering::AcqRel);
        let third = usize::try_from(after * 3 / self.total).unwrap_or_default();
        self.peaks[third].fetch_max(meter::heap_in_use(), Ordering::AcqRel);
    }
}

fn position(number: u64) -> Position {
    Position::new(number.to_be_bytes().to_vec(), Some(SourceTime(number)))
}

#[async_trait]
impl Source for Generator {
    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn identity(&self, _cx: &Cx) -> Result<Pedigree> {
        Ok(Pedigree(Bytes::from_static(b"generated")))
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Order> {
        Some(Self::number(a).ok()?.cmp(&Self::number(b).ok()?))
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(JsonPayload)
    }

    async fn open(&self, _cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let after = match start {
            StartAt::After(position) => Self::number(&position)?,
            StartAt::Now => self.shared.total,
            StartAt::Oldest | StartAt::Time(_) | StartAt::Snapshot => 0,
            StartAt::Operation(time) => return Err(time.unknown_to("a generated log")),
            unknown => return Err(unknown.unknown_to("a generated log")),
        };
        Ok(Box::new(Reading { shared: Arc::clone(&self.shared), after }))
    }
}

struct Reading {
    shared: Arc<Shared>,
    after: u64,
}

#[async_trait]
impl ChangeStream for Reading {
    fn position(&self) -> Option<Position> {
        Some(position(self.after))
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let rows = (self.shared.total - self.after).min(ROWS).min(limits.rows as u64);
        if rows == 0 {
            cx.clock().sleep_until(cx.now() + limits.wait).await;
            let empty = BatchBuilder::new("generated".into(), Arc::new(JsonPayload));
            return Ok(empty.finish(position(self.after)));
        }
        let batch = self.shared.batch(self.after, rows);
        self.shared.note(self.after, &batch);
        self.after += rows;
        Ok(batch)
    }

    async fn acknowledge(&mut self, _cx: &Cx, position: &Position) -> Result<()> {
        self.shared.acknowledged.raise(Generator::number(position)?);
        Ok(())
    }

    async fn window(&mut self, _cx: &Cx) -> Result<Window> {
        Ok(Window::default())
    }

    async fn close(self: Box<Self>, _cx: &Cx) -> Result<()> {
        Ok(())
    }
}
