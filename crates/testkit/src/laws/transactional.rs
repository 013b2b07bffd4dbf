//! The laws of [`TransactionalWriter`].

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join;
use watchkeeper_core::memory::{Checkpoints, TransactionalTable};
use watchkeeper_core::{
    CheckpointStore, CheckpointWrite, Claim, Cx, Entropy, ErrorKind, Grade, Grant, OpenedSink, Result, Sink,
    SinkContext, StoreIdentity, Transacted, TransactionalWriter,
};

use super::checkpoint::{CheckpointBench, with_letters, write};
use super::lawful::{Broken, Law, ensure};
use super::macros::law_list;
use super::sink::{Change, Effect, batch, keys_in_order};
use crate::world::World;

/// A transactional sink on the bench, with its checkpoint store and the means to see what it wrote.
#[async_trait]
pub trait TransactionalBench: Send + Sync {
    /// The sink.
    fn sink(&self) -> Arc<dyn Sink>;

    /// The store it writes checkpoints to, seen by two clients, with the context of all calls.
    fn checkpoints(&self) -> &CheckpointBench;

    /// What took effect so far, in order.
    async fn delivered(&self) -> Result<Vec<Effect>>;

    /// The namespace of the changes that laws write.
    fn namespace(&self) -> String {
        "laws.things".to_owned()
    }
}

impl dyn TransactionalBench + '_ {
    fn cx(&self) -> &Cx {
        &self.checkpoints().cx
    }

    /// A writer whose grant has claimed.
    async fn claimed(&self, grant: &Grant) -> Result<Box<dyn TransactionalWriter>, Broken> {
        self.checkpoints().claimed(grant).await?;
        self.open(grant).await
    }

    async fn open(&self, grant: &Grant) -> Result<Box<dyn TransactionalWriter>, Broken> {
        let (stream, sink) = ("laws".to_owned(), "bench".to_owned());
        let store = self.checkpoints().a.identity(self.cx()).await?;
        let context = SinkContext { grant: grant.clone(), stream, sink, partition: 0, lanes: 1, store };
        match self.sink().open(self.cx(), &context).await? {
            OpenedSink::Transactional(writer) => Ok(writer),
            OpenedSink::Plain(_) => Err(Broken::new("the sink opened without transactions")),
        }
    }

    async fn transact(
        &self,
        writer: &mut dyn TransactionalWriter,
        changes: &[Change],
        write: &CheckpointWrite,
    ) -> Result<Transacted> {
        let batch = batch(&self.namespace(), changes);
        let rows: Vec<u32> = (0..).take(changes.len()).collect();
        writer.write_and_commit(self.cx(), &batch, &rows, write).await
    }

    async fn committed(
        &self,
        writer: &mut dyn TransactionalWriter,
        changes: &[Change],
        write: &CheckpointWrite,
    ) -> Law {
        let answer = self.transact(writer, changes, write).await?;
        ensure!(matches!(answer, Transacted::Committed), "a good transaction was answered with {answer:?}");
        Ok(())
    }

    async fn ensure_versions(&self, key: u64, expected: &[u64]) -> Law {
        let found = keys_in_order(&self.delivered().await?, key);
        ensure!(found == expected, "key {key} should have seen the versions {expected:?}, but saw {found:?}");
        Ok(())
    }
}

/// T1: changes, checkpoint and ledger are written together, in order.
pub async fn t1_changes_and_checkpoint_are_written_together(bench: &dyn TransactionalBench) -> Law {
    let grant = bench.checkpoints().grant(1);
    let mut writer = bench.claimed(&grant).await?;
    let first = with_letters(write(&grant, 1), &["letter"]);
    bench.committed(&mut *writer, &[Change(1, 1), Change(2, 2), Change(1, 3)], &first).await?;
    bench.checkpoints().ensure_newest(&first).await?;
    bench.ensure_versions(1, &[1, 3]).await?;
    bench.committed(&mut *writer, &[Change(1, 4)], &write(&grant, 2)).await?;
    bench.checkpoints().ensure_newest(&write(&grant, 2)).await?;
    bench.ensure_versions(1, &[1, 3, 4]).await?;
    bench.ensure_versions(2, &[2]).await?;
    let letters = bench.checkpoints().seen(&grant.key).await?.ledger.len();
    ensure!(letters == 1, "one ledger entry was written, {letters} are there");
    writer.close(bench.cx()).await?;
    Ok(())
}

