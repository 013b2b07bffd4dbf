//! What lets a parent reach into an instance: to hold a write in hand, to fail on request, to go deaf.
//!
//! A process that is stopped at a random moment has nothing in hand most of the time, and the fence is never tried. So the
//! instance is told to stop itself just before its next write, says so, and is stopped by the signal there.
//!
//! With self-fencing off, the renewals of such an instance are not answered while it holds a write. Otherwise it would
//! learn first that it was replaced, and would not try the stale write.

mod leases;
mod sink;

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::sync::Notify;
use watchkeeper_drill::{Event, Order};

pub(crate) use leases::UnansweredRenewals;
pub(crate) use sink::Handled;

/// What was ordered, and what is being done about it.
#[derive(Debug, Default)]
struct RequestedFaults {
    /// To hold the next write, inside the target's transaction or before it.
    hold: Option<bool>,
    /// A write is held until the order to go.
    holding: bool,
    fail: bool,
    /// A write is held or, just let go, not yet answered.
    in_hand: bool,
}

/// The hands of one instance.
#[derive(Debug, Default)]
pub(crate) struct FaultHooks {
    wanted: Mutex<RequestedFaults>,
    /// Wakes a task that holds, and a thread that does.
    go: Notify,
    go_on_thread: Condvar,
}

/// A write is in hand until this is dropped.
pub(crate) struct HeldWrite<'a>(&'a FaultHooks);

impl Drop for HeldWrite<'_> {
    fn drop(&mut self) {
        let mut wanted = self.0.lock();
        wanted.in_hand = false;
        wanted.holding = false;
    }
}

impl FaultHooks {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RequestedFaults> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an order.
    pub(crate) fn take(&self, order: Order) {
        let mut wanted = self.lock();
        match order {
            Order::Hold { inside } => wanted.hold = Some(inside),
            Order::Fail => wanted.fail = true,
            Order::Go => {
                wanted.hold = None;
                wanted.holding = false;
                drop(wanted);
                self.go.notify_waiters();
                self.go_on_thread.notify_all();
            }
            Order::Stop => {}
        }
    }

    /// Whether a write is in hand, so that one who would rather not hear of its lease does not.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().in_hand
    }

    /// Whether to fail now; asked once per order.
    pub(crate) fn fails(&self) -> bool {
        std::mem::take(&mut self.lock().fail)
    }

    fn begin(&self, inside: bool, epoch: u64) -> Option<HeldWrite<'_>> {
        let mut wanted = self.lock();
        if wanted.hold != Some(inside) {
            return None;
        }
        *wanted = RequestedFaults { hold: None, holding: true, in_hand: true, fail: wanted.fail };
        drop(wanted);
        let in_hand = HeldWrite(self);
        // Without a listener there is nobody to say go, and the process is about to end.
        Event::Holding { epoch }.emit().ok().map(|()| in_hand)
    }

    /// Holds the write that is about to be made, or with `inside` the open transaction, if that was ordered.
    pub(crate) async fn hold(&self, inside: bool, epoch: u64) -> Option<HeldWrite<'_>> {
        let in_hand = self.begin(inside, epoch)?;
        loop {
            let go = self.go.notified();
            if !self.lock().holding {
                return Some(in_hand);
            }
            go.await;
        }
    }

    /// The same on the thread of an open transaction.
    pub(crate) fn hold_on_thread(&self, epoch: u64) {
        let Some(_in_hand) = self.begin(true, epoch) else { return };
        let mut wanted = self.lock();
        while wanted.holding {
            wanted = self.go_on_thread.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
        drop(wanted);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn nothing_is_held_without_an_order() {
        let hooks = FaultHooks::new();
        assert!(hooks.hold(false, 1).await.is_none());
        hooks.take(Order::Hold { inside: true });
        assert!(hooks.hold(false, 1).await.is_none(), "it was told to hold inside");
        assert!(!hooks.is_full());
    }

    #[tokio::test]
    async fn a_write_is_in_hand_from_the_hold_to_its_answer() {
        let hooks = FaultHooks::new();
        hooks.take(Order::Hold { inside: false });
        let theirs = Arc::clone(&hooks);
        let writing = tokio::spawn(async move {
            let in_hand = theirs.hold(false, 1).await;
            (in_hand.is_some(), theirs.is_full())
        });
        let held = async {
            while !hooks.is_full() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), held).await.expect("it holds soon");
        assert!(!writing.is_finished());
        hooks.take(Order::Go);
        assert_eq!(writing.await.expect("it does not panic"), (true, true), "let go, and not yet answered");
        assert!(!hooks.is_full(), "it was answered");
    }

    #[test]
    fn one_order_to_fail_is_one_failure() {
        let hooks = FaultHooks::new();
        hooks.take(Order::Fail);
        assert!(hooks.fails());
        assert!(!hooks.fails());
    }
}
