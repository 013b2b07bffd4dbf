//! The laws, in real time on files of their own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{Entropy, LeaseKey, Result};
use watchkeeper_sqlite::{Checkpoints, Client, Leases, RecordStore};
use watchkeeper_testkit::laws::{CheckpointBench, Damage, DamageCheckpoint, Law, LawOf, LeaseBench, RecordsBench};

use crate::support::{Folder, block_on, cx, execute};

const SHORT: Duration = Duration::from_millis(250);

/// Edits the file behind the store's back.
#[derive(Debug)]
struct Editor(Client);

#[async_trait]
impl DamageCheckpoint for Editor {
    async fn damage(&self, key: &LeaseKey, how: Damage) -> Result<()> {
        // No text in any encoding. Numbers of the claim are in strict columns.
        let garbled = "CAST(x'c328ff' AS TEXT)";
        let damaged = match how {
            Damage::Emptied => "checkpoint = '{}'".to_owned(),
            Damage::Garbled => format!("checkpoint = {garbled}"),
            Damage::ClaimGarbled => format!("checkpoint = {garbled}, tenure = {garbled}"),
        };
        let sql = format!("UPDATE watchkeeper_checkpoints SET {damaged} WHERE key = '{key}'");
        execute(&self.0, &sql).await
    }
}

mod leases {
    use super::*;

    fn run(law: &LawOf<LeaseBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Leases::open(&cx, folder.client("leases.db").await).await?);
            let b = Arc::new(Leases::open(&cx, folder.client("leases.db").await).await?);
            law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
        })
    }

    watchkeeper_testkit::lease_laws!(run);
}

mod checkpoints {
    use super::*;

    fn run(law: &LawOf<CheckpointBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            let b = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            let damager = Arc::new(Editor(folder.client("state.db").await));
            law.holds_on(&CheckpointBench { cx, a, b, damager, entropy }).await
        })
    }

    watchkeeper_testkit::checkpoint_laws!(run);
}

mod records {
    use super::*;

    fn run(law: &LawOf<RecordsBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(RecordStore::open(&cx, folder.client("leases.db").await).await?);
            let b = Arc::new(RecordStore::open(&cx, folder.client("leases.db").await).await?);
            law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT * 2 }).await
        })
    }

    watchkeeper_testkit::records_laws!(run);
}

mod source {
    use async_trait::async_trait;
    use watchkeeper_core::{Cx, Result, Source};
    use watchkeeper_sqlite::rusqlite::Params;
    use watchkeeper_sqlite::{ChangeLog, Client, tools};
    use watchkeeper_testkit::laws::SourceBench;

    use super::*;

    struct Things {
        cx: Cx,
        application: Client,
        log: ChangeLog,
    }

    impl Things {
        async fn run(&self, sql: &'static str, values: impl Params + Send + 'static) -> Result<()> {
            self.application.write(&self.cx, move |transaction| Ok(transaction.execute(sql, values).map(drop)?)).await
        }
    }

    #[async_trait]
    impl SourceBench for Things {
        fn cx(&self) -> &Cx {
            &self.cx
        }

        fn source(&self) -> Arc<dyn Source> {
            Arc::new(self.log.clone())
        }

        async fn insert(&self, key: u64) -> Result<()> {
            self.run("INSERT INTO things VALUES (?1, 0, 'new')", [key.cast_signed()]).await
        }

        async fn update(&self, key: u64) -> Result<()> {
            self.run("UPDATE things SET n = n + 1 WHERE id = ?1", [key.cast_signed()]).await
        }

        async fn delete(&self, key: u64) -> Result<()> {
            self.run("DELETE FROM things WHERE id = ?1", [key.cast_signed()]).await
        }

        async fn update_key(&self, from: u64, to: u64) -> Result<bool> {
            self.run("UPDATE things SET id = ?2 WHERE id = ?1", (from.cast_signed(), to.cast_signed())).await?;
            Ok(true)
        }

        async fn lose_history(&self) -> Result<bool> {
            tools::prune(&self.cx, &self.application, u64::MAX).await?;
            Ok(true)
        }
    }

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, application) = (cx(), folder.client("app.db").await);
            let table = "CREATE TABLE things(id INTEGER PRIMARY KEY, n INTEGER, name TEXT)";
            application.write(&cx, move |transaction| Ok(transaction.execute_batch(table)?)).await?;
            tools::install(&cx, &application, &["things"]).await?;
            let log = ChangeLog::open(&cx, folder.client("app.db").await, "law").await?;
            law.holds_on(&Things { cx, application, log }).await
        })
    }

    watchkeeper_testkit::source_laws!(run);
}

mod transactional_sink {
    use async_trait::async_trait;
    use watchkeeper_core::{Result, Sink, Version};
    use watchkeeper_sqlite::{Client, Events, Transactional};
    use watchkeeper_testkit::laws::{Effect, TransactionalBench};

    use super::*;

    struct Table {
        checkpoints: CheckpointBench,
        sink: Transactional,
        reader: Client,
    }

    #[async_trait]
    impl TransactionalBench for Table {
        fn sink(&self) -> Arc<dyn Sink> {
            Arc::new(self.sink.clone())
        }

        fn checkpoints(&self) -> &CheckpointBench {
            &self.checkpoints
        }

        async fn delivered(&self) -> Result<Vec<Effect>> {
            let read = |transaction: &watchkeeper_sqlite::rusqlite::Transaction<'_>| {
                let sql = "SELECT id, key, version_time, version_ordinal FROM events ORDER BY number";
                let mut statement = transaction.prepare(sql)?;
                let rows = statement.query_map([], |row| {
                    let (key, time, ordinal): (Option<Vec<u8>>, i64, i64) = (row.get(1)?, row.get(2)?, row.get(3)?);
                    let version = Version { time: time.cast_unsigned(), ordinal: ordinal.cast_unsigned() };
                    Ok(Effect { id: row.get(0)?, key: key.map(Into::into), version })
                })?;
                Ok(rows.collect::<watchkeeper_sqlite::rusqlite::Result<_>>()?)
            };
            self.reader.read(&self.checkpoints.cx, read).await
        }
    }

    fn run(law: &LawOf<dyn TransactionalBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let sink = Transactional::open(&cx, folder.client("state.db").await, Events::into("events")?).await?;
            sink.check(&cx).await?;
            let a = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            let b = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            let damager = Arc::new(Editor(folder.client("state.db").await));
            let checkpoints = CheckpointBench { cx, a, b, damager, entropy };
            law.holds_on(&Table { checkpoints, sink, reader: folder.client("state.db").await }).await
        })
    }

    watchkeeper_testkit::transactional_laws!(run);
}
