//! Everything in Watchkeeper that decides.
//!
//! Read it in the order of a tenure: [`instance`] starts, [`connect`] reaches sources and sinks, [`standby`] waits for
//! a lease, [`listener`] runs one tenure of one stream, [`keeper`] renews leases on its own thread, [`pipeline`] moves
//! changes from source to sinks to checkpoint, [`delivery`] calls handlers, [`group`] is what the instances know of
//! each other, [`election`] offers leases to programs without a stream.
//!
//! The engine reaches the outside world only through the contracts and seams of `watchkeeper-core`. `ARCHITECTURE.md`
//! explains the invariants and walks through a change, a takeover and an operator's move.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `instance` | one process: validates, joins the group, stands by, shuts down in order |
//! | `seams`, `stream`, `settings` | the parts of an instance; relations between settings are checked before it starts |
//! | `connect` | connects each stream's source and sinks independently; an instance asks only for leases of connected streams |
//! | `standby` | waits for all streams in one task: `observe` reads holders and computes turns, `acquire` asks, `death` watches and breaks, `standby_slot` is one stream, `preference` says how long an instance is preferred |
//! | `tenure` | one period of holding, as its holder sees it: its deadline and its end |
//! | `keeper`, `progress` | renews all leases in one round trip, ends tenures at their deadlines; detects calls that did not end |
//! | `log_limit` | logs a cause at most once a minute, counts the lines left out, and logs when an outage is over |
//! | `election` | campaign and term: leader election without a stream |
//! | `metrics`, `hooks` | recorded metrics (feature `metrics`); rules broken on purpose (feature `mutants`), otherwise a constant `false` |
//!
//! | module in `listener` | contents |
//! |---|---|
//! | `state` | the five states and their legal transitions |
//! | `stream_slot` | a stream on this instance: what lasts over tenures, and its status for operators |
//! | `health` | what fails, since when, how often, when it is retried; the lag and the oldest undelivered change |
//! | `watch` | one tenure from its grant to its end; reasons to leave |
//! | `claim`, `begin`, `open` | from a granted lease to a claimed checkpoint; first start or lost checkpoint; opens sinks and source |
//! | `ending`, `scope` | decides what follows an opening; the table of error kinds, components and their reach |
//!
//! | module in `pipeline` | contents |
//! |---|---|
//! | `opening`, `opening_state` | starts the tasks of an opening and ends them in order; the state that they share |
//! | `reader`, `cut`, `dispatch`, `lanes` | reads one batch ahead; cuts batches; admits pieces and waits at barriers; delivers by key |
//! | `sink_delivery` | rows to one sink: filter, parked keys, breaker, retries; `rejection`, `dead_letters` |
//! | `safe_point`, `flusher` | which rows are done and durable; when sinks are flushed |
//! | `checkpointer`, `committer` | commits the draft in parallel with delivery; one commit at a time, repeated until its outcome is known |
//! | `transactional` | changes and checkpoint in one transaction: `batch_size`, `rejection`, `dead_letters` |
//! | `replay` | replays or purges dead letters inside a tenure |
//!
//! | module in `delivery`, `group`, `checkpoint` | contents |
//! |---|---|
//! | `delivery::handler`, `routes`, `executor` | code of users, the changes that it receives, and the sink made of it |
//! | `delivery::filter` | which changes a sink receives; drops, renames and truncates reach every sink that mirrors rows of that name |
//! | `delivery::backoff`, `breaker`, `parking` | pure state: waits, circuit breaker, parked keys |
//! | `group::agent`, `report` | heartbeats, the view of other members, control records; the report per stream that `status` reads |
//! | `group::registry`, `slots`, `view` | members, the maximum number of instances, what this instance last read of both |
//! | `group::control` | requests for a stream: paused, preferred, handover, replay, purge |
//! | `group::store_binding` | the store in which a stream began, and the targets that it wrote to |
//! | `group::journal`, `poison`, `election` | takeovers and their causes; changes that were fatal; a deterministic order of members |
//! | `checkpoint::history`, `block` | the last checkpoints, in compressed blocks |
//! | `checkpoint::moves`, `operator` | the plan of an operator's move, and the tenure that commits it |
//! | `checkpoint::lost`, `unfinished`, `interval` | missing or damaged checkpoints; gaps inside a snapshot; how often to commit |
#![deny(missing_docs)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod checkpoint;
pub mod connect;
pub mod delivery;
pub mod election;
pub mod group;
pub mod hooks;
pub mod instance;
pub mod keeper;
pub mod listener;
mod log_limit;
pub mod metrics;
pub mod pipeline;
pub mod progress;
pub mod seams;
pub mod settings;
pub mod standby;
pub mod stream;
pub mod tenure;
