//! What happens to the group, one thing after the other.

use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_core::Epoch;
use watchkeeper_engine::group::control::Controls;

use crate::cluster::{SimCluster, SimInstance};
use crate::net::{FaultSchedule, Server};
use crate::plan::{INSTANCES, TTL};

/// A thing that ends by itself at a moment.
#[derive(Debug, Clone, Copy)]
pub enum Remedy {
    /// Start an instance again.
    Relaunch(usize),
    /// Go on after a pause.
    Resume(usize),
    /// Mend a line.
    Repair(usize, Server),
    /// Fair weather at a server.
    Clear(Server),
    /// Handlers feel well again.
    Cheer,
}

/// What a fault asks the run to do.
#[derive(Debug, Clone, Copy)]
pub enum FaultAction {
    /// Nothing more.
    None,
    /// Undo it after this time.
    After(Duration, Remedy),
    /// Wait for the instance to end in order, then start it again.
    Restart(usize),
}

/// Whom it strikes: mostly whoever is on watch.
fn victim(entropy: &Entropy, instances: &[SimInstance]) -> usize {
    let on_watch: Vec<_> =
        instances.iter().filter(|instance| instance.is_on_watch()).map(SimInstance::number).collect();
    if !on_watch.is_empty() && entropy.below(10) < 7 {
        return on_watch[entropy.below(on_watch.len() as u64) as usize];
    }
    entropy.below(INSTANCES as u64) as usize
}

fn up_to(entropy: &Entropy, longest: Duration) -> Duration {
    Duration::from_millis(1 + entropy.below(longest.as_millis() as u64))
}

/// Lets one thing happen.
pub async fn remove(cluster: &SimCluster, entropy: &Entropy, instances: &mut [SimInstance]) -> FaultAction {
    let number = victim(entropy, instances);
    let instance = &mut instances[number];
    match entropy.below(20) {
        0..=3 if instance.is_alive() => {
            instance.kill(cluster);
            FaultAction::After(up_to(entropy, TTL * 2), Remedy::Relaunch(number))
        }
        4..=6 if instance.is_alive() => {
            instance.pause(cluster);
            FaultAction::After(up_to(entropy, TTL * 3), Remedy::Resume(number))
        }
        7 | 8 if instance.is_alive() => {
            instance.shut_down(cluster);
            FaultAction::Restart(number)
        }
        9..=12 => {
            let server = Server::ALL[entropy.below(5) as usize];
            cluster.book.event(format_args!("cut {number} from {server:?}"));
            cluster.book.count("cuts");
            cluster.net.cut(number, server, true);
            FaultAction::After(up_to(entropy, TTL * 2), Remedy::Repair(number, server))
        }
        13..=15 => {
            let server = Server::ALL[entropy.below(5) as usize];
            foul(cluster, entropy, server);
            FaultAction::After(up_to(entropy, TTL * 3), Remedy::Clear(server))
        }
        16 | 17 => {
            cluster.book.event("bad moods");
            cluster.outcomes.set_bad(true);
            FaultAction::After(up_to(entropy, TTL * 3), Remedy::Cheer)
        }
        18 => {
            cluster.book.event("the lease store forgets");
            cluster.book.count("forgotten leases");
            cluster.leases.forget();
            FaultAction::None
        }
        _ => {
            hand_over(cluster, entropy).await;
            FaultAction::None
        }
    }
}

/// Bad weather: slow, lossy or failing.
fn foul(cluster: &SimCluster, entropy: &Entropy, server: Server) {
    let faults = match entropy.below(3) {
        // Longer than calls wait, but not longer than `settle` at the target.
        0 => {
            let longest = if server == Server::Target { 350 } else { 1_200 };
            FaultSchedule { delay_max: Duration::from_millis(longest), ..FaultSchedule::FAIR }
        }
        1 => FaultSchedule { lost: 300, refused: 100, ..FaultSchedule::FAIR },
        _ => FaultSchedule { refused: 150, failed_after: 250, ..FaultSchedule::FAIR },
    };
    cluster.book.event(format_args!("weather at {server:?}: {faults:?}"));
    cluster.net.set_faults(server, faults);
}

/// A person asks for a hand-over.
async fn hand_over(cluster: &SimCluster, entropy: &Entropy) {
    let stream = &cluster.plan.streams[entropy.below(cluster.plan.streams.len() as u64) as usize].settings.name;
    let key = cluster.streams.iter().map(|course| &course.key).find(|key| key.as_str().contains(stream.as_str()));
    let epoch = key.map_or(Epoch::ZERO, |key| cluster.leases.newest_epoch(key));
    let controls = Controls::new(std::sync::Arc::new(cluster.notes.clone()), "sim");
    let cx = cluster.world.cx();
    if controls.update(&cx, stream, |control| control.hand_over = Some(epoch)).await.is_ok() {
        cluster.book.event(format_args!("hand over {stream} from epoch {epoch}"));
        cluster.book.count("hand-overs");
    }
}

/// Undoes a fault.
pub async fn undo(cluster: &SimCluster, instances: &mut [SimInstance], remedy: Remedy) {
    match remedy {
        Remedy::Relaunch(number) => relaunch(cluster, instances, number).await,
        Remedy::Resume(number) => instances[number].resume(cluster),
        Remedy::Repair(number, server) => {
            cluster.book.event(format_args!("mend {number} to {server:?}"));
            cluster.net.cut(number, server, false);
        }
        Remedy::Clear(server) => {
            cluster.book.event(format_args!("fair weather at {server:?}"));
            cluster.net.set_faults(server, FaultSchedule::FAIR);
        }
        Remedy::Cheer => {
            cluster.book.event("good moods");
            cluster.outcomes.set_bad(false);
        }
    }
}

/// Starts an instance that is dead.
pub async fn relaunch(cluster: &SimCluster, instances: &mut [SimInstance], number: usize) {
    if instances[number].is_alive() {
        return;
    }
    match cluster.launch(number, instances[number].start() + 1).await {
        Ok(instance) => instances[number] = instance,
        Err(error) => cluster.book.violation(format_args!("instance {number} could not start: {error}")),
    }
}
