//! Real processes under faults, and the verdict on what arrived.
//!
//! * [`Children`] starts processes, hears their [`Event`]s, gives them [`Order`]s, stops, wakes and kills them.
//! * A child calls [`obey`] first: it hears its orders, and ends with whoever started it.
//! * [`Plan`] is the faults of a run, from a seed.
//! * [`Ledger`] is what a writer knows of what it wrote: acknowledged, or unknown.
//! * [`Verdict`] compares the ledger with what a target really received, or with what was written to a copy.
//!
//! Nothing here knows a backend or the engine: what is started is a command, what arrived is a list.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `children`, `child`, `spawner`, `event` | processes that are started, observed, signalled and reaped |
//! | `obey` | the child's side of the orders |
//! | `fault` | the plan of a seed |
//! | `ledger` | what a writer knows of its writes |
//! | `judge`, `verdict`, `copy` | order at the target; the verdict; the verdict on a copy |
//!
//! The judge is independent of the one in the testkit: it is shipped inside the program, and it sees only what a target
//! received (keys, numbers and epochs), no commits.
#![deny(missing_docs)]

mod child;
mod children;
mod copy;
mod event;
mod fault;
mod judge;
mod ledger;
mod obey;
mod spawner;
mod verdict;

pub use children::{Children, ProcessReport, ProcessReportKind, ReadEvent};
pub use event::{Event, Order};
pub use fault::{Fault, Plan};
pub use ledger::{Entry, Ledger};
pub use obey::obey;
pub use verdict::{Arrival, Tally, Verdict};
