//! One program, so that the generic code is compiled once.

#[path = "operators/accesses_are_those_computed_by_hand.rs"]
mod accesses_are_those_computed_by_hand;
#[path = "operators/an_operator_of_ones_own.rs"]
mod an_operator_of_ones_own;
#[path = "operators/compat_gives_the_originals_operations.rs"]
mod compat_gives_the_originals_operations;
#[path = "operators/every_engine_gives_the_models_answers.rs"]
mod every_engine_gives_the_models_answers;
#[path = "operators/replayed_traces_have_the_digest_of_their_recording.rs"]
mod replayed_traces_have_the_digest_of_their_recording;
#[path = "operators/runs_are_refused_cut_and_resumed.rs"]
mod runs_are_refused_cut_and_resumed;
#[path = "operators/traces_of_a_store_are_read_and_replayed.rs"]
mod traces_of_a_store_are_read_and_replayed;
