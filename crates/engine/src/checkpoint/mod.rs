//! Checkpoints beside their storage: how often, what came before, and how people move them.

mod block;
pub mod history;
pub mod interval;
pub mod lost;
pub mod moves;
pub mod next_change;
pub mod operator;
pub mod unfinished;
