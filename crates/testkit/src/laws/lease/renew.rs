use watchkeeper_core::{Epoch, Grant, Lease, Renewal};

use super::LeaseBench;
use crate::laws::lawful::{Law, ensure};

/// L7: a renewed lease runs for its new TTL from the renewal on.
pub async fn l7_renewed_lease_runs_from_now(bench: &LeaseBench) -> Law {
    let grant = bench.grant(&bench.brief(&bench.key(), &bench.candidate("a"))).await?;
    let renewal = bench.renew(&grant, bench.long()).await?;
    ensure!(renewal == Renewal::Held, "the holder's renewal is {renewal:?}");
    bench.cx.sleep(bench.ttl * 2).await;
    bench.ensure_held_under(&grant).await
}

/// L7: and it ends after that.
pub async fn l7_renewed_lease_ends(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let grant = bench.grant(&bench.ask(&key, &bench.candidate("a"))).await?;
    let renewal = bench.renew(&grant, bench.ttl).await?;
    ensure!(renewal == Renewal::Held, "the holder's renewal is {renewal:?}");
    bench.until_free(&key).await
}

/// L8: only an exact match of key, tenure and epoch is renewed.
pub async fn l8_only_an_exact_match_is_renewed(bench: &LeaseBench) -> Law {
    let grant = bench.grant(&bench.ask(&bench.key(), &bench.candidate("a"))).await?;
    for wrong in near_misses(bench, &grant) {
        let renewal = bench.renew(&wrong, bench.long()).await?;
        ensure!(renewal == Renewal::Lost, "held under {grant:?}, yet the renewal of {wrong:?} is {renewal:?}");
    }
    let renewal = bench.renew(&grant, bench.long()).await?;
    ensure!(renewal == Renewal::Held, "the holder's renewal is {renewal:?}");
    bench.ensure_held_under(&grant).await
}

/// L8: a refused renewal does not prolong the lease it did not match.
pub async fn l8_refused_renewal_prolongs_nothing(bench: &LeaseBench) -> Law {
    let grant = bench.grant(&bench.brief(&bench.key(), &bench.candidate("a"))).await?;
    for wrong in near_misses(bench, &grant) {
        bench.renew(&wrong, bench.long()).await?;
    }
    bench.until_free(&grant.key).await
}

fn near_misses(bench: &LeaseBench, grant: &Grant) -> [Grant; 4] {
    [
        Grant { tenure: bench.entropy.tenure(), ..grant.clone() },
        Grant { epoch: Epoch(grant.epoch.0.saturating_sub(1)), ..grant.clone() },
        Grant { epoch: grant.epoch.next(), ..grant.clone() },
        Grant { key: bench.key(), ..grant.clone() },
    ]
}

/// L9: an expired lease that nobody took can be renewed.
pub async fn l9_expired_lease_that_nobody_took_is_renewed(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let grant = bench.grant(&bench.brief(&key, &bench.candidate("a"))).await?;
    bench.until_free(&key).await?;
    let renewal = bench.renew(&grant, bench.long()).await?;
    ensure!(renewal == Renewal::Held, "nobody took the expired lease, yet its renewal is {renewal:?}");
    bench.ensure_held_under(&grant).await?;
    bench.refused(&bench.ask(&key, &bench.candidate("b"))).await?;
    Ok(())
}

/// L9: an expired lease that another took is lost.
pub async fn l9_expired_lease_that_was_taken_is_lost(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let old = bench.grant(&bench.brief(&key, &bench.candidate("a"))).await?;
    bench.until_free(&key).await?;
    let new = bench.grant(&bench.ask(&key, &bench.candidate("b"))).await?;
    let renewal = bench.renew(&old, bench.long()).await?;
    ensure!(renewal == Renewal::Lost, "another took the lease, yet its renewal is {renewal:?}");
    bench.ensure_held_under(&new).await
}

/// L10: each answer is about its own lease, in the order of the asking.
pub async fn l10_answers_are_independent(bench: &LeaseBench) -> Law {
    let mut grants = Vec::new();
    for n in 0..5 {
        grants.push(bench.grant(&bench.brief(&bench.key(), &bench.candidate(&format!("h{n}")))).await?);
    }
    bench.a.release(&bench.cx, &grants[1]).await?;
    grants[3].tenure = bench.entropy.tenure();
    let leases: Vec<_> = grants.iter().map(|grant| Lease { grant: grant.clone(), ttl: bench.long() }).collect();
    let answers = bench.a.renew(&bench.cx, &leases).await?;
    let expected = [Renewal::Held, Renewal::Lost, Renewal::Held, Renewal::Lost, Renewal::Held];
    ensure!(answers == expected, "expected {expected:?}, got {answers:?}");
    bench.cx.sleep(bench.ttl * 2).await;
    for (grant, _) in grants.iter().zip(expected).filter(|(_, expected)| *expected == Renewal::Held) {
        bench.ensure_held_under(grant).await?;
    }
    Ok(())
}

/// L10: an empty list is answered with an empty list.
pub async fn l10_nothing_to_renew_is_no_error(bench: &LeaseBench) -> Law {
    let answers = bench.a.renew(&bench.cx, &[]).await?;
    ensure!(answers.is_empty(), "nothing was renewed, yet {answers:?}");
    Ok(())
}
