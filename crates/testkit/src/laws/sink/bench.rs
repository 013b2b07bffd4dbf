use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::memory::{Delivered, Log, Table, TableSink};
use watchkeeper_core::payload::JsonPayload;
use watchkeeper_core::{
    Batch, BatchBuilder, Cx, Entropy, Epoch, FaultKind, Grade, Grant, LeaseKey, OpenedSink, Operation, Result,
    RowParts, Sink, SinkContext, SinkWriter, SourceTime, StoreIdentity, Version,
};

use crate::laws::lawful::{Broken, Law, TRIES, ensure};
use crate::world::World;

/// A change as it took effect at a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The change's id, where the target keeps it.
    pub id: Option<String>,
    /// The canonical key; `None` for a barrier.
    pub key: Option<Bytes>,
    /// The version, where the target keeps it, or what it can be told from (the body's `n`).
    pub version: Version,
}

/// What can be seen of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Everything that took effect, in order: a queue, a log.
    History,
    /// Of each key the newest state only: a table, an index.
    Newest,
}

/// A sink on the bench, with the means to see what took effect. The target of each law is empty.
///
/// Laws write JSON bodies like `{"n":5}`, where `n` is also the version's time.
#[async_trait]
pub trait SinkBench: Send + Sync {
    /// The context of all calls.
    fn cx(&self) -> &Cx;

    /// For identities that nobody used before.
    fn entropy(&self) -> &Entropy;

    /// The sink.
    fn sink(&self) -> Arc<dyn Sink>;

    /// What [`delivered`](Self::delivered) shows.
    fn view(&self) -> View {
        View::History
    }

    /// What took effect so far, in order.
    async fn delivered(&self) -> Result<Vec<Effect>>;

    /// The namespace of the changes that laws write.
    fn namespace(&self) -> String {
        "laws.things".to_owned()
    }
}

/// A change for a law to write: key (0 for a barrier) and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change(pub(crate) u64, pub(crate) u64);

/// A batch of these changes.
pub(crate) fn batch(namespace: &str, changes: &[Change]) -> Arc<Batch> {
    let mut builder = BatchBuilder::new("laws".into(), Arc::new(JsonPayload));
    let namespace = builder.namespace(namespace);
    let mut end = 0;
    for Change(key, n) in changes {
        let (key_bytes, body) = (key.to_be_bytes(), format!(r#"{{"n":{n}}}"#));
        builder.push(RowParts {
            operation: if *key == 0 { Operation::Truncate } else { Operation::Insert },
            namespace,
            half: 0,
            committable: true,
            key: (*key != 0).then_some(&key_bytes[..]),
            position: &n.to_be_bytes(),
            body: body.as_bytes(),
            time: SourceTime(1_700_000_000_000 + n),
            version: Version { time: *n, ordinal: 0 },
        });
        end = *n;
    }
    Arc::new(builder.finish(Log::position(end, None)))
}

/// The versions that key `key` has seen, in order.
pub(crate) fn keys_in_order(effects: &[Effect], key: u64) -> Vec<u64> {
    let key = key.to_be_bytes();
    let of_key = effects.iter().filter(|effect| effect.key.as_deref() == Some(&key[..]));
    of_key.map(|effect| effect.version.time).collect()
}

impl dyn SinkBench + '_ {
    pub(super) fn grant(&self, epoch: u64) -> Grant {
        Grant { key: LeaseKey::new("laws"), tenure: self.entropy().tenure(), epoch: Epoch(epoch) }
    }

    /// Opens with two lanes; `None` for a transactional sink, which has laws of its own.
    pub(super) async fn open(&self, epoch: u64) -> Result<Option<Arc<dyn SinkWriter>>> {
        let context = SinkContext {
            grant: self.grant(epoch),
            stream: "laws".to_owned(),
            sink: "bench".to_owned(),
            partition: 0,
            lanes: 2,
            store: StoreIdentity(uuid::Uuid::nil()),
        };
        match self.sink().open(self.cx(), &context).await? {
            OpenedSink::Plain(writer) => Ok(Some(writer)),
            OpenedSink::Transactional(_) => Ok(None),
        }
    }

    pub(super) fn batch(&self, changes: &[Change]) -> Arc<Batch> {
        batch(&self.namespace(), changes)
    }

    /// Writes all rows as the engine does: what is not done is asked for again.
    pub(super) async fn write(&self, writer: &dyn SinkWriter, lane: usize, changes: &[Change]) -> Law {
        let batch = self.batch(changes);
        let rows: Vec<u32> = (0..).take(changes.len()).collect();
        self.write_rows(writer, lane, &batch, &rows).await
    }

    pub(super) async fn write_rows(
        &self,
        writer: &dyn SinkWriter,
        lane: usize,
        batch: &Arc<Batch>,
        mut rows: &[u32],
    ) -> Law {
        for _ in 0..rows.len() + TRIES {
            if rows.is_empty() {
                return Ok(());
            }
            let most = rows.len().min(self.sink().profile().rows_max);
            let written = writer.write(self.cx(), lane, batch, &rows[..most]).await?;
            ensure!(written.rejected.is_empty(), "good rows were rejected: {:?}", written.rejected);
            let fatal = written.stopped.as_ref().is_some_and(|fault| fault.kind != FaultKind::Retry);
            ensure!(!fatal, "a good row stopped the writer: {:?}", written.stopped);
            ensure!(written.done <= most, "of {most} rows {} are told to be done", written.done);
            rows = &rows[written.done..];
        }
        Err(Broken::new("rows were never done, however often they were written"))
    }

    pub(super) async fn flush(&self, writer: &dyn SinkWriter) -> Law {
        let rejections = writer.flush(self.cx()).await?;
        ensure!(rejections.is_empty(), "good rows were rejected by a flush: {rejections:?}");
        Ok(())
    }

    /// Expects these versions of a key, or the last of them where only the newest can be seen.
    pub(super) async fn ensure_versions(&self, key: u64, expected: &[u64]) -> Law {
        let found = keys_in_order(&self.delivered().await?, key);
        let expected = match self.view() {
            View::History => expected,
            View::Newest => &expected[expected.len().saturating_sub(1)..],
        };
        ensure!(found == expected, "key {key} should have seen the versions {expected:?}, but saw {found:?}");
        Ok(())
    }
}

/// The reference in memory.
struct TableBench {
    cx: Cx,
    entropy: Arc<Entropy>,
    table: Table,
    sink: Arc<dyn Sink>,
}

impl dyn SinkBench {
    /// The reference in memory of this grade, in virtual time.
    pub fn in_memory(world: &World, grade: Grade) -> Box<dyn SinkBench> {
        Self::around(world, grade, |sink| sink)
    }

    /// What `wrap` makes of the reference in memory, in virtual time.
    pub fn around(
        world: &World,
        grade: Grade,
        wrap: impl FnOnce(Arc<dyn Sink>) -> Arc<dyn Sink>,
    ) -> Box<dyn SinkBench> {
        let table = Table::default();
        let sink = wrap(Arc::new(TableSink::new(table.clone(), grade)));
        Box::new(TableBench { cx: world.cx(), entropy: world.entropy(), table, sink })
    }
}

impl From<Delivered> for Effect {
    fn from(delivered: Delivered) -> Self {
        Self { id: Some(delivered.id), key: delivered.key, version: delivered.version }
    }
}

#[async_trait]
impl SinkBench for TableBench {
    fn cx(&self) -> &Cx {
        &self.cx
    }

    fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.sink)
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        Ok(self.table.delivered().into_iter().map(Effect::from).collect())
    }
}
