//! The laws of [`Source`](watchkeeper_core::Source).

mod bench;
mod reading;
mod resuming;

pub use bench::SourceBench;
pub use reading::*;
pub use resuming::*;

use super::macros::law_list;

law_list! {
    /// One test per law of sources. The argument is a `fn(&LawOf<dyn SourceBench>) -> Law`.
    source_laws, source, dyn SourceBench, $, [
        s1_changes_are_read_in_order,
        s1_now_begins_with_now,
        s1_after_a_position_come_exactly_the_later_ones,
        s2_ids_are_unique_and_the_same_whatever_the_batches,
        s3_rows_are_limited,
        s3_bytes_are_limited,
        s3_halves_of_a_key_update_stay_together,
        s4_every_committable_row_is_safe_to_restart_from,
        s4_end_of_every_batch_is_safe_to_restart_from,
        s5_silence_is_an_empty_batch_after_the_wait,
        s5_end_of_an_empty_batch_is_safe_to_restart_from,
        s6_unacknowledged_changes_are_still_there,
        s6_acknowledging_spares_what_comes_after,
        s7_dropped_call_loses_nothing,
        change_without_a_key_keeps_its_place,
        positions_compare_in_the_order_of_reading,
        own_position_is_verified_and_a_foreign_one_is_lost,
        lost_history_is_reported,
    ]
}
