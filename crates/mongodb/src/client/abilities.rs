//! What servers can do that not everyone who speaks MongoDB's protocol can: Cosmos DB, for one.
//!
//! It is found out by asking for it, once, by whoever needs it first; a refusal is an answer. What is missing is done without: leases
//! by local observation, hints by polling, ledgers without transactions.
//!
//! Only a refusal counts as an answer. Without `$$NOW`, leases work by local observation (see the `observed` module of
//! `lease`); without transactions, ledgers go through the outbox of the checkpoint's document.

use mongodb::bson::doc;
use mongodb::options::TransactionOptions;
use tokio::sync::OnceCell;
use watchkeeper_core::{Cx, ErrorKind, Result};

use super::{Client, change_hints, schema};
use crate::error::CallPurpose;

/// What was found out so far.
#[derive(Debug, Default)]
pub(super) struct Abilities {
    clock: OnceCell<bool>,
    tail: OnceCell<bool>,
    transactions: OnceCell<bool>,
}

impl Client {
    /// Whether the server compares times by its own clock: updates by pipelines, and `$$NOW` in them and in what is told.
    pub(crate) async fn has_clock(&self, cx: &Cx) -> Result<bool> {
        self.abilities.clock.get_or_try_init(async || answered(probe_clock(cx, self).await)).await.copied()
    }

    /// Whether hints can be waited for: capped collections, and cursors that follow them. Makes the collection of hints.
    pub(crate) async fn can_tail(&self, cx: &Cx) -> Result<bool> {
        self.abilities.tail.get_or_try_init(async || answered(change_hints::prepare(cx, self).await)).await.copied()
    }

    /// Whether several documents can be changed in one step.
    pub(crate) async fn has_transactions(&self, cx: &Cx) -> Result<bool> {
        let probe = async || answered(probe_transaction(cx, self).await);
        self.abilities.transactions.get_or_try_init(probe).await.copied()
    }
}

/// Whether it was done, or refused for good. A server that is away, or a user who may not ask, tells nothing.
fn answered(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Internal) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks for a change of a document that is not there: nothing is changed.
async fn probe_clock(cx: &Cx, client: &Client) -> Result<()> {
    let ask = doc! {
        "findAndModify": schema::META, "query": { "_id": "probe" }, "fields": { "now": "$$NOW" },
        "update": [{ "$set": { "at": "$$NOW" } }],
    };
    client.write(cx, ask).await?.whole(client).map(drop)
}

/// Reads in a transaction, and gives it up.
async fn probe_transaction(cx: &Cx, client: &Client) -> Result<()> {
    let cx = client.bounded(cx);
    let driver = client.driver(&cx).await?;
    let probe = async {
        let said = |native| client.error(native, CallPurpose::Reading);
        let mut session = driver.start_session().await.map_err(said)?;
        session.start_transaction().with_options(TransactionOptions::default()).await.map_err(said)?;
        let observation = doc! { "find": schema::META, "limit": 1, "singleBatch": true };
        let seen = client.state(&mut session, observation).await.map(drop);
        // A transaction that has only read holds nobody up, so nothing hangs on this.
        let _ = session.abort_transaction().await;
        seen
    };
    cx.run(probe).await
}
