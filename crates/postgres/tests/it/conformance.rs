//! The laws, on real servers of both versions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use watchkeeper_core::{Cx, Entropy, LeaseKey, Result, Sink, Version as ChangeVersion};
use watchkeeper_postgres::{Checkpoints, Client, Events, Leases, Mirror, RecordStore, Transactional, Versioned};
use watchkeeper_testkit::laws::{
    CheckpointBench, Damage, DamageCheckpoint, Effect, Law, LawOf, LeaseBench, RecordsBench, SinkBench,
    TransactionalBench, View,
};
use watchkeeper_testkit::servers::postgres::Version;

use crate::support::{Base, block_on, cx};

const SHORT: Duration = Duration::from_millis(400);

/// Runs all laws of stores and sinks in one place.
macro_rules! stores {
    ($module:ident, $base:expr) => {
        mod $module {
            use super::*;

            mod leases {
                use super::*;

                fn run(law: &LawOf<LeaseBench>) -> Law {
                    block_on(super::super::lease_law(law, $base))
                }

                watchkeeper_testkit::lease_laws!(run);
            }

            mod checkpoints {
                use super::*;

                fn run(law: &LawOf<CheckpointBench>) -> Law {
                    block_on(super::super::checkpoint_law(law, $base))
                }

                watchkeeper_testkit::checkpoint_laws!(run);
            }

            mod records {
                use super::*;

                fn run(law: &LawOf<RecordsBench>) -> Law {
                    block_on(super::super::records_law(law, $base))
                }

                watchkeeper_testkit::records_laws!(run);
            }

            mod transactional_sink {
                use super::*;

                fn run(law: &LawOf<dyn TransactionalBench>) -> Law {
                    block_on(super::super::transactional_law(law, $base))
                }

                watchkeeper_testkit::transactional_laws!(run);
            }

            mod versioned_sink {
                use super::*;

                fn run(law: &LawOf<dyn SinkBench>) -> Law {
                    block_on(super::super::sink_law(law, $base))
                }

                watchkeeper_testkit::sink_laws!(run);
            }
        }
    };
}

stores!(on_15, Base::schema(Version::V15));
stores!(on_18, Base::schema(Version::V18));
stores!(through_a_pooler, Base::pooled());

async fn lease_law(law: &LawOf<LeaseBench>, base: Base) -> Law {
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(Leases::open(&cx, base.client().await).await?);
    let b = Arc::new(Leases::open(&cx, base.client().await).await?);
    law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
}

/// Edits the table behind the store's back.
#[derive(Debug)]
struct Editor(Client);

#[async_trait]
impl DamageCheckpoint for Editor {
    async fn damage(&self, key: &LeaseKey, how: Damage) -> Result<()> {
        let checkpoint = match how {
            Damage::Emptied => "{}",
            // The columns of the claim have types that take nothing else.
            Damage::Garbled | Damage::ClaimGarbled => "[7, null]",
        };
        let schema = self.0.schema();
        let sql = format!("UPDATE {schema}.checkpoints SET checkpoint = '{checkpoint}' WHERE key = '{key}'");
        self.0.write(&cx(), &sql, &[]).await.map(drop)
    }
}

async fn checkpoint_law(law: &LawOf<CheckpointBench>, base: Base) -> Law {
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    let b = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    let damager = Arc::new(Editor(base.client().await));
    law.holds_on(&CheckpointBench { cx, a, b, damager, entropy }).await
}

async fn records_law(law: &LawOf<RecordsBench>, base: Base) -> Law {
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(RecordStore::open(&cx, base.client().await).await?);
    let b = Arc::new(RecordStore::open(&cx, base.client().await).await?);
    law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT }).await
}

/// What a row of a sink's table tells: key, version (time, ordinal), id.
fn effect(row: &Row) -> Effect {
    let (key, time, ordinal): (Option<Vec<u8>>, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let version = ChangeVersion { time: time.cast_unsigned(), ordinal: ordinal.cast_unsigned() };
    Effect { id: row.get(3), key: key.map(Into::into), version }
}

struct Appended {
    checkpoints: CheckpointBench,
    sink: Transactional,
    reader: Client,
    table: String,
}

#[async_trait]
impl TransactionalBench for Appended {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(self.sink.clone())
    }

    fn checkpoints(&self) -> &CheckpointBench {
        &self.checkpoints
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        let sql = format!("SELECT key, version_time, version_ordinal, id FROM {} ORDER BY number", self.table);
        Ok(self.reader.read(&cx(), &sql, &[]).await?.iter().map(effect).collect())
    }
}

async fn transactional_law(law: &LawOf<dyn TransactionalBench>, base: Base) -> Law {
    let (cx, entropy, table) = (cx(), Arc::new(Entropy::from_system()), base.table("events"));
    let sink = Transactional::open(&cx, base.client().await, Events::into(&table)?).await?;
    sink.check(&cx).await?;
    let a = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    let b = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    let damager = Arc::new(Editor(base.client().await));
    let checkpoints = CheckpointBench { cx, a, b, damager, entropy };
    law.holds_on(&Appended { checkpoints, sink, reader: base.client().await, table }).await
}

struct Copy {
    cx: Cx,
    entropy: Entropy,
    sink: Versioned,
    reader: Client,
    table: String,
}

#[async_trait]
impl SinkBench for Copy {
    fn cx(&self) -> &Cx {
        &self.cx
    }

    fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(self.sink.clone())
    }

    fn view(&self) -> View {
        View::Newest
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        let sql = format!(
            "SELECT key, version_time, version_ordinal, NULL::text FROM {} WHERE deleted IS NULL ORDER BY key",
            self.table
        );
        Ok(self.reader.read(&self.cx, &sql, &[]).await?.iter().map(effect).collect())
    }
}

async fn sink_law(law: &LawOf<dyn SinkBench>, base: Base) -> Law {
    let (cx, entropy, table) = (cx(), Entropy::from_system(), base.table("copy"));
    let sink = Versioned::new(base.client().await, Mirror::into(&table)?);
    sink.check(&cx).await?;
    law.holds_on(&Copy { cx, entropy, sink, reader: base.client().await, table }).await
}
