//! What windowed state promises, tried on every layout.

#[path = "../behaviour/common/btree_layout.rs"]
mod btree_layout;
mod btree_windows;
mod by_hand;
#[path = "../behaviour/common/dice.rs"]
mod dice;
mod model;
mod sorted;
#[path = "../behaviour/common/taken.rs"]
mod taken;

mod a_definition_is_part_of_the_state;
mod a_map_by_key_is_ordered_by_time;
mod many_slices_and_long_lists_in_little_memory;
mod packed_slices_are_loaded_in_several_steps;
mod reading_ahead_is_bounded;
mod sessions_whose_timers_have_no_room;
mod the_ends_of_time_are_times;
mod the_tricky_cases_of_sessions;
mod the_tricky_cases_of_windows;
mod what_is_refused_has_no_effect;
mod windows_hold_what_the_definition_says;
mod windows_larger_than_memory;
