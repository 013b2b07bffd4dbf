//! What has to be there before the log is read. A source is made whatever its tables are like: they concern only the stream that reads them,
//! and only once it does.

use watchkeeper_core::{Cx, Error, Result, StartAt};

use super::schema::SCHEMA;
use super::{ChangeLog, Table, named, outbox, shape};

impl ChangeLog {
    /// The same log with its tables as it names them now.
    ///
    /// # Errors
    /// `Config` when there is no log, when a table was never logged, and for an outbox whose columns or numbers do not do; `PositionLost` when there is
    /// no log any more that a position could belong to.
    pub(super) async fn settled(&self, cx: &Cx, start: &StartAt) -> Result<Self> {
        if let Table::Outbox { name, columns, .. } = &self.table {
            let log = self.require(cx).await?;
            outbox::require_order(cx, &self.client, name, &columns.id).await?;
            return Ok(log);
        }
        match self.require(cx).await {
            Ok(log) => Ok(log),
            Err(_) if matches!(start, StartAt::After(_)) && !self.is_there(cx).await? => Err(self.uninstalled()),
            Err(error) => Err(error),
        }
    }

    /// The same where nothing is read yet.
    pub(super) async fn require(&self, cx: &Cx) -> Result<Self> {
        match &self.table {
            Table::Own => {
                self.require_log(cx).await?;
                let Some(tables) = &self.tables else { return Ok(self.clone()) };
                let wanted = named::logged(cx, &self.client, tables).await?;
                Ok(Self { wanted: Some(wanted.into()), ..self.clone() })
            }
            Table::Outbox { name, written, columns } => {
                shape::require_columns(cx, &self.client, written, name, columns).await?;
                Ok(self.clone())
            }
        }
    }

    /// Refuses a database without a log of our own.
    pub(super) async fn require_log(&self, cx: &Cx) -> Result<()> {
        if self.is_there(cx).await? {
            return Ok(());
        }
        Err(Error::config(format!("{}: no table of this database is logged", self.client.place()))
            .remedy(format!("run `{}`", named::install_command(&self.client, self.first_table()))))
    }

    /// A table whose changes are wanted, as it was written; all may be, whatever they are called.
    pub(super) fn first_table(&self) -> &str {
        self.tables.as_ref().and_then(|tables| tables.first()).map_or("TABLE", |table| table.as_str())
    }

    /// Whether there is a log of our own, in whatever version; an outbox is looked at elsewhere.
    pub(super) async fn is_there(&self, cx: &Cx) -> Result<bool> {
        Ok(!self.is_own() || self.client.version(cx, SCHEMA).await? > 0)
    }

    /// The tables as the log names them, as far as that is known already: one that is not logged is named as it is written, with its schema.
    pub(super) async fn guess_wanted(self, cx: &Cx) -> Result<Self> {
        let (Table::Own, Some(tables)) = (&self.table, &self.tables) else { return Ok(self) };
        let known = if self.is_there(cx).await? { named::known(cx, &self.client).await? } else { Vec::new() };
        let mut wanted = Vec::new();
        for table in tables.iter() {
            wanted.push(named::find(cx, &self.client, &known, table).await?.entity);
        }
        Ok(Self { wanted: Some(wanted.into()), ..self })
    }
}
