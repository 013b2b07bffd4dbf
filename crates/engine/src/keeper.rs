//! Renews the leases of an instance and ends tenures at their deadlines.
//!
//! It runs on an OS thread of its own, with a client of its own: neither the cursor, a handler nor a
//! sink can delay it. One round trip renews all streams. An error is no loss until the local deadline
//! has passed; a peer that stepped down on the first error flapped for ever.
//!
//! The keeper's store comes from `LeaseStore::separate`. Renewals that fail are retried every `retry_every` until the
//! deadline. Ending a tenure cancels every call under way; an abandoned call has an unknown outcome. A tenure that
//! panics is given up in the same way (`Keeper::abandon`).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Error, Lease, LeaseStore, Moment, Renewal, Result, Task, TenureId};

use crate::hooks::{Hooks, Mutant};
use crate::log_limit::OutageLog;
use crate::metrics;
use crate::seams::Seams;
use crate::settings::LeaseSettings;
use crate::tenure::{Loss, Tenure};

/// The handle to an instance's keeper.
#[derive(Debug, Clone)]
pub struct Keeper {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A mutex held for a few instructions only: the keeper's thread copies the list out.
    tenures: Mutex<BTreeMap<TenureId, Arc<Tenure>>>,
    changed: Notify,
}

impl Keeper {
    /// Starts a keeper on a thread of its own. It ends with `stop`.
    pub fn start(
        seams: &Seams,
        leases: Arc<dyn LeaseStore>,
        settings: LeaseSettings,
        hooks: Hooks,
        stop: CancellationToken,
    ) -> Result<(Self, Task<()>)> {
        let shared = Arc::new(Shared { tenures: Mutex::default(), changed: Notify::new() });
        let round = Round {
            seams: seams.clone(),
            leases,
            settings,
            hooks,
            shared: Arc::clone(&shared),
            outage: Mutex::default(),
        };
        let task = Task::spawn_apart(&*seams.spawn, "watchkeeper-keeper", move || async move {
            round.keep(stop).await;
        })?;
        Ok((Self { shared }, task))
    }

    /// Renews `tenure` from now on.
    pub fn add(&self, tenure: Arc<Tenure>) {
        self.shared.lock().insert(tenure.grant().tenure, tenure);
        self.shared.changed.notify_one();
    }

    /// Ends `tenure` and renews it no more: whoever ran it is gone.
    pub fn abandon(&self, tenure: TenureId) {
        if let Some(tenure) = self.shared.lock().remove(&tenure) {
            tenure.end(Loss::Stalled);
        }
    }

    /// Renews `tenure` no more.
    pub fn remove(&self, tenure: TenureId) {
        self.shared.lock().remove(&tenure);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<TenureId, Arc<Tenure>>> {
        self.tenures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Round {
    seams: Seams,
    leases: Arc<dyn LeaseStore>,
    settings: LeaseSettings,
    hooks: Hooks,
    shared: Arc<Shared>,
    /// For how long renewals have failed.
    outage: Mutex<OutageLog>,
}

/// A renewal under way: what was asked at which moment, and the answer.
struct Renewed {
    sent: Moment,
    tenures: Vec<Arc<Tenure>>,
    answers: Result<Vec<Renewal>>,
}

type Renewing = Pin<Box<dyn Future<Output = Renewed> + Send>>;

impl Round {
    async fn keep(self, stop: CancellationToken) {
        let clock = Arc::clone(&self.seams.clock);
        let mut under_way: Option<Renewing> = None;
        let mut next = clock.now();
        loop {
            self.tick();
            let now = clock.now();
            if under_way.is_none() && now >= next {
                under_way = self.begin();
                next = now + self.settings.renew_every;
            }
            let tick = clock.sleep_until(now + self.settings.tick());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                renewed = wait_for(&mut under_way) => {
                    under_way = None;
                    if self.apply(renewed) {
                        next = next.min(clock.now() + self.retry_after());
                    }
                }
                () = self.shared.changed.notified() => next = next.min(clock.now() + self.settings.renew_every),
                () = tick => {}
            }
        }
    }

    /// Ends what is past its deadline or stuck.
    fn tick(&self) {
        let now = self.seams.clock.now();
        let tenures: Vec<_> = self.shared.lock().values().cloned().collect();
        for tenure in tenures {
            if tenure.loss().is_none()
                && let Some(caller) = tenure.progress().stalled(now, self.settings.stall_grace)
            {
                tracing::error!(key = %tenure.grant().key, caller, "a call did not end in time: giving up the watch");
                tenure.end(Loss::Stalled);
            }
        }
    }

    fn begin(&self) -> Option<Renewing> {
        let lasting = |tenure: &&Arc<Tenure>| tenure.loss().is_none();
        let tenures: Vec<_> = self.shared.lock().values().filter(lasting).cloned().collect();
        if tenures.is_empty() {
            return None;
        }
        let ttl = self.settings.ttl;
        let leases: Vec<_> = tenures.iter().map(|tenure| Lease { grant: tenure.grant().clone(), ttl }).collect();
        let sent = self.seams.clock.now();
        let cx = self.seams.cx().within(self.settings.call_timeout);
        let store = Arc::clone(&self.leases);
        Some(Box::pin(async move {
            let answers = cx.run(store.renew(&cx, &leases)).await;
            Renewed { sent, tenures, answers }
        }))
    }

    /// Takes the answers in; true when it should be tried again soon.
    fn apply(&self, renewed: Renewed) -> bool {
        let sent = match self.hooks.breaks(Mutant::DeadlineFromReply) {
            true => self.seams.clock.now(),
            false => renewed.sent,
        };
        let answers = match renewed.answers {
            Ok(answers) => answers,
            Err(error) => {
                metrics::renewal_failed();
                self.log_failure(&renewed.tenures, &error);
                return true;
            }
        };
        let ended = self.outage.lock().unwrap_or_else(PoisonError::into_inner).end(self.seams.clock.now());
        if let Some(after) = ended {
            tracing::info!(after, "the store of the leases answers again");
        }
        let mut again = false;
        for (tenure, answer) in renewed.tenures.iter().zip(answers) {
            match answer {
                Renewal::Held => tenure.extend(sent, self.settings.acting_time(self.hooks)),
                Renewal::Lost => tenure.end(Loss::Taken),
                Renewal::Unknown => again = true,
            }
        }
        again
    }

    fn log_failure(&self, tenures: &[Arc<Tenure>], error: &Error) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = outage.fail(&error.to_string(), self.seams.clock.now()) else { return };
        let keys: Vec<_> = tenures.iter().map(|tenure| tenure.grant().key.to_string()).collect();
        let leases = keys.join(", ");
        tracing::warn!(leases, %error, left_out = due.left_out, "renewal failed; the leases last until their deadlines");
    }

    fn retry_after(&self) -> std::time::Duration {
        self.seams.entropy.jitter(self.settings.retry_every)
    }
}

async fn wait_for(under_way: &mut Option<Renewing>) -> Renewed {
    match under_way {
        Some(renewing) => renewing.await,
        None => std::future::pending().await,
    }
}
