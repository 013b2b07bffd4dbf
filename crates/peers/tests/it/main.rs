//! Peers as processes see each other.

mod death;
mod strangers;
mod support;
