use std::time::Duration;

use futures_util::future::join_all;
use watchkeeper_core::{AcquireRequest, Acquired, Ending, Epoch, Grant, LeaseKey, Renewal};

use super::{LeaseBench, ensure_above};
use crate::laws::lawful::{Broken, Law, ensure, insist};

/// L1: a free key is granted.
pub async fn l1_free_key_is_granted(bench: &LeaseBench) -> Law {
    let (key, other) = (bench.key(), bench.key());
    let (grant, previous) = bench.granted(&bench.ask(&key, &bench.candidate("a"))).await?;
    ensure_above(&grant, Epoch::ZERO)?;
    ensure!(previous.is_none(), "a key that nobody ever held has a previous holder: {previous:?}");
    bench.ensure_held_under(&grant).await?;
    let holder = bench.holder(&other).await?;
    ensure!(holder.is_none(), "a key that nobody asked for is held: {holder:?}");
    Ok(())
}

/// L1: the epoch is above the floor.
pub async fn l1_epoch_is_above_the_floor(bench: &LeaseBench) -> Law {
    let ask = bench.ask(&bench.key(), &bench.candidate("a"));
    let grant = bench.grant(&AcquireRequest { floor: Epoch(41), ..ask }).await?;
    ensure_above(&grant, Epoch(41))
}

/// L1: no epoch is granted twice: not after a release, an expiry, or a floor that was higher before.
pub async fn l1_epochs_are_never_reused(bench: &LeaseBench) -> Law {
    let (key, mut newest) = (bench.key(), Epoch::ZERO);
    for floor in [0, 7, 3, 0, 9] {
        let ask = AcquireRequest { floor: Epoch(floor), ..bench.brief(&key, &bench.candidate("a")) };
        let grant = bench.grant(&ask).await?;
        ensure_above(&grant, newest)?;
        ensure_above(&grant, Epoch(floor))?;
        newest = grant.epoch;
        if floor == 7 {
            bench.until_free(&key).await?;
        } else {
            bench.a.release(&bench.cx, &grant).await?;
        }
    }
    Ok(())
}

/// L2: a key held by another tenure is refused; the answer names the holder.
pub async fn l2_held_key_is_refused_with_its_holder(bench: &LeaseBench) -> Law {
    let (key, first) = (bench.key(), bench.candidate("first"));
    let grant = bench.grant(&bench.ask(&key, &first)).await?;
    let holder = bench.refused(&bench.ask(&key, &bench.candidate("second"))).await?;
    ensure!(holder.candidate == first, "held by {first:?}, but the answer names {:?}", holder.candidate);
    ensure!(holder.epoch == grant.epoch, "held under {}, but the answer says {}", grant.epoch, holder.epoch);
    let most = bench.long() + Duration::from_secs(1);
    let reported = holder.remaining;
    ensure!(
        reported > bench.long() / 2 && reported <= most,
        "a fresh lease of {:?} runs for {reported:?}",
        bench.long()
    );
    // Two tenures of one instance are two holders.
    let again = watchkeeper_core::Candidate { tenure: bench.entropy.tenure(), ..first };
    bench.refused(&bench.ask(&key, &again)).await?;
    Ok(())
}

/// L2: a refusal changes nothing for the holder.
pub async fn l2_refusal_changes_nothing(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let grant = bench.grant(&bench.ask(&key, &bench.candidate("first"))).await?;
    let high = AcquireRequest { floor: Epoch(grant.epoch.0 + 10), ..bench.ask(&key, &bench.candidate("second")) };
    bench.refused(&high).await?;
    bench.ensure_held_under(&grant).await?;
    let renewal = bench.renew(&grant, bench.long()).await?;
    ensure!(renewal == Renewal::Held, "after another was refused, the holder's renewal is {renewal:?}");
    Ok(())
}

/// L3: the same tenure asking again while it holds gets the same grant.
pub async fn l3_same_tenure_gets_the_same_grant(bench: &LeaseBench) -> Law {
    let ask = bench.ask(&bench.key(), &bench.candidate("a"));
    let grant = bench.grant(&ask).await?;
    for floor in [Epoch::ZERO, Epoch(grant.epoch.0.saturating_sub(1))] {
        let again = bench.grant(&AcquireRequest { floor, ..ask.clone() }).await?;
        ensure!(again == grant, "asking again gave {again:?} instead of {grant:?}");
    }
    bench.ensure_held_under(&grant).await
}

/// L3: the same grant tells the same story of who was before.
pub async fn l3_same_grant_names_the_same_previous(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let first = bench.grant(&bench.ask(&key, &bench.candidate("first"))).await?;
    bench.a.release(&bench.cx, &first).await?;
    let ask = bench.ask(&key, &bench.candidate("second"));
    let (_, once) = bench.granted(&ask).await?;
    let (_, again) = bench.granted(&ask).await?;
    let story = |previous: &Option<watchkeeper_core::Previous>| {
        previous.as_ref().map(|previous| (previous.candidate.clone(), previous.epoch, previous.ending))
    };
    ensure!(story(&once) == story(&again), "the first answer said {once:?}, the repeated one {again:?}");
    Ok(())
}

/// L3: the same tenure asking again while it holds has its lease run anew.
pub async fn l3_asking_again_runs_the_lease_anew(bench: &LeaseBench) -> Law {
    let (key, candidate) = (bench.key(), bench.candidate("a"));
    bench.grant(&bench.brief(&key, &candidate)).await?;
    let grant = bench.grant(&bench.ask(&key, &candidate)).await?;
    bench.cx.sleep(bench.ttl * 2).await;
    bench.ensure_held_under(&grant).await
}

