//! What the store promises, tried on every layout. One program: the generic code is compiled once.

mod common;
#[path = "../../../layouts/tests/common/hand_on.rs"]
mod hand_on;
#[path = "../../../layouts/tests/common/key_groups.rs"]
mod key_groups;
#[path = "../../../timely-adapter/examples/own_layout/btree.rs"]
mod own_layout;

mod a_checkpoint_that_is_lost_is_told_at_once;
mod a_checkpoint_writes_little_for_each_counter;
mod a_crash_leaves_this_checkpoint_or_the_one_before;
mod a_directory_is_an_open_directory;
mod a_scan_sees_each_key_once_while_the_index_splits;
mod a_state_is_opened_again_as_it_was_left;
mod a_state_that_is_cleared_has_checkpoints;
mod a_state_that_the_job_has_no_more_is_dropped;
mod a_trace_has_the_calls_that_were_made;
mod a_users_layout_answers_like_ours;
mod bad_input_is_refused_by_name;
mod cold_keys_cost_storage_and_little_memory;
mod colliding_hashes_never_mix_keys_up;
mod damaged_files_are_never_served;
mod deleted_keys_stay_deleted_while_segments_are_rewritten;
mod equal_keys_that_encode_differently_are_one_key;
mod every_engine_answers_like_a_map;
mod every_layout_answers_like_a_map;
mod every_short_history_equals_the_model;
mod everything_is_visited_in_the_order_of_storage;
mod files_are_lost_or_exchanged_with_those_of_a_copy;
mod no_state_takes_more_than_its_memory;
mod opening_on_storage_that_does_nothing_ends;
mod panics_of_values_lose_nothing;
mod reads_of_lists_and_windows_end_too;
mod reads_of_storage_that_does_nothing_end;
mod reads_run_ahead_of_calls;
mod retained_checkpoints_can_each_be_restored;
mod small_budgets_work_or_name_the_number;
mod sorted_runs_begin_beside_other_states;
mod space_is_bounded_while_checkpoints_take_all_the_time;
mod states_of_a_checkpoint_take_turns;
mod statistics_agree_with_a_count;
mod storage_that_does_nothing_holds_nobody_up_for_ever;
mod storage_trouble_is_told_and_passes;
mod stored_timers_are_a_set_in_order_of_time;
mod the_book_says_what_the_code_does;
mod timers_are_a_set_in_order_of_time;
mod timers_write_what_has_changed;
mod two_generations_write_less_where_few_keys_are_hot;
mod values_are_dropped_once_whatever_panics;
mod values_by_serde_are_kept_like_others;
mod what_sorted_runs_cannot_do_is_refused;
mod what_would_come_back_changed_is_refused;
