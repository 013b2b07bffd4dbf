use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use watchkeeper_drill::Order;

/// What lets the demo reach into an instance: to hold a write in hand, and to fail on request.
///
/// A process that is stopped at a random moment has mostly nothing in hand, and then the fence is not tried.
#[derive(Debug, Default)]
pub(super) struct FaultHooks {
    hold: AtomicBool,
    fail: AtomicBool,
    go: Notify,
}

impl FaultHooks {
    /// Takes an order. The one to stop is not for hands.
    pub(super) fn take(&self, order: Order) {
        match order {
            Order::Hold { .. } => self.hold.store(true, Ordering::Relaxed),
            Order::Fail => self.fail.store(true, Ordering::Relaxed),
            Order::Go => self.go.notify_one(),
            _ => {}
        }
    }

    /// Whether to hold the write that is about to be made; once per order.
    pub(super) fn holds(&self) -> bool {
        self.hold.swap(false, Ordering::Relaxed)
    }

    /// Whether to fail at this change; once per order.
    pub(super) fn fails(&self) -> bool {
        self.fail.swap(false, Ordering::Relaxed)
    }

    /// Waits for the order to let go. One that came before counts.
    pub(super) async fn go(&self) {
        self.go.notified().await;
    }
}
