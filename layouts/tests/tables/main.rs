//! Behaviours of tables against a `BTreeMap`.

mod heap_checkpoints_are_taken_while_the_table_changes;
