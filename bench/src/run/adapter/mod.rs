//! `adapter`: what the Timely adapter costs, and what parking gains.
//!
//! The same work is done in several ways, in rounds taken in turns: inside a dataflow with the
//! adapter, straight on the state, and, for counting, by an operator written by hand.

mod counting;
mod query;

use crate::args::AdapterArgs;
use crate::report::Report;
use crate::{Error, Result};

/// What came of one way.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Rows per second of each round.
    rates: Vec<f64>,
    checksum: u64,
    /// The number of changes emitted.
    changes: u64,
}

/// Does the work in all ways, prints a table and compares the answers.
///
/// The report is the adapter's, `vs` the straight way.
///
/// # Errors
/// Also if the answers are not the same.
pub fn adapter(args: &AdapterArgs) -> Result<Report> {
    match (&args.query, args.keys, args.ops, args.events) {
        (Some(name), .., Some(events)) => query::query(args, name, events),
        (None, Some(keys), Some(ops), _) => counting::counting(args, keys, ops),
        _ => Err(Error::Usage("--keys with --ops, or --query with --events".to_owned())),
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Rates with their spread, and the last one's, which is the adapter's, against all.
fn print_table(ways: &[&str], outcomes: &[Outcome]) {
    println!("| way | rows/s, median | least | most | adapter against it |\n|--|--|--|--|--|");
    let ours = outcomes.last().map_or(0.0, |outcome| median(&outcome.rates));
    for (way, outcome) in ways.iter().zip(outcomes) {
        let [least, most] = [f64::min as fn(f64, f64) -> f64, f64::max]
            .map(|pick| outcome.rates.iter().copied().reduce(pick).unwrap_or(0.0));
        let median = median(&outcome.rates);
        println!("| {way} | {median:.0} | {least:.0} | {most:.0} | {:.2} |", ours / median);
    }
}
