//! The laws of the contracts in core: one function per law, one list per contract.
//!
//! A law is told nothing but a *bench*: the thing under test, seen as two clients see it, a context,
//! and what is needed to provoke and to look. It waits on conditions with a bounded number of tries,
//! so that the same law holds in virtual time and on a real server.
//!
//! A backend names a runner (it makes a bench and runs a law on it) to the macro of the contract and
//! gets one test per law; a new law reaches every backend without an edit there:
//!
//! ```
//! use watchkeeper_testkit::laws::{Law, LawOf, LeaseBench, in_world};
//!
//! fn leases(law: &LawOf<LeaseBench>) -> Law {
//!     in_world(law, |world| Box::new(LeaseBench::in_memory(world)))
//! }
//!
//! watchkeeper_testkit::lease_laws!(leases);
//! # fn main() {}
//! ```
//!
//! A backend with a real server makes its bench inside its own runtime and calls
//! [`LawOf::holds_on`] there.

pub mod checkpoint;
mod lawful;
pub mod lease;
mod macros;
pub mod records;
pub mod sink;
pub mod source;
pub mod transactional;

pub use checkpoint::{CheckpointBench, Damage, DamageCheckpoint};
pub use lawful::{Broken, Judgement, Law, LawOf, in_world};
pub use lease::LeaseBench;
pub use records::RecordsBench;
pub use sink::{Effect, SinkBench, View};
pub use source::SourceBench;
pub use transactional::TransactionalBench;
