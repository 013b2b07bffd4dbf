mod delivery;
mod group;
mod history;
mod instance;
mod operator;
#[allow(dead_code, reason = "used by tests to come")]
mod support;
