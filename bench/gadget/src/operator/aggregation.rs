//! Continuous aggregation: get and put of one accumulator per key, forever.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Operator;
use crate::access::{Class, Kind, Role, Trace};
use crate::event::Event;
use crate::grammar::Grammar;
use crate::value::Shape;

#[derive(Default)]
pub(super) struct Aggregation {
    keys: HashMap<u64, u32, FixedState>,
    assigned: u32,
}

impl Operator for Aggregation {
    fn assign(&mut self, event: &Event, _: u32, _: i64, to: &mut Trace) {
        let made = self.keys.entry(event.key).or_insert_with(|| to.keys.make_next(Class::State));
        self.assigned = *made;
    }

    fn run(&mut self, _: &Event, place: u32, to: &mut Trace) {
        to.push(Kind::Get, Role::Fold, self.assigned, place);
        to.push(Kind::Put, Role::Told, self.assigned, place);
    }

    fn terminate(&mut self, _: i64, _: &mut Trace) {}

    fn grammar(&self) -> Grammar {
        Grammar::Aggregation
    }

    fn shape(&self) -> Shape {
        Shape::Sums
    }
}
