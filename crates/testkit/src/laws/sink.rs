//! The laws of [`Sink`](watchkeeper_core::Sink) and its [`SinkWriter`](watchkeeper_core::SinkWriter), for all grades below transactional.

mod bench;
mod writing;

pub(crate) use bench::{Change, batch, keys_in_order};
pub use bench::{Effect, SinkBench, View};
pub use writing::*;

use super::macros::law_list;

law_list! {
    /// One test per law of sinks. The argument is a `fn(&LawOf<dyn SinkBench>) -> Law`.
    sink_laws, sink, dyn SinkBench, $, [
        k1_newer_opening_refuses_older_epochs,
        k2_lane_keeps_the_order_of_its_calls,
        k2_lanes_run_beside_each_other,
        k2_only_the_named_rows_take_effect,
        k2_barrier_keeps_its_place,
        k3_done_is_durable_after_a_flush,
        k3_flush_runs_beside_later_writes,
        k3_nothing_is_lost_by_closing,
        k4_stale_epoch_is_without_effect,
        k4_stale_version_is_without_effect,
        k4_repeated_write_has_no_further_effect,
        profile_fits_the_writer,
    ]
}
