//! The contracts of lease, checkpoint and record stores, as an instance sees them over the network.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::memory::{Leases, RecordStore};
use watchkeeper_core::{
    AcquireRequest, Acquired, Checkpoint, CheckpointStore, CheckpointWrite, Claim, Clock, Commit, Cx, Grant, Holder,
    Lease, LeaseKey, LeaseProfile, LeaseStore, LedgerQuery, LedgerRecord, PutOutcome, Record, Records, Released,
    Renewal, Result, Revision, StoreIdentity, Wakeups,
};

use crate::book::Book;
use crate::ground_truth::GroundTruth;
use crate::net::{Lines, Server};

/// The lease store.
#[derive(Debug, Clone)]
pub struct FarLeases {
    /// The server.
    pub server: Leases,
    /// The way there.
    pub lines: Lines,
    /// The clock of the instance.
    pub clock: Arc<dyn Clock>,
    /// What is so.
    pub truth: GroundTruth,
    /// The history.
    pub book: Book,
    /// For how long a holder may act after its request.
    pub acting_time: Duration,
}

#[async_trait]
impl LeaseStore for FarLeases {
    fn profile(&self) -> LeaseProfile {
        self.server.profile()
    }

    async fn try_acquire(&self, cx: &Cx, ask: &AcquireRequest) -> Result<Acquired> {
        let (server, own, sent) = (self.server.clone(), cx.clone(), self.clock.now());
        let (ask, book, instance) = (ask.clone(), self.book.clone(), self.lines.instance());
        let answer = self.lines.call(Server::Leases, async move {
            let answer = server.try_acquire(&own, &ask).await;
            if let Ok(Acquired::Granted { grant, previous }) = &answer {
                let ending = previous.as_ref().map(|previous| previous.ending);
                book.event(format_args!("lease {} epoch {} to {instance} after {ending:?}", grant.key, grant.epoch));
            }
            answer
        });
        let answer = answer.await?;
        if let Acquired::Granted { grant, .. } = &answer {
            self.truth.lease_runs(grant, sent, self.acting_time);
        }
        Ok(answer)
    }

    async fn renew(&self, cx: &Cx, leases: &[Lease]) -> Result<Vec<Renewal>> {
        let (server, own, sent, sent_leases) = (self.server.clone(), cx.clone(), self.clock.now(), leases.to_vec());
        let answers = self.lines.call(Server::Leases, async move { server.renew(&own, &sent_leases).await }).await?;
        let now = self.clock.now();
        for (lease, answer) in leases.iter().zip(&answers) {
            if *answer == Renewal::Held {
                self.truth.renewed(&lease.grant, sent, now, self.acting_time);
            }
        }
        Ok(answers)
    }

    async fn release(&self, cx: &Cx, grant: &Grant) -> Result<Released> {
        let (server, own, grant) = (self.server.clone(), cx.clone(), grant.clone());
        self.truth.release_sent(&grant);
        let (book, instance) = (self.book.clone(), self.lines.instance());
        let answer = self.lines.call(Server::Leases, async move {
            let answer = server.release(&own, &grant).await;
            book.event(format_args!("release {} epoch {} by {instance}: {answer:?}", grant.key, grant.epoch));
            answer
        });
        answer.await
    }

    async fn holders(&self, cx: &Cx, keys: &[LeaseKey]) -> Result<Vec<Option<Holder>>> {
        let (server, own, keys) = (self.server.clone(), cx.clone(), keys.to_vec());
        self.lines.call(Server::Leases, async move { server.holders(&own, &keys).await }).await
    }

    async fn wakeups(&self, cx: &Cx) -> Result<Box<dyn Wakeups>> {
        self.lines.approach(Server::Leases).await?;
        let inner = self.server.wakeups(cx).await?;
        Ok(Box::new(FarWakeups { inner, lines: self.lines.clone() }))
    }

    async fn separate(&self, _cx: &Cx) -> Result<Arc<dyn LeaseStore>> {
        Ok(Arc::new(self.clone()))
    }
}

struct FarWakeups {
    inner: Box<dyn Wakeups>,
    lines: Lines,
}

#[async_trait]
impl Wakeups for FarWakeups {
    async fn next(&mut self, cx: &Cx) -> Result<()> {
        loop {
            self.inner.next(cx).await?;
            // What is told over a cut line is not heard.
            if !self.lines.is_cut(Server::Leases) {
                return self.lines.approach(Server::Leases).await;
            }
        }
    }
}

/// The checkpoint store.
#[derive(Debug, Clone)]
pub struct FarCheckpoints {
    /// The server.
    pub server: Arc<dyn CheckpointStore>,
    /// The way there.
    pub lines: Lines,
    /// What is so.
    pub truth: GroundTruth,
    /// The history.
    pub book: Book,
}

#[async_trait]
impl CheckpointStore for FarCheckpoints {
    async fn identity(&self, cx: &Cx) -> Result<StoreIdentity> {
        let (server, own) = (Arc::clone(&self.server), cx.clone());
        self.lines.call(Server::Checkpoints, async move { server.identity(&own).await }).await
    }

