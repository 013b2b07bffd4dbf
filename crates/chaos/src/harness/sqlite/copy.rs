//! A mirror with a record of every write to it, which a trigger of its owner keeps.

use async_trait::async_trait;
use watchkeeper_core::{Cx, Result, Sink};
use watchkeeper_drill::Arrival;
use watchkeeper_sqlite::rusqlite::{self, Transaction};
use watchkeeper_sqlite::{Client, Mirror, Transactional};

use super::super::Target;

/// The file and the table of the mirror.
pub(super) const FILE: &str = "copy.db";
pub(super) const TABLE: &str = "orders_copy";

const RECORD: &str = "
    CREATE TABLE writes(seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, number INTEGER NOT NULL);
    CREATE TRIGGER record AFTER INSERT ON orders_copy BEGIN
        INSERT INTO writes(key, number) VALUES (
            json_extract(CAST(new.body AS TEXT), '$.after.key'), json_extract(CAST(new.body AS TEXT), '$.after.number'));
    END";

/// Makes the mirror's table as the sink itself does, then the record.
pub(super) async fn make(cx: &Cx, client: Client) -> Result<()> {
    Transactional::open(cx, client.clone(), Mirror::into(TABLE)?).await?.check(cx).await?;
    client.write(cx, |transaction| Ok(transaction.execute_batch(RECORD)?)).await
}

/// The writes to the mirror.
pub(super) struct Writes {
    client: Client,
    cx: Cx,
    after: i64,
}

impl Writes {
    pub(super) fn new(cx: &Cx, client: Client) -> Self {
        Self { client, cx: cx.clone(), after: 0 }
    }
}

#[async_trait]
impl Target for Writes {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let after = self.after;
        let read = move |transaction: &Transaction<'_>| {
            let sql = "SELECT seq, key, number FROM writes WHERE seq > ?1 ORDER BY seq";
            let mut statement = transaction.prepare_cached(sql)?;
            let rows = statement.query_map([after], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            Ok(rows.collect::<rusqlite::Result<Vec<(i64, String, i64)>>>()?)
        };
        let rows = self.client.read(&self.cx, read).await?;
        self.after = rows.last().map_or(after, |(seq, ..)| *seq);
        let write = |(_, key, number): (i64, String, i64)| Arrival { key, number: number.cast_unsigned(), epoch: 0 };
        Ok(rows.into_iter().map(write).collect())
    }
}
