use std::cmp::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{
    Batch, ChangeStream, Cx, Finding, Limits, Payload, Pedigree, Position, Result, Source, Stage, StartAt, Window,
};

use super::script::{Script, lost};

/// A source with faults. Reading is never served apart: a dropped call must lose nothing.
#[derive(Debug, Clone)]
pub struct FaultySource {
    inner: Arc<dyn Source>,
    script: Script,
}

impl FaultySource {
    /// `inner`, failing as `script` says.
    pub fn new(inner: Arc<dyn Source>, script: Script) -> Self {
        Self { inner, script }
    }
}

#[async_trait]
impl Source for FaultySource {
    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "check", async move { inner.check(&own).await }).await
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "identity", async move { inner.identity(&own).await }).await
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let (inner, own, position, pedigree) =
            (Arc::clone(&self.inner), cx.clone(), position.clone(), pedigree.clone());
        self.script.play(cx, "verify", async move { inner.verify(&own, &position, &pedigree).await }).await
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        self.inner.compare(a, b)
    }

    fn earlier_bound(&self, target: &Position, current: &Position) -> Option<Position> {
        self.inner.earlier_bound(target, current)
    }

    fn stage(&self, position: &Position) -> Option<Stage> {
        self.inner.stage(position)
    }

    async fn resolve_names(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        self.script.play(cx, "resolve_names", async move { inner.resolve_names(&own, names).await }).await
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        self.inner.has_unfinished_snapshot(position)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        self.inner.payload()
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let (inner, own) = (Arc::clone(&self.inner), cx.clone());
        let inner = self.script.play(cx, "open", async move { inner.open(&own, start).await }).await?;
        Ok(Box::new(FaultyStream { inner, script: self.script.clone() }))
    }
}

struct FaultyStream {
    inner: Box<dyn ChangeStream>,
    script: Script,
}

#[async_trait]
impl ChangeStream for FaultyStream {
    fn position(&self) -> Option<Position> {
        self.inner.position()
    }

    fn stage(&self) -> Option<Stage> {
        self.inner.stage()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        let lose = self.script.before(cx, "next_batch").await?;
        let answer = self.inner.next_batch(cx, limits).await;
        if lose { Err(lost("next_batch")) } else { answer }
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        let lose = self.script.before(cx, "acknowledge").await?;
        let answer = self.inner.acknowledge(cx, position).await;
        if lose { Err(lost("acknowledge")) } else { answer }
    }

    fn holds_back(&self) -> bool {
        self.inner.holds_back()
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        let lose = self.script.before(cx, "window").await?;
        let answer = self.inner.window(cx).await;
        if lose { Err(lost("window")) } else { answer }
    }

    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        let lose = self.script.before(cx, "close").await?;
        let answer = self.inner.close(cx).await;
        if lose { Err(lost("close")) } else { answer }
    }
}
