//! The least that a durable write costs: one row of a given size.

use async_trait::async_trait;
use watchkeeper_core::Result;

use super::super::Bare;
use super::link::{Link, unavailable};

pub(super) struct OneRow {
    link: Link,
    body: Vec<u8>,
}

/// What stands around the bytes in the row.
const AROUND: usize = 36;

impl OneRow {
    /// As large as the largest row of `like`.
    pub(super) async fn like(like: &str, mut link: Link) -> Result<Self> {
        let client = link.client().await?;
        let size = format!("SELECT coalesce(max(pg_column_size(t.*)), 0)::int FROM {like} t");
        let largest: i32 = client.query_one(&size, &[]).await.map_err(unavailable)?.get(0);
        let table = "CREATE TABLE IF NOT EXISTS bare (id int PRIMARY KEY, body bytea) WITH (fillfactor = 50);
                     ALTER TABLE bare ALTER body SET STORAGE PLAIN";
        client.batch_execute(table).await.map_err(unavailable)?;
        let bytes = usize::try_from(largest).unwrap_or(0).saturating_sub(AROUND);
        Ok(Self { link, body: vec![7; bytes] })
    }
}

#[async_trait]
impl Bare for OneRow {
    async fn write(&mut self) -> Result<()> {
        let upsert = "INSERT INTO bare VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET body = excluded.body";
        let client = self.link.client().await?;
        client.execute(upsert, &[&self.body]).await.map(drop).map_err(unavailable)
    }
}
