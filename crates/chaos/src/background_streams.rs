//! Many streams of one group beside what is measured: their leases are renewed, their checkpoints committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Claim, Commit, Cx, Entropy, Epoch, Error, Grant, Lease, LeaseKey, Renewal,
    Result,
};
use watchkeeper_engine::instance::Stores;

use crate::latency::write;

/// So many streams, each of which commits every second.
const STREAMS: usize = 1_000;
const EVERY: Duration = Duration::from_secs(1);

/// So many of them commit together, as an instance does with what comes due at the same time.
const TOGETHER: usize = 50;

const TTL: Duration = Duration::from_secs(15);

/// The streams at work. They stop when it is asked how they fared.
pub(crate) struct BackgroundStreams {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<u64>>,
}

impl BackgroundStreams {
    /// Takes all leases and claims all checkpoints, and goes to work.
    pub(crate) async fn gather(cx: &Cx, stores: Stores) -> Result<Self> {
        let leases = join(cx, &stores).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, cx) = (Arc::clone(&stop), cx.clone());
        let task = tokio::spawn(async move { work(&cx, &stores, &leases, &stopped).await });
        Ok(Self { stop, task })
    }

    /// How many commits there were.
    ///
    /// # Errors
    /// The first that failed: nothing here is in anybody's way.
    pub(crate) async fn stop_all(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.map_err(|error| Error::internal("the crowd has panicked").caused_by(error))?
    }
}

async fn join(cx: &Cx, stores: &Stores) -> Result<Vec<Lease>> {
    let entropy = Entropy::from_system();
    let instance = entropy.instance();
    let mut leases = Vec::with_capacity(STREAMS);
    for number in 0..STREAMS {
        let candidate = Candidate { instance, name: "crowd".to_owned(), address: None, tenure: entropy.tenure() };
        let key = LeaseKey::new(format!("crowd/{number:04}"));
        let ask = AcquireRequest { key, candidate, ttl: TTL, floor: Epoch::ZERO, break_holder: None };
        let Acquired::Granted { grant, .. } = stores.leases.try_acquire(cx, &ask).await? else {
            return Err(Error::internal("a free lease was not granted"));
        };
        if !matches!(stores.checkpoints.claim(cx, &grant).await?, Claim::Claimed(_)) {
            return Err(Error::internal("a new checkpoint was not claimed"));
        }
        leases.push(Lease { grant, ttl: TTL });
    }
    Ok(leases)
}

async fn work(cx: &Cx, stores: &Stores, leases: &[Lease], stop: &AtomicBool) -> Result<u64> {
    let mut committed = 0;
    let mut ticks = tokio::time::interval(EVERY * TOGETHER as u32 / STREAMS as u32);
    for seq in 1.. {
        renew(cx, stores, leases).await?;
        for slice in leases.chunks(TOGETHER) {
            ticks.tick().await;
            if stop.load(Ordering::Relaxed) {
                return Ok(committed);
            }
            commit(cx, stores, slice.iter().map(|lease| &lease.grant), seq).await?;
            committed += slice.len() as u64;
        }
    }
    Ok(committed)
}

async fn renew(cx: &Cx, stores: &Stores, leases: &[Lease]) -> Result<()> {
    let answers = stores.leases.renew(cx, leases).await?;
    if answers.iter().all(|answer| *answer == Renewal::Held) {
        return Ok(());
    }
    Err(Error::internal("a lease of the crowd was not renewed"))
}

async fn commit<'a>(cx: &Cx, stores: &Stores, grants: impl Iterator<Item = &'a Grant>, seq: u64) -> Result<()> {
    let writes: Vec<_> = grants.map(|grant| write(grant, seq)).collect();
    let answers = stores.checkpoints.commit(cx, &writes).await?;
    if answers.iter().all(|answer| *answer == Commit::Committed) {
        return Ok(());
    }
    Err(Error::internal("a checkpoint of the crowd was not committed"))
}