    async fn claim(&self, cx: &Cx, grant: &Grant) -> Result<Claim> {
        let (server, own, grant) = (Arc::clone(&self.server), cx.clone(), grant.clone());
        let (truth, book, instance) = (self.truth.clone(), self.book.clone(), self.lines.instance());
        truth.claim_sent(&grant);
        let asked = grant.clone();
        let answer = self.lines.call(Server::Checkpoints, async move {
            let answer = server.claim(&own, &grant).await;
            book.event(format_args!("claim {} epoch {} by {instance}: {}", grant.key, grant.epoch, brief(&answer)));
            if let Ok(Claim::Claimed(_)) = answer {
                truth.claimed(&grant);
            }
            answer
        });
        let answer = answer.await?;
        if let Claim::Behind { newest } = answer {
            self.truth.found_behind(&asked, newest);
        }
        Ok(answer)
    }

    async fn commit(&self, cx: &Cx, writes: &[CheckpointWrite]) -> Result<Vec<Commit>> {
        let (server, own, writes) = (Arc::clone(&self.server), cx.clone(), writes.to_vec());
        let (truth, book) = (self.truth.clone(), self.book.clone());
        writes.iter().for_each(|write| truth.commit_sent(&write.grant));
        let answer = self.lines.call(Server::Checkpoints, async move {
            let answers = server.commit(&own, &writes).await?;
            for (write, answer) in writes.iter().zip(&answers) {
                note_commit(&book, write, *answer);
                truth.committed(write, *answer);
            }
            Ok(answers)
        });
        answer.await
    }

    async fn load(&self, cx: &Cx, key: &LeaseKey) -> Result<Option<Checkpoint>> {
        let (server, own, key) = (Arc::clone(&self.server), cx.clone(), key.clone());
        self.lines.call(Server::Checkpoints, async move { server.load(&own, &key).await }).await
    }

    async fn ledger(&self, cx: &Cx, key: &LeaseKey, query: &LedgerQuery) -> Result<Vec<LedgerRecord>> {
        let (server, own, key, query) = (Arc::clone(&self.server), cx.clone(), key.clone(), *query);
        self.lines.call(Server::Checkpoints, async move { server.ledger(&own, &key, &query).await }).await
    }
}

/// Writes a commit to the history.
pub fn note_commit(book: &Book, write: &CheckpointWrite, answer: Commit) {
    let position = write.position.as_ref().map(ToString::to_string).unwrap_or_default();
    book.event(format_args!(
        "commit {} epoch {} seq {} at {position} ledger {} ({:?}): {answer:?}",
        write.grant.key,
        write.grant.epoch,
        write.seq,
        write.ledger.len(),
        write.reason,
    ));
}

fn brief(answer: &Result<Claim>) -> String {
    match answer {
        Ok(Claim::Claimed(None)) => "claimed, nothing committed".to_owned(),
        Ok(Claim::Claimed(Some(checkpoint))) => {
            let position = checkpoint.position.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("claimed at {position}")
        }
        Ok(Claim::Behind { newest }) => format!("behind {newest}"),
        Err(error) => error.to_string(),
    }
}

/// The records.
#[derive(Debug, Clone)]
pub struct FarRecords {
    /// The server.
    pub server: RecordStore,
    /// The way there.
    pub lines: Lines,
}

#[async_trait]
impl Records for FarRecords {
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>> {
        let (server, own, name) = (self.server.clone(), cx.clone(), name.to_owned());
        self.lines.call(Server::Records, async move { server.get(&own, &name).await }).await
    }

    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>> {
        let (server, own, prefix) = (self.server.clone(), cx.clone(), prefix.to_owned());
        self.lines.call(Server::Records, async move { server.list(&own, &prefix).await }).await
    }

    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome> {
        let (server, own, name) = (self.server.clone(), cx.clone(), name.to_owned());
        self.lines.call(Server::Records, async move { server.put_if(&own, &name, expected, bytes).await }).await
    }

    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome> {
        let (server, own, name) = (self.server.clone(), cx.clone(), name.to_owned());
        self.lines.call(Server::Records, async move { server.delete_if(&own, &name, expected).await }).await
    }

    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()> {
        let (server, own, log) = (self.server.clone(), cx.clone(), log.to_owned());
        self.lines.call(Server::Records, async move { server.append(&own, &log, bytes, keep).await }).await
    }

    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>> {
        let (server, own, log) = (self.server.clone(), cx.clone(), log.to_owned());
        self.lines.call(Server::Records, async move { server.tail(&own, &log, limit).await }).await
    }

    async fn changed(&self, cx: &Cx) -> Result<()> {
        loop {
            self.server.changed(cx).await?;
            // What is told over a cut line is not heard.
            if !self.lines.is_cut(Server::Records) {
                return self.lines.approach(Server::Records).await;
            }
        }
    }
}
