mod delivery;
mod group;
mod history;
mod instance;
mod keeper;
mod listener;
mod operator;
#[allow(dead_code, reason = "used by tests to come")]
mod support;
mod tenure;
