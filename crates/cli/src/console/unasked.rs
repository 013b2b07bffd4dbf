//! The source of a move that asks its source nothing.

use std::cmp::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper::core::payload::JsonPayload;
use watchkeeper::core::{Finding, Payload, Pedigree};
use watchkeeper::{ChangeStream, Cx, Error, Position, Result, Source, StartAt};

/// Answers nothing, and says so.
#[derive(Debug)]
pub(super) struct Unasked;

impl Unasked {
    fn refusal() -> Error {
        Error::internal("a move that needs no source has asked for it").remedy("report this")
    }
}

#[async_trait]
impl Source for Unasked {
    async fn check(&self, _cx: &Cx) -> Result<Vec<Finding>> {
        Err(Self::refusal())
    }

    async fn identity(&self, _cx: &Cx) -> Result<Pedigree> {
        Err(Self::refusal())
    }

    fn compare(&self, _a: &Position, _b: &Position) -> Option<Ordering> {
        None
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(JsonPayload)
    }

    async fn open(&self, _cx: &Cx, _start: StartAt) -> Result<Box<dyn ChangeStream>> {
        Err(Self::refusal())
    }
}
