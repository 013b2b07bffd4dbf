//! From source to checkpoint: one opening of a stream inside a tenure.
//!
//! ```text
//! reader ─ batches ─ dispatch ─ jobs ─ lanes ─ couriers ─ sinks
//!    ^                  │ admits pieces        │ done
//!    │                  v                      v
//!    │              safe point <── flush ── flusher
//!    │                  │ draft
//!    └─ acknowledge ─ checkpointer ─ committer ─ checkpoint store
//! ```
//!
//! Reading overlaps writing, flushes overlap writes, commits overlap both. What couples them is the
//! window of the safe point: when it is full nothing more is read (G7). With a transactional sink there
//! are no lanes: [`transactional`] writes changes and checkpoint together, in source order.

pub mod checkpointer;
pub mod committer;
pub mod cut;
pub mod dispatch;
pub mod flusher;
pub mod lanes;
pub mod opening;
pub mod opening_state;
pub mod reader;
pub mod replay;
pub mod safe_point;
pub mod sink_delivery;
pub mod transactional;
