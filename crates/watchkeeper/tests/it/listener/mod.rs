//! Listeners that share a stream, on real SQLite files and on a real server of PostgreSQL. Several coordinators on one store stand
//! for several processes, and in `processes` there are several.

mod changelog;
mod config;
mod coordinator;
mod example;
mod failover;
mod lease;
mod postgres;
mod processes;
mod servers;
mod state;
mod support;
