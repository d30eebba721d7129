//! The original's operations and keys, with its mistakes: what `--gadget-compat` gives.
//!
//! Time goes by panes of one unit. In each pane all state objects are made first, then all
//! operations, then what is over fires. Its mistakes that change operations, by their numbers in
//! the documentation, are part of it:
//!
//! 1. windows due in the first pane never fire;
//! 2. a late event whose key has no open window closes the key for good;
//! 3. the right stream goes by the left stream's watermark;
//! 4. sessions that end in the same unit are closed early when one of them grows, and once more at
//!    their end;
//! 5. the list of a key's sessions is written with every event;
//! 6. the interval join hardly ever deletes.
//!
//! There are no values: the original's accesses do not depend on them.

mod joins;
mod sessions;
mod windows;

use std::collections::BTreeMap;

use crate::operator::{Name, Options};
use crate::rows::{Names, Row};

/// Operations by kind, and a hash of all of them in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// How many there are of each kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// FNV-1a of all lines "kind key".
    pub hash: u64,
    /// Events that made none.
    pub silent_events: u64,
    /// Entries of the session index that should have gone and did not.
    pub stale_sessions: u64,
}

impl Operations {
    /// How many there are.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Where operations go.
pub(super) struct Sink<'a> {
    operations: Operations,
    tell: &'a mut dyn FnMut(&str, &str),
    names: &'a Names,
    keys: u64,
}

impl Sink<'_> {
    fn push(&mut self, kind: &'static str, key: &str) {
        *self.operations.counts.entry(kind).or_default() += 1;
        let bytes = kind.bytes().chain([b' ']).chain(key.bytes()).chain([b'\n']);
        let hash = &mut self.operations.hash;
        bytes.for_each(|byte| *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        (self.tell)(kind, key);
    }

    /// The key of the next state object: "0000000001" and so on.
    fn make_key(&mut self) -> String {
        self.keys += 1;
        format!("{:010}", self.keys)
    }

    /// The event key as the input has it.
    fn name(&self, key: u64) -> String {
        self.names.name(key).map_or_else(|| key.to_string(), str::to_owned)
    }
}

/// An operator of the original.
trait Machine {
    /// Makes the state objects of a pane's events. `watermark` is that of the pane before.
    fn assign(&mut self, side: usize, pane: &[Row], watermark: i64, to: &mut Sink<'_>);

    /// Makes the operations of the pane's events; `now` is the pane's own watermark.
    fn run(&mut self, side: usize, pane: &[Row], now: i64, to: &mut Sink<'_>);

    /// Fires what is over at `watermark`.
    fn fire(&mut self, watermark: i64, is_first: bool, to: &mut Sink<'_>);
}

/// Runs an operator over rows of one stream or two.
pub fn run(
    name: Name,
    options: &Options,
    left: &[Row],
    right: &[Row],
    names: &Names,
    tell: &mut dyn FnMut(&str, &str),
) -> Operations {
    let hash = 0xcbf2_9ce4_8422_2325;
    let operations = Operations { hash, ..Operations::default() };
    let mut sink = Sink { operations, tell, names, keys: 0 };
    let mut machine: Box<dyn Machine> = match name {
        Name::Aggregation => Box::<joins::Aggregation>::default(),
        Name::SessionIncremental => Box::new(sessions::Sessions::new(options, true)),
        Name::SessionHolistic => Box::new(sessions::Sessions::new(options, false)),
        Name::IntervalJoin => Box::new(joins::IntervalJoin::new(options)),
        Name::ContinuousJoin => Box::<joins::ContinuousJoin>::default(),
        _ => Box::new(windows::Windows::new(name, options)),
    };
    let mut streams = [Panes::new(left), Panes::new(right)];
    let (mut before, mut is_first) = (i64::MIN, true);
    while streams.iter().any(|stream| !stream.rows.is_empty()) {
        for side in 0..if right.is_empty() { 1 } else { 2 } {
            let pane = streams[side].next_pane();
            // The watermark of either stream is the left one's.
            let now = streams[0].time;
            machine.assign(side, pane, before, &mut sink);
            machine.run(side, pane, now, &mut sink);
            machine.fire(now, is_first, &mut sink);
        }
        (before, is_first) = (streams[0].time, false);
    }
    sink.operations
}

/// A stream cut into panes of one unit of its own time.
struct Panes<'a> {
    rows: &'a [Row],
    time: i64,
}

impl<'a> Panes<'a> {
    fn new(rows: &'a [Row]) -> Self {
        Panes { rows, time: rows.first().map_or(0, |row| row.time) }
    }

    /// The next unit: rows from the front as long as they are before its end.
    fn next_pane(&mut self) -> &'a [Row] {
        self.time += 1;
        let count = self.rows.iter().take_while(|row| row.time < self.time).count();
        let (pane, rest) = self.rows.split_at(count);
        self.rows = rest;
        pane
    }
}
