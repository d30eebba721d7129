//! What the store allocates, seen by a counting allocator.

mod counting;
#[path = "../behaviour/common/dice.rs"]
mod dice;

mod entries_and_words_are_there_again_in_the_same_memory;
mod heap_state_is_there_again_in_the_same_memory;
mod hybrid_logs_share_one_budget;
mod late_events_are_booked_before_they_come_in;
mod real_memory_stays_within_the_budget;
mod sealing_a_heap_state_costs_the_same_whatever_its_size;
mod the_least_memory_is_a_number;
mod the_record_path_allocates_nothing_and_works_in_bounds;
mod values_above_max_value_are_visited_rewritten_and_moved;
mod values_are_as_large_as_max_value_says;
mod values_by_time_take_what_is_said;
mod what_is_accepted_is_there_again_in_the_same_memory;
mod windows_are_there_again_in_the_same_memory;
