//! The continuous join: the last left event of a key is kept, right events that come before it are
//! kept for it.
//!
//! A left event is joined with the right events that wait, and replaces what there is of the left.
//! A right event is joined with the left event, or waits for one. A left event that finishes its
//! key deletes both.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Operator;
use crate::access::{Class, Kind, Role, Trace, digits};
use crate::event::{Event, Side};
use crate::grammar::Grammar;
use crate::value::Shape;

#[derive(Clone, Copy)]
struct OfKey {
    left: u32,
    right: u32,
    has_left: bool,
}

#[derive(Default)]
pub(super) struct ContinuousJoin {
    keys: HashMap<u64, OfKey, FixedState>,
}

impl Operator for ContinuousJoin {
    fn assign(&mut self, event: &Event, _: u32, _: i64, to: &mut Trace) {
        self.keys.entry(event.key).or_insert_with(|| {
            let name = |side: &[u8]| [side, &digits(event.key)].concat();
            let left = to.keys.make(Class::State, &name(b"L"));
            let right = to.keys.make(Class::Right, &name(b"R"));
            OfKey { left, right, has_left: false }
        });
    }

    fn run(&mut self, event: &Event, place: u32, to: &mut Trace) {
        let of_key = self.keys.get_mut(&event.key).expect("assigned before");
        match event.side {
            Side::Left if event.finishes => {
                to.push(Kind::Delete, Role::None, of_key.left, 0);
                to.push(Kind::Delete, Role::None, of_key.right, 0);
                of_key.has_left = false;
            }
            Side::Left => {
                to.push(Kind::Get, Role::Probe, of_key.right, place);
                to.push(Kind::Delete, Role::None, of_key.right, 0);
                to.push(Kind::Put, Role::Element, of_key.left, place);
                of_key.has_left = true;
            }
            Side::Right => {
                to.push(Kind::Get, Role::Probe, of_key.left, place);
                if !of_key.has_left {
                    to.push(Kind::Merge, Role::Element, of_key.right, place);
                }
            }
        }
    }

    fn terminate(&mut self, _: i64, _: &mut Trace) {}

    fn grammar(&self) -> Grammar {
        Grammar::Continuous
    }

    fn shape(&self) -> Shape {
        Shape::Sums
    }
}
