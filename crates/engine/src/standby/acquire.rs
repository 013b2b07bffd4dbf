//! Asks for leases, and takes the answers in.
//!
//! A request whose answer was lost is repeated for the same tenure. Peers are answered for a tenure from before it is
//! requested, since a peer may see the grant before this instance does.

use std::sync::Arc;

use futures_util::StreamExt;
use watchkeeper_core::{AcquireRequest, Acquired, Epoch, Moment, Result, TenureId};

use super::Standby;
use crate::listener::GrantedLease;

/// Asks under way at once.
const ASKS: usize = 16;

/// A holder to break, and when its death was proved.
pub(super) type Broken = (TenureId, Epoch, Moment);

/// An ask, and what has to be remembered until it is answered.
struct PendingAcquire {
    slot: usize,
    ask: AcquireRequest,
    proved: Option<Moment>,
}

impl Standby {
    pub(super) async fn ask_all(&mut self, asks: Vec<(usize, Option<Broken>)>) {
        let asks: Vec<_> = asks.into_iter().map(|(slot, broken)| self.prepare(slot, broken)).collect();
        let instance = Arc::clone(&self.instance);
        let mut answers = futures_util::stream::iter(asks)
            .map(|asking| {
                let instance = Arc::clone(&instance);
                async move {
                    let cx = instance.cx();
                    let sent = cx.now();
                    let answer = cx.run(instance.leases.try_acquire(&cx, &asking.ask)).await;
                    (asking, sent, answer)
                }
            })
            .buffer_unordered(ASKS);
        while let Some((asking, sent, answer)) = answers.next().await {
            self.answered(&asking, sent, answer);
        }
    }

    fn prepare(&mut self, slot: usize, broken: Option<Broken>) -> PendingAcquire {
        let tenure = self.slots[slot].unanswered.take().unwrap_or_else(|| self.instance.seams.entropy.tenure());
        // Answered for from here on: a peer may see the grant in the store before this instance hears of it, and
        // one that was not answered would not ask again for a while.
        self.instance.held_tenures.enter(tenure);
        let ask = AcquireRequest {
            key: self.slots[slot].stream_slot.key.clone(),
            candidate: self.instance.candidate(tenure),
            ttl: self.instance.settings.lease.ttl,
            floor: Epoch::ZERO,
            break_holder: broken.map(|(tenure, epoch, _)| (tenure, epoch)),
        };
        PendingAcquire { slot, ask, proved: broken.map(|(.., proved)| proved) }
    }

    fn answered(&mut self, asking: &PendingAcquire, sent: Moment, answer: Result<Acquired>) {
        let (at, tenure, proved) = (asking.slot, asking.ask.candidate.tenure, asking.proved);
        match answer {
            Ok(Acquired::Granted { grant, previous }) => self.begin(at, GrantedLease { grant, sent, previous, proved }),
            Ok(Acquired::Held(holder)) => {
                self.instance.held_tenures.remove(tenure);
                self.slots[at].see(self.instance.id, Some(&holder), self.instance.seams.clock.now());
                self.watch(&holder);
            }
            Err(error) => {
                tracing::debug!(stream = self.slots[at].stream_slot.name(), %error, "an ask was not answered");
                self.slots[at].unanswered = Some(tenure);
            }
        }
    }
}
