//! The source of a move that is made without reaching it.

use std::cmp::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper::core::payload::JsonPayload;
use watchkeeper::core::{Finding, Payload, Pedigree, Positions};
use watchkeeper::{ChangeStream, Cx, Error, Position, Result, Source, StartAt};

/// Accepts every position as one of the log that is stored: the stream verifies it when it opens.
#[derive(Debug)]
pub(crate) struct Unverified {
    /// What positions of the source say by themselves.
    pub(crate) positions: Option<Arc<dyn Positions>>,
    /// The log that the position belongs to, as far as that is stored.
    pub(crate) pedigree: Option<Pedigree>,
}

impl Unverified {
    fn refusal() -> Error {
        Error::internal("a move that does not need its source has asked for it").remedy("report this")
    }
}

#[async_trait]
impl Source for Unverified {
    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Err(Self::refusal())
    }

    async fn identity(&self, _cx: &Cx) -> Result<Pedigree> {
        self.pedigree.clone().ok_or_else(Self::refusal)
    }

    async fn verify(&self, _cx: &Cx, _position: &Position, _pedigree: &Pedigree) -> Result<()> {
        Ok(())
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        match &self.positions {
            Some(positions) => positions.compare(a, b),
            None => (a.bytes == b.bytes).then_some(Ordering::Equal),
        }
    }

    fn earlier_bound(&self, target: &Position, current: &Position) -> Option<Position> {
        self.positions.as_ref()?.earlier_bound(target, current)
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        self.positions.as_ref().is_some_and(|positions| positions.has_unfinished_snapshot(position))
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(JsonPayload)
    }

    async fn open(&self, _cx: &Cx, _start: StartAt) -> Result<Box<dyn ChangeStream>> {
        Err(Self::refusal())
    }
}
