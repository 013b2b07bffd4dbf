mod delivery;
mod election;
mod group;
mod history;
mod instance;
mod keeper;
mod listener;
mod operator;
mod regressions;
mod standby;
#[allow(dead_code, reason = "used by tests to come")]
mod support;
mod tenure;
