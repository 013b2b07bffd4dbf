//! The application that writes.

use async_trait::async_trait;
use watchkeeper_postgres::tokio_postgres::Client;

use super::super::{Writer, Written};
use super::ORDERS;
use super::link::Link;

pub(super) struct App {
    link: Link,
}

impl App {
    pub(super) fn new(link: Link) -> Self {
        Self { link }
    }
}

/// How far a transaction came that failed.
enum Failed {
    /// A commit was never sent, so nothing is written.
    Before,
    /// The commit was sent.
    InCommit,
}

async fn transact(client: &mut Client, changes: &[(String, u64)]) -> Result<(), Failed> {
    let before = |_| Failed::Before;
    let transaction = client.transaction().await.map_err(before)?;
    let upsert = format!(
        "INSERT INTO {ORDERS} (id, number) SELECT * FROM unnest($1::text[], $2::bigint[])
         ON CONFLICT (id) DO UPDATE SET number = excluded.number"
    );
    // In one order for all, so that two writers never wait for each other in a circle.
    let mut sorted: Vec<_> = changes.iter().collect();
    sorted.sort();
    let keys: Vec<&str> = sorted.iter().map(|(key, _)| key.as_str()).collect();
    let numbers: Vec<i64> = sorted.iter().map(|(_, number)| number.cast_signed()).collect();
    transaction.execute(&upsert, &[&keys, &numbers]).await.map_err(before)?;
    transaction.commit().await.map_err(|_| Failed::InCommit)
}

#[async_trait]
impl Writer for App {
    async fn write(&mut self, changes: &[(String, u64)]) -> Written {
        let Ok(client) = self.link.client().await else { return Written::Refused };
        match transact(client, changes).await {
            Ok(()) => Written::Acknowledged,
            Err(Failed::Before) => Written::Refused,
            Err(Failed::InCommit) => Written::Unknown,
        }
    }
}
