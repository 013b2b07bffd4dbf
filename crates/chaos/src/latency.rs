//! What single calls to the stores cost.

use std::time::{Duration, Instant};

use watchkeeper_core::{
    Acquired, Ask, Candidate, CheckpointWrite, Claim, Commit, Cx, Entropy, Epoch, Error, Facts, Grant, LeaseKey,
    Position, Reason, Result,
};
use watchkeeper_engine::instance::Stores;

use crate::bars::{Bar, Limit};
use crate::fleet::{Trouble, cx};
use crate::rig::Rig;

/// Enough for a p99.
const CALLS: u64 = 500;

/// Acquires and commits, each with its bar, on keys of their own beside the group's.
pub(crate) async fn measure(rig: &dyn Rig) -> Result<Vec<(Bar, Vec<Duration>)>, Trouble> {
    let measured = async {
        let cx = cx();
        let stores = rig.stores(&cx).await?;
        let acquires = acquires(&cx, &stores).await?;
        Ok((acquires, commits(&cx, &stores).await?))
    };
    let (acquires, commits) = measured.await.map_err(|error: Error| error.to_string())?;
    let bar = |name, limit| Bar { name, limits: vec![Limit::P99(Duration::from_millis(limit))] };
    Ok(vec![(bar("lease acquire", 100), acquires), (bar("commit", 50), commits)])
}

async fn acquires(cx: &Cx, stores: &Stores) -> Result<Vec<Duration>> {
    let entropy = Entropy::from_system();
    let key = LeaseKey::new("bench/acquire");
    let mut taken = Vec::new();
    for _ in 0..CALLS {
        let (instance, tenure) = (entropy.instance(), entropy.tenure());
        let candidate = Candidate { instance, name: "bench".to_owned(), address: None, tenure };
        let ttl = Duration::from_secs(5);
        let ask = Ask { key: key.clone(), candidate, ttl, floor: Epoch::ZERO, break_holder: None };
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

async fn commits(cx: &Cx, stores: &Stores) -> Result<Vec<Duration>> {
    let tenure = Entropy::from_system().tenure();
    let grant = Grant { key: LeaseKey::new("bench/commit"), tenure, epoch: Epoch(1) };
    if !matches!(stores.checkpoints.claim(cx, &grant).await?, Claim::Claimed(_)) {
        return Err(Error::internal("a new checkpoint was not claimed"));
    }
    let mut taken = Vec::new();
    for seq in 1..=CALLS {
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

fn write(grant: &Grant, seq: u64) -> CheckpointWrite {
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
