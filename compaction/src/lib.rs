//! Garbage policies over segment metadata and a bounded-step rewriter.
//!
//! A policy is a pure function from segment metadata to a plan, so that it can be judged on a
//! million synthetic segments without I/O. [`Compactor`] carries a plan out through the trait
//! [`Rewrite`](alluvium_pagestore::Rewrite), in steps the caller pays for with fuel. Nothing here
//! knows a layout; a log stays right if nothing here ever runs, only larger.

mod compactor;
mod merging;
mod space;

pub use compactor::{Compactor, LIVE_PER_REST, SEGMENTS_PER_FUEL, Spent, UNLINK_FUEL};
pub use merging::{COPIES_PER_WRITE, FAN_IN, TIERS};
pub use space::{
    CHOSEN_MAX, DEFAULT_MAX_AMPLIFICATION, DEFAULT_MIN_YIELD, Space, SpacePlan, SpacePolicy,
};
