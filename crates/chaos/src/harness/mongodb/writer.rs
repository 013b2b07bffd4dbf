//! The application that writes.

use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::Cx;
use watchkeeper_mongodb::Client;
use watchkeeper_mongodb::mongodb::bson::{Document, doc};
use watchkeeper_mongodb::mongodb::options::{TransactionOptions, WriteConcern};
use watchkeeper_mongodb::mongodb::{self, ClientSession};

use super::super::{Writer, Written};
use super::ORDERS;

/// How long the majority may take; a server that waits longer has lost it.
const MAJORITY: Duration = Duration::from_secs(5);

pub(super) struct App {
    client: Client,
    cx: Cx,
    session: Option<ClientSession>,
}

/// How far a transaction came that failed.
enum Failed {
    /// A commit was never sent, so nothing is written.
    Before,
    /// The commit was sent.
    InCommit,
}

impl App {
    pub(super) fn new(client: Client, cx: Cx) -> Self {
        Self { client, cx, session: None }
    }

    async fn driver(&self) -> Option<mongodb::Client> {
        self.client.driver(&self.cx).await.ok()
    }

    /// One transaction, which is kept by a majority when it is answered.
    async fn transact(&self, session: &mut ClientSession, changes: &[(String, u64)]) -> Result<(), Failed> {
        let database = session.client().database(self.client.config().database());
        let mut majority = WriteConcern::majority();
        majority.w_timeout = Some(MAJORITY);
        let mut options = TransactionOptions::default();
        options.write_concern = Some(majority);
        session.start_transaction().with_options(options).await.map_err(|_| Failed::Before)?;
        let upsert = |(key, number): &(String, u64)| {
            let document = doc! { "number": number.cast_signed() };
            doc! { "q": { "_id": key }, "u": document, "upsert": true }
        };
        let updates: Vec<Document> = changes.iter().map(upsert).collect();
        let reply = database.run_command(doc! { "update": ORDERS, "updates": updates }).session(&mut *session).await;
        if reply.map_or(true, |reply| reply.contains_key("writeErrors")) {
            return Err(Failed::Before);
        }
        session.commit_transaction().await.map_err(|_| Failed::InCommit)
    }

    /// Ends what may be open: it would lock its documents for a minute. A new primary knows nothing of it.
    async fn give_up(&mut self, session: &ClientSession) {
        let Some(driver) = self.driver().await else { return };
        for _ in 0..3 {
            let kill = doc! { "killSessions": [session.id().clone()] };
            if driver.database("admin").run_command(kill).await.is_ok() {
                return;
            }
        }
    }
}

#[async_trait]
impl Writer for App {
    async fn write(&mut self, changes: &[(String, u64)]) -> Written {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                let Some(driver) = self.driver().await else { return Written::Refused };
                let Ok(session) = driver.start_session().await else { return Written::Refused };
                session
            }
        };
        match self.transact(&mut session, changes).await {
            Ok(()) => {
                self.session = Some(session);
                Written::Acknowledged
            }
            Err(failed) => {
                self.give_up(&session).await;
                match failed {
                    Failed::Before => Written::Refused,
                    Failed::InCommit => Written::Unknown,
                }
            }
        }
    }
}
