//! What the store allocates, seen by a counting allocator.

mod counting;
#[path = "../behaviour/common/dice.rs"]
mod dice;

mod real_memory_stays_within_the_budget;
mod sealing_a_heap_state_costs_the_same_whatever_its_size;
mod the_least_memory_is_a_number;
mod the_record_path_allocates_nothing_and_works_in_bounds;
mod values_are_as_large_as_max_value_says;
