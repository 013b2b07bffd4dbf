//! Processes, and verdicts on made-up runs.

mod children;
mod verdict;
