use futures_util::FutureExt;
use watchkeeper_core::{Ending, Epoch, Grant, Released, Renewal, Wakeups};

use super::{LeaseBench, ensure_above};
use crate::laws::lawful::{Broken, Law, TRIES, ensure};

/// L11: what its holder releases is free at once.
pub async fn l11_released_key_is_free_at_once(bench: &LeaseBench) -> Law {
    let key = bench.key();
    let grant = bench.grant(&bench.ask(&key, &bench.candidate("a"))).await?;
    let answer = bench.a.release(&bench.cx, &grant).await?;
    ensure!(answer == Released::Released, "the holder's release is {answer:?}");
    let holder = bench.holder(&key).await?;
    ensure!(holder.is_none(), "a released key is still held: {holder:?}");
    bench.grant(&bench.ask(&key, &bench.candidate("b"))).await?;
    Ok(())
}

/// L11: another's lease is not released.
pub async fn l11_release_by_another_changes_nothing(bench: &LeaseBench) -> Law {
    let grant = bench.grant(&bench.ask(&bench.key(), &bench.candidate("a"))).await?;
    let strangers = [
        Grant { tenure: bench.entropy.tenure(), ..grant.clone() },
        Grant { epoch: Epoch(grant.epoch.0.saturating_sub(1)), ..grant.clone() },
        Grant { epoch: grant.epoch.next(), ..grant.clone() },
        Grant { key: bench.key(), ..grant.clone() },
    ];
    for stranger in strangers {
        let answer = bench.b.release(&bench.cx, &stranger).await?;
        ensure!(answer == Released::NotHeld, "held under {grant:?}, yet the release of {stranger:?} is {answer:?}");
        bench.ensure_held_under(&grant).await?;
    }
    Ok(())
}

/// L11: what was released can be neither released again nor renewed.
pub async fn l11_released_lease_is_gone(bench: &LeaseBench) -> Law {
    let grant = bench.grant(&bench.ask(&bench.key(), &bench.candidate("a"))).await?;
    bench.a.release(&bench.cx, &grant).await?;
    let again = bench.a.release(&bench.cx, &grant).await?;
    ensure!(again == Released::NotHeld, "the second release is {again:?}");
    let renewal = bench.renew(&grant, bench.long()).await?;
    ensure!(renewal == Renewal::Lost, "the renewal of a released lease is {renewal:?}");
    Ok(())
}

/// L12: the epoch survives a release.
pub async fn l12_epoch_survives_a_release(bench: &LeaseBench) -> Law {
    let (key, first) = (bench.key(), bench.candidate("first"));
    let old = bench.grant(&bench.ask(&key, &first)).await?;
    bench.a.release(&bench.cx, &old).await?;
    let (new, previous) = bench.granted(&bench.ask(&key, &bench.candidate("second"))).await?;
    ensure_above(&new, old.epoch)?;
    if let Some(previous) = previous {
        ensure!(previous.candidate == first && previous.epoch == old.epoch, "another one was before: {previous:?}");
        ensure!(previous.ending == Ending::Released, "it was released, but {:?} is told", previous.ending);
    }
    Ok(())
}

/// L13: a release wakes those who wait, where the profile says so.
pub async fn l13_release_wakes_those_who_wait(bench: &LeaseBench) -> Law {
    if !bench.a.profile().wakes {
        return Ok(());
    }
    let grant = bench.grant(&bench.ask(&bench.key(), &bench.candidate("a"))).await?;
    let mut wakeups = bench.b.wakeups(&bench.cx).await?;
    until_silent(bench, &mut *wakeups).await;
    bench.a.release(&bench.cx, &grant).await?;
    next(bench, &mut *wakeups).await
}

/// L13: a wait that was dropped before the release loses nothing.
pub async fn l13_dropped_wait_loses_no_hint(bench: &LeaseBench) -> Law {
    if !bench.a.profile().wakes {
        return Ok(());
    }
    let grant = bench.grant(&bench.ask(&bench.key(), &bench.candidate("a"))).await?;
    let mut wakeups = bench.b.wakeups(&bench.cx).await?;
    until_silent(bench, &mut *wakeups).await;
    drop(wakeups.next(&bench.cx).now_or_never());
    bench.a.release(&bench.cx, &grant).await?;
    next(bench, &mut *wakeups).await
}

/// Hints may be false, so those of earlier events are taken away first. On a server that others use
/// too there may be no silence; then the law is weaker, not broken.
async fn until_silent(bench: &LeaseBench, wakeups: &mut dyn Wakeups) {
    for _ in 0..TRIES {
        if next(bench, wakeups).await.is_err() {
            return;
        }
    }
}

async fn next(bench: &LeaseBench, wakeups: &mut dyn Wakeups) -> Law {
    let cx = bench.cx.within(bench.ttl);
    let hint = cx.run(wakeups.next(&cx)).await;
    hint.map_err(|error| Broken::new(format!("no hint of a release: {error}")))
}

/// `holders` answers in the order of the keys, with `None` for what is free or expired.
pub async fn holders_are_reported_in_the_order_of_the_keys(bench: &LeaseBench) -> Law {
    let keys: Vec<_> = (0..4).map(|_| bench.key()).collect();
    let expired = bench.grant(&bench.brief(&keys[2], &bench.candidate("expired"))).await?;
    let first = bench.grant(&bench.ask(&keys[0], &bench.candidate("first"))).await?;
    let last = bench.grant(&bench.ask(&keys[3], &bench.candidate("last"))).await?;
    bench.until_free(&expired.key).await?;
    let holders = bench.b.holders(&bench.cx, &keys).await?;
    let tenures: Vec<_> = holders.iter().map(|holder| holder.as_ref().map(|holder| holder.candidate.tenure)).collect();
    let expected = [Some(first.tenure), None, None, Some(last.tenure)];
    ensure!(tenures == expected, "expected {expected:?}, got {tenures:?}");
    let none = bench.b.holders(&bench.cx, &[]).await?;
    ensure!(none.is_empty(), "nobody was asked for, yet {none:?}");
    Ok(())
}

/// `separate` is the same store: the keeper renews through it what was acquired elsewhere.
pub async fn separate_clients_see_the_same_leases(bench: &LeaseBench) -> Law {
    let separate = bench.a.separate(&bench.cx).await?;
    let grant = bench.grant(&bench.brief(&bench.key(), &bench.candidate("a"))).await?;
    let lease = watchkeeper_core::Lease { grant: grant.clone(), ttl: bench.long() };
    let answers = separate.renew(&bench.cx, &[lease]).await?;
    ensure!(answers == [Renewal::Held], "the renewal by a separate client is {answers:?}");
    bench.cx.sleep(bench.ttl * 2).await;
    bench.ensure_held_under(&grant).await
}
