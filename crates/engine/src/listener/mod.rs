//! The life of a stream on one instance: its states, and one tenure from claim to release.

mod begin;
pub mod claim;
pub mod ending;
pub mod health;
pub mod open;
pub mod scope;
pub mod state;
pub mod stream_slot;
pub mod watch;

pub use health::Health;
pub use state::{ListenerState, StateMachine};
pub use stream_slot::{StreamSlot, StreamStatus};
pub use watch::{GrantedLease, Outcome, Watch};
