use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Cx, Result, Source};
use watchkeeper_postgres::Replication;
use watchkeeper_testkit::laws::{Law, LawOf, SourceBench};
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, block_on, cx, shared};

struct Things {
    cx: Cx,
    base: Base<'static>,
    source: Replication,
}

#[async_trait]
impl SourceBench for Things {
    fn cx(&self) -> &Cx {
        &self.cx
    }

    fn source(&self) -> Arc<dyn Source> {
        Arc::new(self.source.clone())
    }

    async fn insert(&self, key: u64) -> Result<()> {
        self.base.run(&format!("INSERT INTO things VALUES ({key}, 0)")).await;
        Ok(())
    }

    async fn update(&self, key: u64) -> Result<()> {
        self.base.run(&format!("UPDATE things SET n = n + 1 WHERE id = {key}")).await;
        Ok(())
    }

    async fn delete(&self, key: u64) -> Result<()> {
        self.base.run(&format!("DELETE FROM things WHERE id = {key}")).await;
        Ok(())
    }

    async fn update_key(&self, from: u64, to: u64) -> Result<bool> {
        self.base.run(&format!("UPDATE things SET id = {to} WHERE id = {from}")).await;
        Ok(true)
    }

    async fn barrier(&self) -> Result<bool> {
        self.base.run("TRUNCATE things").await;
        Ok(true)
    }

    async fn lose_history(&self) -> Result<bool> {
        let advance = format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())", self.base.name);
        self.base.when_free(&advance).await;
        Ok(true)
    }
}

fn run(version: Version, law: &LawOf<dyn SourceBench>) -> Law {
    block_on(async {
        let base = Base::new(shared(version), "CREATE TABLE things(id bigint PRIMARY KEY, n int)").await;
        let (cx, source) = (cx(), base.source());
        let things = Things { cx, base, source };
        let held = law.holds_on(&things).await;
        things.base.done().await;
        held
    })
}

mod on_15 {
    use super::*;

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        super::run(Version::V15, law)
    }

    watchkeeper_testkit::source_laws!(run);
}

mod on_18 {
    use super::*;

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        super::run(Version::V18, law)
    }

    watchkeeper_testkit::source_laws!(run);
}
