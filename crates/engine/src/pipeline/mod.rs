//! From source to checkpoint: one opening of a stream inside a tenure.
//!
//! ```text
//! reader ─ batches ─ dispatcher ─ jobs ─ lanes ─ sink deliveries ─ sinks
//!    ^                    │ admits pieces   │ done
//!    │                    v                 v
//!    │                safe point <── flush ── flusher
//!    │                    │ draft
//!    └─ acknowledge ─ checkpointer ─ committer ─ checkpoint store
//! ```
//!
//! Reading overlaps writing, flushes overlap writes, commits overlap both. The window of the safe point couples them:
//! when it is full, nothing more is read (G7). With a transactional sink there are no lanes: [`transactional`] writes
//! changes and checkpoint together, in source order.
//!
//! The tasks of an opening are the reader, one per lane, the flusher and the checkpointer; the dispatcher runs in the
//! task of the tenure. They share `OpeningState`, wait on `Latest` values, and hold none of its locks across an await.
//! A read can be interrupted by an acknowledgement, because reading is cancel safe.

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
