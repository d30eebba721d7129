//! Windows in whole dataflows.

#[path = "../../../store/tests/behaviour/common/btree_layout.rs"]
mod btree_layout;
#[path = "../../../store/tests/windows/btree_windows.rs"]
mod btree_windows;
#[path = "../dataflows/common/mod.rs"]
mod common;
#[path = "../../../layouts/tests/common/dice.rs"]
mod dice;
#[path = "../../../store/tests/behaviour/common/taken.rs"]
mod taken;
#[path = "../../../store/tests/windows/model.rs"]
mod window_model;

mod outcomes;

mod rows_close_in_time_are_paired;
mod rows_of_a_list_that_is_left_come_out_once;
mod rows_that_memory_refuses_are_joined_once;
mod windows_are_the_same_on_any_number_of_workers;
mod windows_move_while_rows_come;
