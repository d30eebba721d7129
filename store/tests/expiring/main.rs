//! State whose entries expire, against an ordered map with times.

#[path = "../behaviour/common/btree_layout.rs"]
mod btree_layout;
mod common;
#[path = "../behaviour/common/dice.rs"]
mod dice;
mod model;

mod a_time_that_jumps_is_not_believed;
mod another_kind_of_state_is_refused;
mod every_layout_agrees_with_a_map_of_times;
mod expired_entries_go_without_being_asked_for;
mod expired_state_moves_between_stores;
mod the_time_of_a_state_never_goes_back;
mod what_was_over_stays_over;
