//! Behaviours of tables against a `BTreeMap`.

mod a_key_group_is_found_without_the_others;
mod a_layout_writes_its_entries_in_steps;
mod a_value_that_panics_while_it_is_measured;
mod batches_on_the_heap;
mod code_that_panics_at_each_call;
mod heap_checkpoints_are_taken_while_the_table_changes;
mod heap_checkpoints_are_whole_or_lost;
mod heap_checkpoints_make_do_with_little_memory;
mod heap_checkpoints_write_what_has_changed;
#[path = "../common/key_groups.rs"]
mod key_groups;
#[path = "../common/retained.rs"]
mod retained;
