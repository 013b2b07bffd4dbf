mod commits;
mod delivery;
mod election;
mod group;
mod history;
mod instance;
mod keeper;
mod letters;
mod listener;
mod operator;
mod pipeline;
mod sinks;
mod standby;
#[allow(dead_code, reason = "used by tests to come")]
mod support;
mod tenure;
mod threads;
mod transactional;
