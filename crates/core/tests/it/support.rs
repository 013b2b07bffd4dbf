//! What several tests need: a clock that is moved by hand, and batches with little to say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use watchkeeper_core::clock::Sleep;
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Change, Clock, Moment, Operation, Payload, Position, RowParts, SourceTime, Version,
};

/// A clock that moves only when it is told to.
#[derive(Debug, Clone)]
pub(crate) struct ManualClock {
    now: Arc<watch::Sender<Moment>>,
}

impl ManualClock {
    pub(crate) fn at(nanos: u64) -> Self {
        Self { now: Arc::new(watch::Sender::new(Moment::from_nanos(nanos))) }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = *now + by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        *self.now.borrow()
    }

    fn sleep_until(&self, moment: Moment) -> Sleep {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // The sender lives as long as the clock that the test holds.
            let _ = now.wait_for(|now| *now >= moment).await;
        })
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

/// An insert of key `k` at position 7 with an empty JSON document; tests change what they are about.
pub(crate) fn parts() -> RowParts<'static> {
    RowParts {
        operation: Operation::Insert,
        namespace: 0,
        half: 0,
        committable: true,
        key: Some(b"k"),
        position: &[7],
        body: b"{}",
        time: SourceTime(1_700_000_000_007),
        version: Version { time: 3, ordinal: 4 },
    }
}

pub(crate) fn builder() -> BatchBuilder {
    builder_of(Arc::new(JsonPayload))
}

pub(crate) fn builder_of(payload: Arc<dyn Payload>) -> BatchBuilder {
    let mut builder = BatchBuilder::new("log".into(), payload);
    assert_eq!(builder.namespace("shop.orders"), 0);
    builder
}

pub(crate) fn end() -> Position {
    Position::new(vec![9], None)
}

pub(crate) fn batch(rows: &[RowParts<'_>]) -> Batch {
    let mut builder = builder();
    rows.iter().for_each(|row| builder.push(*row));
    builder.finish(end())
}

pub(crate) fn change(row: RowParts<'_>) -> Change {
    Change::new(Arc::new(batch(&[row])), 0)
}
