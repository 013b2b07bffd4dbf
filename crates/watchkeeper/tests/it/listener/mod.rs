//! Listeners that share a stream, on real SQLite files. Several coordinators on one file stand for several processes, and in
//! `processes` there are several.

mod changelog;
mod config;
mod coordinator;
mod example;
mod failover;
mod lease;
mod postgres;
mod processes;
mod state;
mod support;
