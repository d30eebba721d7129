//! State whose entries expire: a time to live beside each value, in event time or processing time.
//!
//! An entry is a [`Timed`] value in a table like any other, so that layouts, checkpoints and files
//! need not know of it, and states without it pay nothing. What is seen is decided here, with each
//! call, by the time of the state ([`lifetime`]); what is not seen any more is removed a little with
//! each write ([`sweeping`]).

mod lifetime;
mod map;
mod sweeping;
mod timed;
mod ttl;
mod value;

pub(crate) use lifetime::{Lifetime, TimesSeen, TtlRules};
pub use map::{ExpiringMap, ExpiringMapOf};
pub(crate) use sweeping::{SweepPass, Sweeping};
pub use timed::Timed;
pub use ttl::{Clock, Ttl, WallClock};
pub use value::{ExpiringValue, ExpiringValueOf};
