//! Sorted runs against a `BTreeMap`, on simulated storage.

mod common;
#[path = "../common/dice.rs"]
mod dice;

mod a_merge_is_what_an_ordered_map_says;
mod damage_is_told_and_never_served;
mod each_operation_of_a_log_takes_few_reads;
mod each_record_takes_one_read;
mod levels_answer_like_a_map;
mod merges_in_parts;
mod what_a_damaged_run_has_is_read_beside_the_damage;
mod what_fails_leaves_the_runs_as_they_were;
