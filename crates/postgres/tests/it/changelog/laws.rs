//! The laws of sources.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Cx, Error, Result, Source};
use watchkeeper_postgres::ChangeLog;
use watchkeeper_postgres::changelog::{Columns, Unread, prune};
use watchkeeper_testkit::laws::{Law, LawOf, SourceBench};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::Shop;
use crate::support::{Base, block_on, cx};

struct Things {
    cx: Cx,
    shop: Shop,
    log: ChangeLog,
}

impl Things {
    async fn run(&self, sql: String) -> Result<()> {
        let done = self.shop.application.batch_execute(&sql).await;
        done.map_err(|error| Error::internal("the application cannot write").caused_by(error))
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
        self.run(format!("INSERT INTO things VALUES ({key}, 0, 'new')")).await
    }

    async fn update(&self, key: u64) -> Result<()> {
        self.run(format!("UPDATE things SET n = n + 1 WHERE id = {key}")).await
    }

    async fn delete(&self, key: u64) -> Result<()> {
        self.run(format!("DELETE FROM things WHERE id = {key}")).await
    }

    async fn update_key(&self, from: u64, to: u64) -> Result<bool> {
        self.run(format!("UPDATE things SET id = {to} WHERE id = {from}")).await?;
        Ok(true)
    }

    async fn barrier(&self) -> Result<bool> {
        self.run("TRUNCATE things".to_owned()).await?;
        Ok(true)
    }

    async fn lose_history(&self) -> Result<bool> {
        prune(&self.cx, &self.shop.client, Unread::Discard).await?;
        Ok(true)
    }
}

fn run(law: &LawOf<dyn SourceBench>, version: Version) -> Law {
    block_on(async {
        let shop = Shop::new(version).await;
        let log = shop.log().await;
        law.holds_on(&Things { cx: cx(), shop, log }).await
    })
}

mod on_15 {
    use super::*;

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        super::run(law, Version::V15)
    }

    watchkeeper_testkit::source_laws!(run);
}

mod on_18 {
    use super::*;

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        super::run(law, Version::V18)
    }

    watchkeeper_testkit::source_laws!(run);
}

/// An outbox that an application fills itself.
mod of_an_outbox {
    use super::*;

    struct Outbox {
        cx: Cx,
        application: tokio_postgres::Client,
        log: ChangeLog,
    }

    impl Outbox {
        async fn write(&self, what: &str, key: u64) -> Result<()> {
            let sql = format!("INSERT INTO outbox (about, what, said) VALUES ({key}, '{what}', '{{\"n\": 1}}')");
            let done = self.application.batch_execute(&sql).await;
            done.map_err(|error| Error::internal("the application cannot write").caused_by(error))
        }
    }

    #[async_trait]
    impl SourceBench for Outbox {
        fn cx(&self) -> &Cx {
            &self.cx
        }

        fn source(&self) -> Arc<dyn Source> {
            Arc::new(self.log.clone())
        }

        async fn insert(&self, key: u64) -> Result<()> {
            self.write("INSERT", key).await
        }

        async fn update(&self, key: u64) -> Result<()> {
            self.write("update", key).await
        }

        async fn delete(&self, key: u64) -> Result<()> {
            self.write("delete", key).await
        }
    }

    const OUTBOX: &str = "CREATE TABLE outbox (number bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about text,
        what text, said jsonb, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp());
        CREATE INDEX ON outbox (xid)";

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        block_on(async {
            let (cx, base) = (cx(), Base::new(Version::V18).await);
            let application = base.admin().await;
            application.batch_execute(OUTBOX).await.expect("a table can be made");
            let named = |name: &str| Some(name.to_owned());
            let mut columns = Columns::of_outbox("about");
            columns.id = "number".to_owned();
            (columns.operation, columns.after, columns.time) = (named("what"), named("said"), named("at"));
            let log = ChangeLog::outbox(&cx, base.client().await, "law", "outbox", columns).await?;
            law.holds_on(&Outbox { cx, application, log }).await
        })
    }

    watchkeeper_testkit::source_laws!(run);
}
