//! Traces as files: record what an operator asks of a store, read it back, replay it on any engine.
//!
//! A file has one access a [`Line`]: time, operation, key and the bytes that are written. It
//! has no values. A replay writes bytes that follow from the number of the line, so that every
//! engine has to return the same, and one digest tells whether it did.

mod file;
mod frames;
mod line;
mod record;
mod replay;
mod value;

pub use file::{Entry, Reading, Recording, Writer};
pub(crate) use frames::open;
pub use line::{BYTES_MAX, KEY_BYTES_MAX, Line, Op};
pub use record::{Recorded, record};
pub(crate) use value::{digest_of, fill};

pub use replay::{Expected, Played, Player, ReplayPace, expect, stand_in};
