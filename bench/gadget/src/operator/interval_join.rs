//! The interval join: both streams buffered by key and unit of time, each event joined with the
//! other stream's buffer around its time.
//!
//! A unit of a stream's buffer is one state key, whose name is the stream, the event key and the
//! time: the units of one key are in order. A unit is deleted when the watermark has passed the last
//! time at which a partner could come. Late events are dropped.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{Operator, Options};
use crate::access::{Class, Kind, Role, Span, Trace, digits};
use crate::event::{Event, Side};
use crate::grammar::Grammar;
use crate::value::Shape;

/// Bytes of a stream and a key.
const PREFIX_BYTES: usize = 11;

pub(super) struct IntervalJoin {
    lower: i64,
    upper: i64,
    /// The state keys of live units, by stream and event key.
    buffers: HashMap<(Side, u64), BTreeMap<i64, u32>, FixedState>,
    due: BTreeMap<i64, Vec<(Side, u64, i64)>>,
    assigned: Option<(u32, Span)>,
}

impl IntervalJoin {
    pub(super) fn new(options: &Options) -> Self {
        let Options { lower, upper, .. } = *options;
        let buffers = HashMap::default();
        IntervalJoin { lower, upper, buffers, due: BTreeMap::new(), assigned: None }
    }

    /// The other stream's times that join with an event.
    fn partners(&self, event: &Event) -> (i64, i64) {
        match event.side {
            Side::Left => (event.time + self.lower, event.time + self.upper),
            Side::Right => (event.time - self.upper, event.time - self.lower),
        }
    }

    /// The watermark at which a unit of a stream has no partner to come.
    fn over_at(&self, side: Side, time: i64) -> i64 {
        let last = if side == Side::Left { self.upper } else { -self.lower };
        time + last.max(0) + 1
    }
}

fn name(side: Side, key: u64, time: i64) -> Vec<u8> {
    let letter: &[u8] = if side == Side::Left { b"L" } else { b"R" };
    [letter, &digits(key), &digits(time.max(0) as u64)].concat()
}

fn class(side: Side) -> Class {
    if side == Side::Left { Class::State } else { Class::Right }
}

impl Operator for IntervalJoin {
    fn assign(&mut self, event: &Event, place: u32, watermark: i64, to: &mut Trace) {
        self.assigned = None;
        if event.time < watermark {
            return;
        }
        let Event { key, time, side, .. } = *event;
        let units = self.buffers.entry((side, key)).or_default();
        let mut is_new = false;
        let own = *units.entry(time).or_insert_with(|| {
            is_new = true;
            to.keys.make(class(side), &name(side, key, time))
        });
        if is_new {
            self.due.entry(self.over_at(side, time)).or_default().push((side, key, time));
        }
        let (first, last) = self.partners(event);
        let other = if side == Side::Left { Side::Right } else { Side::Left };
        let mut found = self.buffers.get(&(other, key)).map(|units| units.range(first..=last));
        let mut span = None;
        for (_, unit) in found.iter_mut().flatten() {
            let span = span.get_or_insert(Span { from: *unit, to: *unit, event: place, found: 0 });
            (span.to, span.found) = (*unit, span.found + 1);
        }
        let span = span.unwrap_or_else(|| {
            // Times from 0 on have keys; before them there is the start of the buffer.
            let at = match first {
                ..0 => to.keys.make(class(other), &name(other, key, 0)[..PREFIX_BYTES]),
                _ => to.keys.make(class(other), &name(other, key, first)),
            };
            Span { from: at, to: at, event: place, found: 0 }
        });
        self.assigned = Some((own, span));
    }

    fn run(&mut self, _: &Event, place: u32, to: &mut Trace) {
        let Some((own, span)) = self.assigned.take() else { return };
        to.push(Kind::Get, Role::Append, own, place);
        to.push(Kind::Put, Role::Append, own, place);
        let number = to.spans.len() as u32;
        to.spans.push(span);
        to.push(Kind::Range, Role::Probe, span.from, number);
    }

    fn terminate(&mut self, watermark: i64, to: &mut Trace) {
        while let Some(first) = self.due.first_entry() {
            if *first.key() > watermark {
                break;
            }
            for (side, key, time) in first.remove() {
                let units = self.buffers.get_mut(&(side, key)).expect("a unit is due once");
                let unit = units.remove(&time).expect("a unit is due once");
                to.push(Kind::Delete, Role::None, unit, 0);
                if units.is_empty() {
                    self.buffers.remove(&(side, key));
                }
            }
        }
    }

    fn grammar(&self) -> Grammar {
        Grammar::Interval
    }

    fn shape(&self) -> Shape {
        Shape::Sums
    }
}
