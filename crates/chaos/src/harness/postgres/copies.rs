//! Versioned copies in another database of the server, with a record of every write, which triggers of their owner keep.
//!
//! Writes to one row wait for each other, so the record has those of one key in the order of their commits.

use std::collections::BTreeSet;

use async_trait::async_trait;
use watchkeeper_core::{Error, Result};
use watchkeeper_drill::Arrival;
use watchkeeper_postgres::tokio_postgres::Row;

use super::super::Target;
use super::link::{Link, unavailable};

/// Every copy, by the mode of its sink and by its table.
pub(super) const TABLES: [(&str, &str); 2] = [("versioned_rows", "orders_rows"), ("versioned", "orders_documents")];

const SCHEMA: &str = "
    CREATE TABLE orders_rows (id text PRIMARY KEY, number bigint NOT NULL);
    CREATE TABLE orders_documents (
        namespace text NOT NULL, key bytea NOT NULL, document json, time timestamptz NOT NULL,
        version_time bigint NOT NULL, version_ordinal bigint NOT NULL, deleted timestamptz,
        PRIMARY KEY (namespace, key));
    CREATE TABLE writes (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, copy text NOT NULL, key text NOT NULL, number bigint NOT NULL);
    CREATE FUNCTION record_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO writes (copy, key, number) VALUES ('versioned_rows', new.id, new.number);
        RETURN NULL;
    END $$;
    CREATE FUNCTION record_document() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO writes (copy, key, number)
            VALUES ('versioned', new.document->>'id', (new.document->>'number')::bigint);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record AFTER INSERT OR UPDATE ON orders_rows FOR EACH ROW EXECUTE FUNCTION record_row();
    CREATE TRIGGER record AFTER INSERT OR UPDATE ON orders_documents FOR EACH ROW EXECUTE FUNCTION record_document();";

/// The database of the copies of what is in the database `url`.
pub(super) fn url(url: &str) -> String {
    format!("{url}_copy")
}

/// Makes the database, its tables and the record.
pub(super) async fn make(source: &str) -> Result<()> {
    let (server, name) = source.rsplit_once('/').ok_or_else(|| Error::internal("the address names no database"))?;
    let create = format!("CREATE DATABASE {name}_copy");
    Link::to(&format!("{server}/postgres")).client().await?.batch_execute(&create).await.map_err(unavailable)?;
    Link::to(&url(source)).client().await?.batch_execute(SCHEMA).await.map_err(unavailable)
}

/// The writes to one copy.
pub(super) struct Writes {
    copy: &'static str,
    link: Link,
    /// The numbers of those that were given out. A later number may become visible before an earlier one.
    seen: BTreeSet<i64>,
}

impl Writes {
    pub(super) fn to(copy: &'static str, source: &str) -> Self {
        Self { copy, link: Link::to(&url(source)), seen: BTreeSet::new() }
    }
}

#[async_trait]
impl Target for Writes {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let client = self.link.client().await?;
        let sql = "SELECT seq, key, number FROM writes WHERE copy = $1 ORDER BY seq";
        let rows = client.query(sql, &[&self.copy]).await.map_err(unavailable)?;
        let write = |row: &Row| {
            let (key, number): (String, i64) = (row.get(1), row.get(2));
            Arrival { key, number: number.cast_unsigned(), epoch: 0 }
        };
        let new: Vec<_> = rows.iter().filter(|row| self.seen.insert(row.get(0))).collect();
        Ok(new.into_iter().map(write).collect())
    }
}