/// T1: nothing is written on behalf of an older epoch, or of another tenure of the same.
pub async fn t1_nothing_from_an_older_grant(bench: &dyn TransactionalBench) -> Law {
    let old = bench.checkpoints().grant(1);
    let mut stale = bench.claimed(&old).await?;
    bench.committed(&mut *stale, &[Change(1, 1)], &write(&old, 1)).await?;
    let new = bench.checkpoints().successor(&old);
    let mut writer = bench.claimed(&new).await?;
    let before = bench.checkpoints().seen(&old.key).await?;
    ensure_fenced(bench, &mut *stale, &old, 2).await?;
    let twin = bench.checkpoints().twin(&new);
    let mut twins = bench.open(&twin).await?;
    ensure_fenced(bench, &mut *twins, &twin, 1).await?;
    let after = bench.checkpoints().seen(&old.key).await?;
    ensure!(after == before, "a fenced transaction changed {before:?} to {after:?}");
    bench.ensure_versions(1, &[1]).await?;
    bench.committed(&mut *writer, &[Change(1, 3)], &write(&new, 1)).await?;
    bench.ensure_versions(1, &[1, 3]).await
}

async fn ensure_fenced(
    bench: &dyn TransactionalBench,
    writer: &mut dyn TransactionalWriter,
    grant: &Grant,
    seq: u64,
) -> Law {
    let letters = with_letters(write(grant, seq), &["stale"]);
    let answer = bench.transact(writer, &[Change(1, 2)], &letters).await?;
    ensure!(matches!(answer, Transacted::Fenced), "a stale transaction was answered with {answer:?}");
    Ok(())
}

/// T1: a checkpoint with a wrong number takes its changes with it.
pub async fn t1_refused_checkpoint_refuses_its_changes(bench: &dyn TransactionalBench) -> Law {
    let grant = bench.checkpoints().grant(1);
    let mut writer = bench.claimed(&grant).await?;
    let kind = bench.transact(&mut *writer, &[Change(1, 1)], &write(&grant, 2)).await.map_err(|error| error.kind());
    let refused = matches!(kind, Err(ErrorKind::Internal));
    ensure!(refused, "a transaction that skips a number was answered with {kind:?}");
    bench.ensure_versions(1, &[]).await?;
    bench.committed(&mut *writer, &[Change(1, 2)], &write(&grant, 1)).await?;
    bench.ensure_versions(1, &[2]).await
}

/// T2: the checkpoint is written even when there are no changes.
pub async fn t2_checkpoint_is_written_without_changes(bench: &dyn TransactionalBench) -> Law {
    let grant = bench.checkpoints().grant(1);
    let mut writer = bench.claimed(&grant).await?;
    bench.committed(&mut *writer, &[], &write(&grant, 1)).await?;
    bench.checkpoints().ensure_newest(&write(&grant, 1)).await?;
    // The store and the sink count together.
    bench.checkpoints().committed(&write(&grant, 2)).await?;
    bench.committed(&mut *writer, &[Change(1, 1)], &write(&grant, 3)).await?;
    bench.ensure_versions(1, &[1]).await
}

/// T2: when a claim meets a transaction, either the claim finds it or nothing of it is written.
pub async fn t2_claim_and_transaction_at_once_agree_on_their_order(bench: &dyn TransactionalBench) -> Law {
    for round in 1..=10 {
        let old = bench.checkpoints().grant(1);
        let new = bench.checkpoints().successor(&old);
        let mut writer = bench.claimed(&old).await?;
        let (changes, written) = ([Change(round, round)], write(&old, 1));
        let transaction = bench.transact(&mut *writer, &changes, &written);
        let claim = bench.checkpoints().b.claim(bench.cx(), &new);
        let (transacted, claimed) = if round % 2 == 0 {
            join(transaction, claim).await
        } else {
            let (claimed, transacted) = join(claim, transaction).await;
            (transacted, claimed)
        };
        let found = matches!(claimed?, Claim::Claimed(Some(_)));
        let delivered = keys_in_order(&bench.delivered().await?, round).len();
        let committed = match transacted {
            Ok(answer) => matches!(answer, Transacted::Committed),
            // Whatever became of it, changes and checkpoint must agree.
            Err(_) => found,
        };
        ensure!(committed == found, "committed: {committed}, but the claim found it: {found}");
        ensure!(delivered == usize::from(found), "the claim found it: {found}, but {delivered} changes are there");
    }
    Ok(())
}

