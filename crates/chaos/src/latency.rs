//! What single calls to the stores cost.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, CheckpointWrite, Claim, Commit, Cx, Entropy, Epoch, Error, Facts, Grant,
    LeaseKey, Position, Reason, Result,
};
use watchkeeper_engine::instance::Stores;

use crate::background_streams::BackgroundStreams;
use crate::bars::{Bar, Limit};
use crate::cluster::{Trouble, cx};
use crate::harness::{self, Bare, BareWriteSize, Harness, Servers};
use crate::report::quantile;

/// Enough for a p99.
const CALLS: u64 = 500;

/// Before anything is compared.
const WARM_UP: u64 = 50;

/// What conditions and fences may cost over a bare write, by p99.
const RATIO_MAX: f64 = 2.0;

/// Acquires and commits, each with its bar, on keys of their own beside the group's.
pub(crate) async fn measure(harness: &dyn Harness) -> Result<Vec<(Bar, Vec<Duration>)>, Trouble> {
    let measured = async {
        let cx = cx();
        let stores = harness.stores(&cx).await?;
        let acquires = acquires(&cx, &stores, CALLS, None).await?;
        Ok((acquires, commits(&cx, &stores, CALLS, None).await?))
    };
    let (acquires, commits) = measured.await.map_err(|error: Error| error.to_string())?;
    let bar = |name, limit| Bar { name, limits: vec![Limit::P99(Duration::from_millis(limit))] };
    Ok(vec![(bar("lease acquire", 100), acquires), (bar("commit", 50), commits)])
}

/// Calls to the stores beside bare writes of the same size, one of each in turn; whether the ratios of their p99 were kept.
pub(crate) fn compare(harness_name: &'static str, samples: u64, runtime: &Handle) -> Result<bool, Trouble> {
    let test_servers = Servers::of(harness_name);
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let compared = async {
        test_servers.lay(folder.path())?;
        let harness = harness::named(harness_name, folder.path())?;
        let cx = cx();
        harness.set_up(&cx).await?;
        let stores = harness.stores(&cx).await?;
        // So that there are documents to be as large as.
        acquires(&cx, &stores, WARM_UP, None).await?;
        commits(&cx, &stores, WARM_UP, None).await?;
        // On three servers it is the servers that are busy, on a single one the others of the group.
        let background = match harness_name {
            "postgres" => Some(BackgroundStreams::gather(&cx, harness.stores(&cx).await?).await?),
            _ => None,
        };
        let mut beside = BareWrites::new(harness.bare(&cx, BareWriteSize::Lease).await?);
        let taken = acquires(&cx, &stores, samples, Some(&mut beside)).await?;
        let leases = ratio("lease acquire", &taken, &beside.taken);
        let mut beside = BareWrites::new(harness.bare(&cx, BareWriteSize::Checkpoint).await?);
        let taken = commits(&cx, &stores, samples, Some(&mut beside)).await?;
        if let Some(background) = background {
            println!("beside 1,000 streams with {} commits", background.stop_all().await?);
        }
        Ok(leases & ratio("commit", &taken, &beside.taken))
    };
    println!("{:<16} {:>7} {:>9} {:>9} {:>9}   ms", "", "samples", "median", "p99", "max");
    runtime.block_on(compared).map_err(|error: Error| error.to_string())
}

/// Prints both; whether the p99 of ours is at most [`RATIO_MAX`] times that of the bare writes.
fn ratio(name: &str, ours: &[Duration], bare: &[Duration]) -> bool {
    let p99 = |name: &str, taken: &[Duration]| {
        let mut sorted: Vec<f64> = taken.iter().map(|taken| taken.as_secs_f64() * 1_000.0).collect();
        sorted.sort_by(f64::total_cmp);
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&sorted, share));
        println!("{name:<16} {:>7} {median:>9.2} {p99:>9.2} {max:>9.2}", sorted.len());
        p99
    };
    let ratio = p99(name, ours) / p99("  a bare write", bare);
    let kept = ratio <= RATIO_MAX;
    println!("  p99 {ratio:.2} x the bare write's, at most {RATIO_MAX}: {}", if kept { "kept" } else { "MISSED" });
    kept
}

/// Bare writes, one beside each call that is measured.
struct BareWrites {
    bare: Option<Box<dyn Bare>>,
    taken: Vec<Duration>,
}

impl BareWrites {
    fn new(bare: Option<Box<dyn Bare>>) -> Self {
        Self { bare, taken: Vec::new() }
    }

    async fn write(&mut self) -> Result<()> {
        let Some(bare) = &mut self.bare else { return Ok(()) };
        let began = Instant::now();
        bare.write().await?;
        self.taken.push(began.elapsed());
        Ok(())
    }
}

async fn beside_it(beside: &mut Option<&mut BareWrites>) -> Result<()> {
    match beside {
        Some(beside) => beside.write().await,
        None => Ok(()),
    }
}

async fn acquires(cx: &Cx, stores: &Stores, calls: u64, mut beside: Option<&mut BareWrites>) -> Result<Vec<Duration>> {
    let entropy = Entropy::from_system();
    let key = LeaseKey::new("bench/acquire");
    let mut taken = Vec::new();
    for _ in 0..calls {
        beside_it(&mut beside).await?;
        let (instance, tenure) = (entropy.instance(), entropy.tenure());
        let candidate = Candidate { instance, name: "bench".to_owned(), address: None, tenure };
        let ttl = Duration::from_secs(5);
        let ask = AcquireRequest { key: key.clone(), candidate, ttl, floor: Epoch::ZERO, break_holder: None };
        let began = Instant::now();
        let answer = stores.leases.try_acquire(cx, &ask).await?;
        taken.push(began.elapsed());
        let Acquired::Granted { grant, .. } = answer else {
            return Err(Error::internal("a free lease was not granted"));
        };
        stores.leases.release(cx, &grant).await?;
    }
    Ok(taken)
}

async fn commits(cx: &Cx, stores: &Stores, calls: u64, mut beside: Option<&mut BareWrites>) -> Result<Vec<Duration>> {
    let entropy = Entropy::from_system();
    let key = LeaseKey::new(format!("bench/commit/{}", entropy.uuid()));
    let grant = Grant { key, tenure: entropy.tenure(), epoch: Epoch(1) };
    if !matches!(stores.checkpoints.claim(cx, &grant).await?, Claim::Claimed(_)) {
        return Err(Error::internal("a new checkpoint was not claimed"));
    }
    let mut taken = Vec::new();
    for seq in 1..=calls {
        beside_it(&mut beside).await?;
        let write = write(&grant, seq);
        let began = Instant::now();
        let answer = stores.checkpoints.commit(cx, std::slice::from_ref(&write)).await?;
        taken.push(began.elapsed());
        if answer != [Commit::Committed] {
            return Err(Error::internal(format!("commit {seq} was answered with {answer:?}")));
        }
    }
    Ok(taken)
}

pub(crate) fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
    CheckpointWrite {
        grant: grant.clone(),
        seq,
        position: Some(Position::new(seq.to_be_bytes().to_vec(), None)),
        pedigree: None,
        reason: Reason::Progress,
        halted: None,
        facts: Facts { changes: seq, processed_by: "bench".to_owned(), ..Facts::default() },
        ledger: Vec::new(),
        resolve: Vec::new(),
    }
}
