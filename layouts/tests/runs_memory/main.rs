//! What sorted runs allocate. It is counted for all threads of the process, which has this test alone.

#[path = "../runs/common.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod common;
mod counting_unsafe;
#[path = "../common/dice.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod dice;
mod memory_is_what_was_told;
