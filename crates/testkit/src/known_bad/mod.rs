//! Implementations with exactly one flaw each, to prove the laws with.
//!
//! A law that nothing can break says nothing. Each of these wraps the reference in memory and alters
//! arguments or answers in one way that has been seen, or could be, in a real backend; each names the
//! law that must find it. The matrix of all of them against all laws is a snapshot in the tests.

mod checkpoint;
mod lease;
mod records;
mod sink;
mod source;
mod transactional;

pub use checkpoint::{checkpoints, flawed_checkpoints};
pub use lease::leases;
pub use records::records;
pub use sink::sinks;
pub use source::sources;
pub use transactional::transactional_sinks;

use std::fmt;

use crate::laws::{Law, LawOf, in_world};
use crate::world::World;

/// Puts one into a world, on a fresh bench.
type Make<B> = Box<dyn Fn(&World) -> Box<B>>;

/// One known-bad implementation.
pub struct KnownBad<B: ?Sized> {
    /// What is wrong with it.
    pub flaw: String,
    /// The law that must find it.
    pub breaks: &'static str,
    make: Make<B>,
}

impl<B: ?Sized> KnownBad<B> {
    fn new(flaw: impl fmt::Debug, breaks: &'static str, make: impl Fn(&World) -> Box<B> + 'static) -> Self {
        Self { flaw: format!("{flaw:?}"), breaks, make: Box::new(make) }
    }

    /// Judges it by `law`, in virtual time.
    pub fn judge(&self, law: &LawOf<B>) -> Law {
        in_world(law, &self.make)
    }
}

impl<B: ?Sized> fmt::Debug for KnownBad<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flaw)
    }
}

/// Lets others run once: where a real implementation waits for its server.
async fn give_way() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
