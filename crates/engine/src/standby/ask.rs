//! Asks for leases, and takes the answers in.

use std::sync::Arc;

use futures_util::StreamExt;
use watchkeeper_core::{Acquired, Ask, Epoch, Moment, Result, TenureId};

use super::Standby;
use crate::listener::Relief;

/// Asks under way at once.
const ASKS: usize = 16;

/// A holder to break, and when its death was proved.
pub(super) type Broken = (TenureId, Epoch, Moment);

/// An ask, and what has to be remembered until it is answered.
struct Asking {
    berth: usize,
    ask: Ask,
    proved: Option<Moment>,
}

impl Standby {
    pub(super) async fn ask_all(&mut self, asks: Vec<(usize, Option<Broken>)>) {
        let asks: Vec<_> = asks.into_iter().map(|(berth, broken)| self.prepare(berth, broken)).collect();
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

    fn prepare(&mut self, berth: usize, broken: Option<Broken>) -> Asking {
        let tenure = self.berths[berth].unanswered.take().unwrap_or_else(|| self.instance.seams.entropy.tenure());
        // Answered for from here on: a peer may see the grant in the store before this instance hears of it, and
        // one that was not answered would not ask again for a while.
        self.instance.roll.enter(tenure);
        let ask = Ask {
            key: self.berths[berth].post.key.clone(),
            candidate: self.instance.candidate(tenure),
            ttl: self.instance.settings.lease.ttl,
            floor: Epoch::ZERO,
            break_holder: broken.map(|(tenure, epoch, _)| (tenure, epoch)),
        };
        Asking { berth, ask, proved: broken.map(|(.., proved)| proved) }
    }

    fn answered(&mut self, asking: &Asking, sent: Moment, answer: Result<Acquired>) {
        let (at, tenure, proved) = (asking.berth, asking.ask.candidate.tenure, asking.proved);
        match answer {
            Ok(Acquired::Granted { grant, previous }) => self.begin(at, Relief { grant, sent, previous, proved }),
            Ok(Acquired::Held(holder)) => {
                self.instance.roll.strike(tenure);
                self.berths[at].see(self.instance.id, Some(&holder), self.instance.seams.clock.now());
                self.watch(&holder);
            }
            Err(error) => {
                tracing::debug!(stream = self.berths[at].post.name(), %error, "an ask was not answered");
                self.berths[at].unanswered = Some(tenure);
            }
        }
    }
}
