//! The latest value of something, and waiting for a newer one.
//!
//! What tokio's `watch` channel does, with one difference: those who wait are woken in the order in
//! which they began to wait. `watch` spreads them at random, and a simulation could not be repeated.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Where the latest value is told. Dropping it tells those who wait that there will be none.
#[derive(Debug)]
pub struct Latest<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// Follows the latest value. A clone has seen what its origin had seen.
#[derive(Debug)]
pub struct Follower<T> {
    shared: Arc<Mutex<Shared<T>>>,
    seen: u64,
}

/// The teller is gone: there will be no newer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublisherGone;

#[derive(Debug)]
struct Shared<T> {
    /// Shared with those who look at it, so that nobody holds the lock meanwhile.
    value: Arc<T>,
    version: u64,
    silent: bool,
    next_ticket: u64,
    /// In the order of waiting.
    waiting: BTreeMap<u64, Waker>,
}

impl<T> Shared<T> {
    /// Those to wake, to be woken outside the lock.
    fn take_waiters(&mut self) -> Vec<Waker> {
        self.version += 1;
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Latest<T> {
    /// A teller whose latest value is `value`.
    pub fn new(value: T) -> Self {
        let shared =
            Shared { value: Arc::new(value), version: 0, silent: false, next_ticket: 0, waiting: BTreeMap::new() };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// A follower that has seen the value of now.
    pub fn follow(&self) -> Follower<T> {
        let seen = lock(&self.shared).version;
        Follower { shared: Arc::clone(&self.shared), seen }
    }

    /// Tells a new value.
    pub fn publish(&self, value: T) {
        let mut shared = lock(&self.shared);
        let before = std::mem::replace(&mut shared.value, Arc::new(value));
        let waiting = shared.take_waiters();
        drop(shared);
        // Outside the lock: a value's drop may run other code.
        drop(before);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The value of now.
    pub fn get(&self) -> Value<T> {
        Value(Arc::clone(&lock(&self.shared).value))
    }
}

impl<T: Clone> Latest<T> {
    /// Changes the value and tells it.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        self.change_if(|value| {
            change(value);
            true
        });
    }

    /// Changes the value, and tells it if `change` says that it is news. Whoever looks at the value before keeps it as it was.
    ///
    /// `change` may not look at this value again: it is locked.
    pub fn change_if(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut shared = lock(&self.shared);
        let is_news = change(Arc::make_mut(&mut shared.value));
        let waiting = if is_news { shared.take_waiters() } else { Vec::new() };
        drop(shared);
        waiting.into_iter().for_each(Waker::wake);
        is_news
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.silent = true;
        let waiting = shared.take_waiters();
        drop(shared);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A value as it was when it was looked at. It locks nothing: it may be held for as long as one likes, also over an await.
#[derive(Debug)]
pub struct Value<T>(Arc<T>);

impl<T> Deref for Value<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Follower<T> {
    /// The value of now, whether it has been seen or not.
    pub fn get(&self) -> Value<T> {
        Value(Arc::clone(&lock(&self.shared).value))
    }

    /// The value of now, which counts as seen.
    pub fn see(&mut self) -> Value<T> {
        let shared = lock(&self.shared);
        self.seen = shared.version;
        Value(Arc::clone(&shared.value))
    }

    /// Takes the value of now for seen.
    pub fn mark_seen(&mut self) {
        drop(self.see());
    }

    /// Whether there is a value that has not been seen.
    pub fn has_news(&self) -> bool {
        let shared = lock(&self.shared);
        !shared.silent && shared.version != self.seen
    }

    /// Waits for a value that has not been seen, which then counts as seen.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped, nothing counts as seen.
    pub async fn changed(&mut self) -> Result<(), PublisherGone> {
        let mut wait = Wait { shared: &self.shared, ticket: None };
        let version = poll_fn(|context| {
            let mut shared = lock(wait.shared);
            if shared.silent {
                return Poll::Ready(Err(PublisherGone));
            }
            if shared.version != self.seen {
                return Poll::Ready(Ok(shared.version));
            }
            let ticket = *wait.ticket.get_or_insert(shared.next_ticket);
            shared.next_ticket = shared.next_ticket.max(ticket + 1);
            shared.waiting.insert(ticket, context.waker().clone());
            Poll::Pending
        });
        self.seen = version.await?;
        Ok(())
    }
}

impl<T> Clone for Follower<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

/// Leaves the queue when the wait is dropped.
struct Wait<'a, T> {
    shared: &'a Mutex<Shared<T>>,
    ticket: Option<u64>,
}

impl<T> Drop for Wait<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let waker = lock(self.shared).waiting.remove(&ticket);
            // Dropped outside the lock: a waker's drop may run other code.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    struct Named(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Named {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no panic before").push(self.0);
        }
    }

    #[test]
    fn waiters_are_woken_in_order() {
        let latest = Latest::new(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut followers: Vec<_> = (0..20).map(|_| latest.follow()).collect();
        let mut waits: Vec<_> = followers.iter_mut().map(|follower| Box::pin(follower.changed())).collect();
        for (number, wait) in waits.iter_mut().enumerate() {
            let waker = Waker::from(Arc::new(Named(number, Arc::clone(&woken))));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(waits.remove(3));
        latest.publish(1);
        let expected: Vec<_> = (0..20).filter(|number| *number != 3).collect();
        assert_eq!(*woken.lock().expect("no panic before"), expected);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a thread of its own, so that the test fails where it would hang")]
    fn values_are_held_beside_others_and_beside_changes() {
        let latest = Latest::new(1);
        let mut follower = latest.follow();
        let (done, finished) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let (first, second) = (follower.clone().get(), latest.get());
            let seen = follower.see();
            latest.publish(2);
            let values = (*first, *second, *seen, *follower.get());
            done.send(values).expect("the test waits");
        });
        let values = finished.recv_timeout(std::time::Duration::from_secs(10)).expect("nobody waits for a lock");
        assert_eq!(values, (1, 1, 1, 2), "a value stays what it was when it was looked at");
    }

    #[test]
    fn a_value_is_seen_once_and_the_end_is_reported() {
        let latest = Latest::new("a");
        let mut follower = latest.follow();
        assert!(!follower.has_news());
        latest.publish("b");
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(pin!(follower.changed()).poll(&mut context), Poll::Ready(Ok(()))));
        assert!(pin!(follower.changed()).poll(&mut context).is_pending());
        assert_eq!(*follower.get(), "b");
        assert!(!latest.change_if(|_| false));
        assert!(pin!(follower.changed()).poll(&mut context).is_pending());
        drop(latest);
        assert!(matches!(pin!(follower.changed()).poll(&mut context), Poll::Ready(Err(PublisherGone))));
    }
}
