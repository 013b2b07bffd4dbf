use std::time::Duration;

use tokio_postgres::Row;
use watchkeeper_core::{Cx, Result};

use super::{Client, Link, Value};
use crate::error::{CallPurpose, unchanged};

/// An open transaction. Dropping it closes its connection, and the server undoes it.
#[derive(Debug)]
pub struct Work {
    client: Client,
    link: Link,
    /// Whether a savepoint stands at its beginning.
    marked: bool,
}

/// Statements that bound what follows in the same transaction by what is left of the caller's time: its statements, its waits
/// for locks, and how long it may lie idle, so that a client that hangs does not hold locks for longer than its lease. The server
/// gives up a little before we do: what it says is certain, and what we do not wait for is not. Policies that hide rows are refused, since
/// a row that is not seen would be neither deleted nor told of.
pub(super) fn limits(cx: &Cx) -> String {
    let left = cx.remaining().unwrap_or(Duration::from_secs(10));
    let ms = (left.as_millis() * 9 / 10).clamp(1, 2_147_483_647);
    format!(
        "SET LOCAL statement_timeout = {ms}; SET LOCAL lock_timeout = {ms}; \
         SET LOCAL idle_in_transaction_session_timeout = {ms}; SET LOCAL row_security = off"
    )
}

/// Begins a transaction in which every statement sees what others have committed, whatever is the default here: rows are locked
/// before they are looked at, and whoever waited for one goes on with what it is by then.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Stands between what we have written and what others write in the same transaction.
const MARK: &str = "SAVEPOINT watchkeeper";

/// Makes the commit of this transaction wait for the disk where someone has set it not to: a commit that is told is durable.
pub(super) const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') = 'off'";

/// Settings of a role, a database or a server that would have a type's input function read a text as another value, or refuse it. They are
/// set for the transaction only.
/// Times without a zone are those of UTC. Dates are read with the year first, so that `01/02/2024`, which may be either, is refused.
const READS: &str = "SET LOCAL array_nulls = on; SET LOCAL lc_monetary = 'C'; SET LOCAL xmloption = content; SET LOCAL TimeZone = 'UTC'; \
    SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL IntervalStyle = 'postgres'";

impl Work {
    pub(super) async fn begin(client: &Client, cx: &Cx) -> Result<Self> {
        let cx = client.bounded(cx);
        let link = client.get(&cx).await?;
        let begin = format!("{BEGIN}; {}; {READS}; {DURABLE}", limits(&cx));
        let call =
            async { link.batch_execute(&begin).await.map_err(|native| client.error(native, CallPurpose::Reading)) };
        cx.run(call).await.map_err(unchanged)?;
        Ok(Self { client: client.clone(), link, marked: false })
    }

    /// Begins a transaction together with its first statement, in one round trip. A savepoint follows, by which the commit
    /// sees whether the transaction is still the same, and whole.
    pub(crate) async fn begin_with(
        client: &Client,
        cx: &Cx,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<(Self, Vec<Row>)> {
        let cx = client.bounded(cx);
        let link = client.get(&cx).await?;
        let begin = format!("{BEGIN}; {}; {READS}; {DURABLE}", limits(&cx));
        let call = async {
            let all = futures_util::future::join3(
                link.batch_execute(&begin),
                link.query_typed(sql, values),
                link.batch_execute(MARK),
            );
            let (begun, rows, marked) = all.await;
            let rows = begun.and(rows).map_err(|native| client.error(native, CallPurpose::Reading))?;
            marked.map_err(|native| client.error(native, CallPurpose::Reading))?;
            Ok(rows)
        };
        let rows = cx.run(call).await.map_err(unchanged)?;
        Ok((Self { client: client.clone(), link, marked: true }, rows))
    }

    /// The connection, for statements of others.
    pub fn connection(&self) -> &tokio_postgres::Client {
        &self.link
    }

    /// Sends a statement. Whatever becomes of it, nothing is changed before the commit.
    ///
    /// # Errors
    /// Nothing was changed, and the transaction is good for nothing but to be dropped.
    pub async fn query(&self, cx: &Cx, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        let cx = self.client.bounded(cx);
        let call = async {
            let rows = self.link.query_typed(sql, values).await;
            rows.map_err(|native| self.client.error(native, CallPurpose::Reading))
        };
        cx.run(call).await.map_err(unchanged)
    }

    /// Sends a statement; the answer is how many rows it was about.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub(crate) async fn execute(&self, cx: &Cx, sql: &str, values: &[Value<'_>]) -> Result<u64> {
        let cx = self.client.bounded(cx);
        let call = async {
            let done = self.link.execute_typed(sql, values).await;
            done.map_err(|native| self.client.error(native, CallPurpose::Reading))
        };
        cx.run(call).await.map_err(unchanged)
    }

    /// Sends statements without values.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub async fn run(&self, cx: &Cx, sql: &str) -> Result<()> {
        let cx = self.client.bounded(cx);
        let call = async {
            let done = self.link.batch_execute(sql).await;
            done.map_err(|native| self.client.error(native, CallPurpose::Reading))
        };
        cx.run(call).await.map_err(unchanged)
    }

    /// Commits.
    ///
    /// # Errors
    /// `Unknown` unless the server says that it has undone it.
    pub async fn commit(self, cx: &Cx) -> Result<()> {
        let cx = self.client.bounded(cx);
        let call = async {
            // A COMMIT after a failed statement would undo everything and call that a success; what stands before it fails
            // instead. A savepoint is gone also when someone has ended the transaction before.
            let commit = if self.marked { "RELEASE SAVEPOINT watchkeeper; COMMIT" } else { "SELECT 1; COMMIT" };
            let done = self.link.batch_execute(commit).await;
            done.map_err(|native| self.client.error(native, CallPurpose::Committing))
        };
        let answer = cx.run(call).await;
        if answer.is_ok() {
            self.link.give_back();
        }
        answer
    }

    /// Gives it up. If that fails, its connection is closed.
    pub async fn rollback(self, cx: &Cx) {
        let cx = self.client.bounded(cx);
        let call = async {
            let done = self.link.batch_execute("ROLLBACK").await;
            done.map_err(|native| self.client.error(native, CallPurpose::Reading))
        };
        if cx.run(call).await.is_ok() {
            self.link.give_back();
        }
    }
}
