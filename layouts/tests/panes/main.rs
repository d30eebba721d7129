//! Panes behave the same in every layout: like an ordered map of accumulators by slice and key.

mod a_checkpoint_begins_while_slices_are_purged;
mod a_visit_fails;
mod batches_end_early;
mod checkpoints_are_taken_while_panes_change;
mod common;
mod every_layout_agrees_with_an_ordered_map;
mod many_come_at_once;
mod memory_and_disk_are_given_back;
mod runs_are_folded_once;
mod slices_are_folded_with_memory_for_one;
mod small_slices_share_runs;
mod sorted_runs_are_for_who_asks_for_them;
mod tables_that_have_not_changed_are_named_again;
mod trouble_is_told_and_passes;
mod what_a_checkpoint_keeps;
