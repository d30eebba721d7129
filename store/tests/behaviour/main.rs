//! What the store promises, tried on every layout. One program: the generic code is compiled once.

mod common;

mod a_crash_leaves_this_checkpoint_or_the_one_before;

mod a_scan_sees_each_key_once_while_the_index_splits;
mod a_users_layout_answers_like_ours;
mod bad_input_is_refused_by_name;
mod colliding_hashes_never_mix_keys_up;
mod damaged_files_are_never_served;
mod deleted_keys_stay_deleted_while_segments_are_rewritten;
mod every_engine_answers_like_a_map;
mod every_layout_answers_like_a_map;
mod every_short_history_equals_the_model;
mod panics_of_values_lose_nothing;
mod reads_run_ahead_of_calls;
mod small_budgets_work_or_name_the_number;
mod storage_trouble_is_told_and_passes;
mod values_are_dropped_once_whatever_panics;
