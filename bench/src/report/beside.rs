//! The rates of a stream beside checkpoints, with their spread.

use serde::Serialize;

use super::latency::spread;

/// What several measurements of one thing gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The one in the middle, or half way between the two there.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// Of these values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let (least, median, most) = spread(values);
        Self { median, least, most }
    }
}

/// Rates of a stream of updates whose state is checkpointed, measured in two ways.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BesideCheckpoints {
    /// By the clock.
    pub wall: StreamRates,
    /// By the processor time of the thread that updates, and that does its shares of checkpoints.
    pub processor: StreamRates,
}

/// Updates per second, and ratios of such rates; spread over checkpoints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamRates {
    /// Of the same without any checkpoint, before and after each.
    pub without: Spread,
    /// After one and before the next.
    pub between: Spread,
    /// From when one is sealed until it is durable.
    pub during: Spread,
    /// `between` over the mean of `without` before and after it.
    pub between_of_without: Spread,
    /// `during` over the mean of `without` before and after it.
    pub during_of_without: Spread,
    /// `during` over the rate before that checkpoint.
    pub during_of_between: Spread,
}
