//! Operators run in whole dataflows. One program: the generic code is compiled once.

mod common;
#[path = "../../examples/own_layout/btree.rs"]
mod own_layout;
#[path = "../common/processes.rs"]
mod processes;

mod a_dataflow_reads_the_stores_statistics;
mod a_failed_operator_holds_its_time;
mod a_group_ends_as_one;
mod a_job_records_a_trace_of_its_state;
mod an_operators_id_is_free_again;
mod cold_reads_are_parked;
mod groups_move_while_rows_come;
mod join_pairs_all_rows_in_any_order_of_arrival;
mod joins_move_while_rows_come;
mod keys_of_other_workers_are_refused;
mod look_ups_see_the_table_as_it_is;
mod pieces_of_a_group_wait_for_those_before_them;
mod rolling_counts_every_row_on_any_number_of_workers;
mod rows_that_wait_for_their_group_see_no_later_time;
mod rows_that_wait_see_no_later_time;
mod rows_wait_for_an_external_table;
mod sources_wait_and_stand_aside;
mod state_of_an_operator_expires;
mod tables_move_with_their_key_groups;
mod the_inner_configuration_wins;
mod timers_fire_once_when_the_watermark_has_passed;
mod timers_of_a_checkpoint_fire_after_a_restart;
