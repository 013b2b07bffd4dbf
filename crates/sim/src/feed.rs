//! The log, as an instance reads it over the network.

use std::cmp::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::memory::Log;
use watchkeeper_core::{
    Batch, ChangeStream, Cx, Finding, LeaseKey, Limits, Payload, Pedigree, Position, Result, Source, StartAt, Window,
};

use crate::ground_truth::GroundTruth;
use crate::net::{Lines, Server};

/// A log over the network.
#[derive(Debug, Clone)]
pub struct FarLog {
    /// The server.
    pub server: Log,
    /// The way there.
    pub lines: Lines,
    /// What is so.
    pub truth: GroundTruth,
    /// The stream that reads it.
    pub key: LeaseKey,
}

#[async_trait]
impl Source for FarLog {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        self.server.check(cx).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        self.lines.approach(Server::Source).await?;
        self.server.identity(cx).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        self.server.compare(a, b)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        self.server.payload()
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        self.lines.approach(Server::Source).await?;
        let inner = self.server.open(cx, start).await?;
        let (lines, truth, key) = (self.lines.clone(), self.truth.clone(), self.key.clone());
        Ok(Box::new(FarStream { inner, server: self.server.clone(), lines, truth, key }))
    }
}

struct FarStream {
    inner: Box<dyn ChangeStream>,
    server: Log,
    lines: Lines,
    truth: GroundTruth,
    key: LeaseKey,
}

#[async_trait]
impl ChangeStream for FarStream {
    fn position(&self) -> Option<Position> {
        self.inner.position()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        // Nothing is taken before the wait is over, so a dropped call loses nothing.
        self.lines.approach(Server::Source).await?;
        self.inner.next_batch(cx, limits).await
    }

    async fn acknowledge(&mut self, _cx: &Cx, position: &Position) -> Result<()> {
        let (server, truth, key, position) =
            (self.server.clone(), self.truth.clone(), self.key.clone(), position.clone());
        let effect = async move {
            truth.acknowledged(&key, &position);
            server.prune(Log::number(&position)?);
            Ok(())
        };
        self.lines.call(Server::Source, effect).await
    }

    fn holds_back(&self) -> bool {
        self.inner.holds_back()
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.inner.window(cx).await
    }

    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.inner.close(cx).await
    }
}
