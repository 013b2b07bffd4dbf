//! What happens to the group, one thing after the other.

use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_core::Epoch;
use watchkeeper_engine::group::control::Controls;

use crate::fleet::{Sea, Ship};
use crate::net::{Server, Weather};
use crate::plan::{INSTANCES, TTL};

/// A thing that ends by itself at a moment.
#[derive(Debug, Clone, Copy)]
pub enum Remedy {
    /// Start an instance again.
    Relaunch(usize),
    /// Go on after a pause.
    Resume(usize),
    /// Mend a line.
    Mend(usize, Server),
    /// Fair weather at a server.
    Clear(Server),
    /// Handlers feel well again.
    Cheer,
}

/// What a fault asks the run to do.
#[derive(Debug, Clone, Copy)]
pub enum Deed {
    /// Nothing more.
    None,
    /// Undo it after this time.
    After(Duration, Remedy),
    /// Wait for the instance to end in order, then start it again.
    Restart(usize),
}

/// Whom it strikes: mostly whoever is on watch.
fn victim(entropy: &Entropy, ships: &[Ship]) -> usize {
    let on_watch: Vec<_> = ships.iter().filter(|ship| ship.is_on_watch()).map(Ship::number).collect();
    if !on_watch.is_empty() && entropy.below(10) < 7 {
        return on_watch[entropy.below(on_watch.len() as u64) as usize];
    }
    entropy.below(INSTANCES as u64) as usize
}

fn up_to(entropy: &Entropy, longest: Duration) -> Duration {
    Duration::from_millis(1 + entropy.below(longest.as_millis() as u64))
}

/// Lets one thing happen.
pub async fn strike(sea: &Sea, entropy: &Entropy, ships: &mut [Ship]) -> Deed {
    let number = victim(entropy, ships);
    let ship = &mut ships[number];
    match entropy.below(20) {
        0..=3 if ship.is_alive() => {
            ship.kill(sea);
            Deed::After(up_to(entropy, TTL * 2), Remedy::Relaunch(number))
        }
        4..=6 if ship.is_alive() => {
            ship.pause(sea);
            Deed::After(up_to(entropy, TTL * 3), Remedy::Resume(number))
        }
        7 | 8 if ship.is_alive() => {
            ship.shut_down(sea);
            Deed::Restart(number)
        }
        9..=12 => {
            let server = Server::ALL[entropy.below(5) as usize];
            sea.book.event(format_args!("cut {number} from {server:?}"));
            sea.book.count("cuts");
            sea.net.cut(number, server, true);
            Deed::After(up_to(entropy, TTL * 2), Remedy::Mend(number, server))
        }
        13..=15 => {
            let server = Server::ALL[entropy.below(5) as usize];
            foul(sea, entropy, server);
            Deed::After(up_to(entropy, TTL * 3), Remedy::Clear(server))
        }
        16 | 17 => {
            sea.book.event("bad moods");
            sea.moods.set_bad(true);
            Deed::After(up_to(entropy, TTL * 3), Remedy::Cheer)
        }
        18 => {
            sea.book.event("the lease store forgets");
            sea.book.count("forgotten leases");
            sea.leases.forget();
            Deed::None
        }
        _ => {
            hand_over(sea, entropy).await;
            Deed::None
        }
    }
}

/// Bad weather: slow, lossy or failing.
fn foul(sea: &Sea, entropy: &Entropy, server: Server) {
    let weather = match entropy.below(3) {
        // Longer than calls wait, but not longer than `settle` at the target.
        0 => {
            let longest = if server == Server::Target { 350 } else { 1_200 };
            Weather { delay_max: Duration::from_millis(longest), ..Weather::FAIR }
        }
        1 => Weather { lost: 300, refused: 100, ..Weather::FAIR },
        _ => Weather { refused: 150, failed_after: 250, ..Weather::FAIR },
    };
    sea.book.event(format_args!("weather at {server:?}: {weather:?}"));
    sea.net.set_weather(server, weather);
}

/// A person asks for a hand-over.
async fn hand_over(sea: &Sea, entropy: &Entropy) {
    let stream = &sea.plan.streams[entropy.below(sea.plan.streams.len() as u64) as usize].settings.name;
    let key = sea.streams.iter().map(|course| &course.key).find(|key| key.as_str().contains(stream.as_str()));
    let epoch = key.map_or(Epoch::ZERO, |key| sea.leases.newest_epoch(key));
    let controls = Controls::new(std::sync::Arc::new(sea.notes.clone()), "sim");
    let cx = sea.world.cx();
    if controls.update(&cx, stream, |control| control.hand_over = Some(epoch)).await.is_ok() {
        sea.book.event(format_args!("hand over {stream} from epoch {epoch}"));
        sea.book.count("hand-overs");
    }
}

/// Undoes a fault.
pub async fn undo(sea: &Sea, ships: &mut [Ship], remedy: Remedy) {
    match remedy {
        Remedy::Relaunch(number) => relaunch(sea, ships, number).await,
        Remedy::Resume(number) => ships[number].resume(sea),
        Remedy::Mend(number, server) => {
            sea.book.event(format_args!("mend {number} to {server:?}"));
            sea.net.cut(number, server, false);
        }
        Remedy::Clear(server) => {
            sea.book.event(format_args!("fair weather at {server:?}"));
            sea.net.set_weather(server, Weather::FAIR);
        }
        Remedy::Cheer => {
            sea.book.event("good moods");
            sea.moods.set_bad(false);
        }
    }
}

/// Starts an instance that is dead.
pub async fn relaunch(sea: &Sea, ships: &mut [Ship], number: usize) {
    if ships[number].is_alive() {
        return;
    }
    match sea.launch(number, ships[number].start() + 1).await {
        Ok(ship) => ships[number] = ship,
        Err(error) => sea.book.violation(format_args!("instance {number} could not start: {error}")),
    }
}