/// T3: repeated unchanged, a transaction takes effect once, also through another opening.
pub async fn t3_repeated_transaction_takes_effect_once(bench: &dyn TransactionalBench) -> Law {
    let grant = bench.checkpoints().grant(1);
    let mut writer = bench.claimed(&grant).await?;
    let (changes, once) = ([Change(1, 1), Change(2, 2)], with_letters(write(&grant, 1), &["letter"]));
    bench.committed(&mut *writer, &changes, &once).await?;
    let before = bench.checkpoints().seen(&grant.key).await?;
    let mut reopened = bench.open(&grant).await?;
    for writer in [&mut writer, &mut reopened] {
        let again = bench.transact(&mut **writer, &changes, &once).await?;
        ensure!(matches!(again, Transacted::AlreadyDone), "a repeated transaction was answered with {again:?}");
    }
    bench.ensure_versions(1, &[1]).await?;
    bench.ensure_versions(2, &[2]).await?;
    let after = bench.checkpoints().seen(&grant.key).await?;
    ensure!(after == before, "a repeated transaction changed {before:?} to {after:?}");
    bench.committed(&mut *reopened, &[Change(1, 3)], &write(&grant, 2)).await
}

/// The sink's store is the checkpoint store.
pub async fn identity_is_that_of_the_checkpoint_store(bench: &dyn TransactionalBench) -> Law {
    let profile = bench.sink().profile();
    let store = bench.checkpoints().a.identity(bench.cx()).await?;
    ensure!(profile.store == Some(store), "the sink writes to {:?}, checkpoints are in {store:?}", profile.store);
    ensure!(profile.grade == Grade::Transactional, "its grade is {:?}", profile.grade);
    Ok(())
}

law_list! {
    /// One test per law of transactional sinks. The argument is a
    /// `fn(&LawOf<dyn TransactionalBench>) -> Law`.
    transactional_laws, transactional, dyn TransactionalBench, $, [
        t1_changes_and_checkpoint_are_written_together,
        t1_nothing_from_an_older_grant,
        t1_refused_checkpoint_refuses_its_changes,
        t2_checkpoint_is_written_without_changes,
        t2_claim_and_transaction_at_once_agree_on_their_order,
        t3_repeated_transaction_takes_effect_once,
        identity_is_that_of_the_checkpoint_store,
    ]
}

/// The reference in memory.
struct TableBench {
    checkpoints: CheckpointBench,
    store: Checkpoints,
    sink: Arc<dyn Sink>,
}

impl dyn TransactionalBench {
    /// The reference in memory, in virtual time.
    pub fn in_memory(world: &World) -> Box<dyn TransactionalBench> {
        Self::around(world, |_, sink| sink)
    }

    /// What `wrap` makes of the reference in memory, in virtual time.
    pub fn around(
        world: &World,
        wrap: impl FnOnce(Checkpoints, Arc<dyn Sink>) -> Arc<dyn Sink>,
    ) -> Box<dyn TransactionalBench> {
        let entropy: Arc<Entropy> = world.entropy();
        let store = Checkpoints::new(StoreIdentity(entropy.uuid()));
        let (a, b): (Arc<dyn CheckpointStore>, _) = (Arc::new(store.clone()), Arc::new(store.clone()));
        let sink = wrap(store.clone(), Arc::new(TransactionalTable::new(store.clone())));
        let checkpoints = CheckpointBench::in_world(world, a, b, store.clone());
        Box::new(TableBench { checkpoints, store, sink })
    }
}

#[async_trait]
impl TransactionalBench for TableBench {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.sink)
    }

    fn checkpoints(&self) -> &CheckpointBench {
        &self.checkpoints
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        Ok(self.store.delivered().into_iter().map(Effect::from).collect())
    }
}
