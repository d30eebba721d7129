//! State whose entries expire, against an ordered map with times.

#[path = "../behaviour/common/btree_layout.rs"]
mod btree_layout;
mod common;
#[path = "../behaviour/common/dice.rs"]
mod dice;
mod model;

mod another_kind_of_state_is_refused;
mod every_layout_agrees_with_a_map_of_times;
mod expired_entries_go_without_being_asked_for;
mod expired_state_moves_between_stores;
mod the_time_of_a_state_never_goes_back;