/// L3: with a floor at or above its epoch, the same tenure gets a new grant.
pub async fn l3_floor_at_the_epoch_gives_a_new_grant(bench: &LeaseBench) -> Law {
    let ask = bench.ask(&bench.key(), &bench.candidate("a"));
    let mut grant = bench.grant(&ask).await?;
    for above in [0, 5] {
        let floor = Epoch(grant.epoch.0 + above);
        let new = bench.grant(&AcquireRequest { floor, ..ask.clone() }).await?;
        ensure_above(&new, floor)?;
        let old = bench.renew(&grant, bench.long()).await?;
        ensure!(old == Renewal::Lost, "the grant that was replaced is still renewed: {old:?}");
        bench.ensure_held_under(&new).await?;
        grant = new;
    }
    Ok(())
}

/// L4: an expired key is granted under a higher epoch.
pub async fn l4_expired_key_is_granted_under_a_higher_epoch(bench: &LeaseBench) -> Law {
    let (key, first) = (bench.key(), bench.candidate("first"));
    let old = bench.grant(&bench.brief(&key, &first)).await?;
    bench.until_free(&key).await?;
    let (new, previous) = bench.granted(&bench.ask(&key, &bench.candidate("second"))).await?;
    ensure_above(&new, old.epoch)?;
    if let Some(previous) = previous {
        ensure!(previous.candidate == first && previous.epoch == old.epoch, "another one was before: {previous:?}");
        ensure!(previous.ending == Ending::Expired, "it expired, but {:?} is told", previous.ending);
    }
    Ok(())
}

/// L5: a proved death replaces exactly that holder, before its lease expires.
pub async fn l5_break_replaces_that_holder(bench: &LeaseBench) -> Law {
    let (key, first) = (bench.key(), bench.candidate("first"));
    let old = bench.grant(&bench.ask(&key, &first)).await?;
    let breaks = Some((old.tenure, old.epoch));
    let ask = AcquireRequest { break_holder: breaks, ..bench.ask(&key, &bench.candidate("second")) };
    let (new, previous) = bench.granted(&ask).await?;
    ensure_above(&new, old.epoch)?;
    if let Some(previous) = previous {
        ensure!(previous.candidate == first, "another one was before: {previous:?}");
        ensure!(previous.ending == Ending::Broken, "it was broken, but {:?} is told", previous.ending);
    }
    let renewal = bench.renew(&old, bench.long()).await?;
    ensure!(renewal == Renewal::Lost, "the broken lease is still renewed: {renewal:?}");
    bench.ensure_held_under(&new).await
}

/// L5: a holder of another tenure is not replaced.
pub async fn l5_break_of_another_tenure_is_refused(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let grant = bench.grant(&bench.ask(&key, &bench.candidate("first"))).await?;
    let breaks = Some((bench.entropy.tenure(), grant.epoch));
    let ask = AcquireRequest { break_holder: breaks, ..bench.ask(&key, &bench.candidate("second")) };
    bench.refused(&ask).await?;
    bench.ensure_held_under(&grant).await
}

/// L5: the same tenure under another epoch is not replaced.
pub async fn l5_break_of_another_epoch_is_refused(bench: &LeaseBench) -> Law {
    let (key, first) = (bench.key(), bench.candidate("first"));
    let old = bench.grant(&bench.ask(&key, &first)).await?;
    let new = bench.grant(&AcquireRequest { floor: old.epoch, ..bench.ask(&key, &first) }).await?;
    for epoch in [old.epoch, new.epoch.next()] {
        let breaks = Some((new.tenure, epoch));
        let ask = AcquireRequest { break_holder: breaks, ..bench.ask(&key, &bench.candidate("second")) };
        bench.refused(&ask).await?;
    }
    bench.ensure_held_under(&new).await
}

/// L6: of many at once exactly one is granted.
pub async fn l6_of_many_at_once_one_is_granted(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let winner = race(bench, &key).await?;
    bench.ensure_held_under(&winner).await
}

/// L6: of many at once for an expired key exactly one is granted.
pub async fn l6_of_many_for_an_expired_key_one_is_granted(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let old = bench.grant(&bench.brief(&key, &bench.candidate("first"))).await?;
    bench.until_free(&key).await?;
    let winner = race(bench, &key).await?;
    ensure_above(&winner, old.epoch)?;
    bench.ensure_held_under(&winner).await
}

/// Twelve candidates ask at once, through two clients; the answer is the one that was granted.
async fn race(bench: &LeaseBench, key: &LeaseKey) -> Result<Grant, Broken> {
    let asks: Vec<_> = (0..12).map(|n| bench.ask(key, &bench.candidate(&format!("racer-{n}")))).collect();
    let runs = asks.iter().enumerate().map(|(n, ask)| {
        let store = if n % 2 == 0 { &bench.a } else { &bench.b };
        insist(&bench.cx, || store.try_acquire(&bench.cx, ask))
    });
    let mut winners = Vec::new();
    for answer in join_all(runs).await {
        if let Acquired::Granted { grant, .. } = answer? {
            winners.push(grant);
        }
    }
    ensure!(winners.len() == 1, "of twelve at once {} were granted", winners.len());
    Ok(winners.remove(0))
}
