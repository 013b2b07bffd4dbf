//! From a batch to what takes its changes.
//!
//! * [`mod@handler`] is what users write, [`routes`] says which changes each handler gets, and
//!   [`executor`] makes a sink of them.
//! * [`filter`] says which changes a sink gets at all.
//! * [`backoff`] and [`breaker`] decide when a failed delivery is tried again, [`parking`] what
//!   becomes of a rejected change. They are pure: no clock, no task, no store of their own.

pub mod backoff;
pub mod breaker;
pub mod executor;
pub mod filter;
pub mod handler;
pub mod parking;
pub mod routes;

pub use backoff::Backoff;
pub use breaker::{Breaker, BreakerSettings, BreakerState, Permit};
pub use executor::{HandlerSettings, HandlerSink, ObserverExecutor};
pub use filter::{Filter, Namespaces};
pub use handler::{Handler, HandlerCause, HandlerContext, HandlerError, handler, handler_with};
pub use parking::{OnReject, Park, ParkLimits, Parked, entry_for, replay_order};
pub use routes::{Matched, Operations, Pattern, Routes};
