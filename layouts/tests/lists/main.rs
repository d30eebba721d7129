//! Behaviours of lists, of all layouts that keep them, against a `BTreeMap`.

mod a_list_is_read_where_all_runs_have_no_room;
mod batches_of_many_lists_answer_like_a_map;
mod budget;
mod checkpoints_are_taken_while_lists_change;
mod common;
#[path = "../common/dice.rs"]
mod dice;
mod every_layout_answers_like_a_map;
mod folds_load_packed_slices;
mod groups;
#[path = "../common/hand_on.rs"]
mod hand_on;
mod heap_lists_are_read_in_steps;
mod heap_lists_write_what_has_come;
mod keys_of_one_hash_are_visited_in_few_looks;
mod levels_of_packed_slices_are_merged_by_the_helper;
mod many_slices;
mod packing_takes_nothing_where_nothing_is_packed;
mod reads_stay_in_their_memory;
#[path = "../common/retained.rs"]
mod retained;
mod slices_with_runs_of_their_own;
mod what_is_given_up_is_dropped_in_parts;
