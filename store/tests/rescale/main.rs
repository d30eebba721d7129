//! State moves between stores: by key groups from checkpoints and between open stores, and as canonical
//! files.

#[path = "../behaviour/common/clock.rs"]
mod clock;
#[path = "../behaviour/common/dice.rs"]
mod dice;
mod job;
#[path = "../windows/model.rs"]
mod model;
mod moving_job;
#[path = "../windows/sorted.rs"]
mod sorted;

mod damage_after_groups_have_moved;
mod expiring_maps_move;
mod files_move_state_between_layouts;
mod groups_move_between_open_stores;
mod histories_of_stores_that_move_and_go_back;
mod keys_of_other_stores_are_refused;
mod moved_groups_are_in_checkpoints;
mod moves_have_an_identity;
mod restoring_keeps_every_branch;
mod stored_timers_move;
mod stores_are_restored_by_key_groups;
mod what_cannot_be_restored_is_named;
mod windows_move;
