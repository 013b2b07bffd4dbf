use std::ops::{Deref, DerefMut};

use deadpool_postgres::Object;
use watchkeeper_core::{ErrorKind, Result};

/// A connection out of the pool.
///
/// Dropping a call does not end it at the server: the next one on the same connection would wait for it, or be taken for its
/// answer's owner. So a connection that is dropped is closed, and only one that is known to be at rest goes back.
#[derive(Debug)]
pub struct Link(Option<Object>);

impl Link {
    pub(super) fn new(object: Object) -> Self {
        Self(Some(object))
    }

    /// Back to the pool: nothing is under way on it, and no transaction is open.
    pub fn give_back(mut self) {
        drop(self.0.take());
    }

    /// Back to the pool when the server answered, be it with a refusal.
    pub(super) fn give_back_if<T>(self, answer: &Result<T>) {
        let at_rest = answer.as_ref().map_or_else(|error| error.kind() != ErrorKind::Unknown, |_| true);
        if at_rest && !self.is_closed() {
            self.give_back();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Taken out of the pool, which then makes room for another one.
        drop(self.0.take().map(Object::take));
    }
}

impl Deref for Link {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        // It is there until `give_back` or `drop`, both of which end the link.
        self.0.as_ref().expect("a link has its connection for as long as it lives")
    }
}

impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().expect("a link has its connection for as long as it lives")
    }
}
