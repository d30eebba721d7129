//! Nexmark: an auction site's stream of people, auctions and bids.
//!
//! The generator follows Apache Beam's formulas with a random sequence of our own. Event number
//! n is a function of the configuration and n alone, so that a stream splits over workers,
//! restarts anywhere, and is the same on every machine: there is no floating point in it.

mod config;
mod generator;
mod ids;
mod model;
mod price;
pub(crate) mod random;
mod schedule;
mod source;
mod strings;

pub use config::{Config, Stride};
pub use generator::Generator;
pub use ids::{AUCTIONS_PER_CYCLE, CYCLE, FIRST_CATEGORY, FIRST_ID, PEOPLE_PER_CYCLE};
pub use model::{Auction, Bid, Event, Person, Record};
pub use schedule::Schedule;
pub use source::{Bounded, EventSource};
pub use strings::{AuctionText, BidText, PersonText, Text};
