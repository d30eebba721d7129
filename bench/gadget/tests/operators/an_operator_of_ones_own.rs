//! An operator of a user's own, in one file: windows of a number of events.
//!
//! Each key's events are summed up, and every third of them tells the sum and begins anew.

use std::collections::HashMap;

use alluvium_gadget::access::{Class, Kind, Role, Trace};
use alluvium_gadget::engine::faulty::{Fault, Faulty};
use alluvium_gadget::engine::{BTree, Engine};
use alluvium_gadget::event::Event;
use alluvium_gadget::generator::Generator;
use alluvium_gadget::grammar::Grammar;
use alluvium_gadget::operator::{Operator, trace_of};
use alluvium_gadget::replay::{Until, expect, replay, sweep};
use alluvium_gadget::value::{Answers, Shape};

const EVENTS_A_WINDOW: u32 = 3;

#[derive(Default)]
struct CountWindows {
    /// The state key of each event key's window, and how many events it has.
    open: HashMap<u64, (u32, u32)>,
}

impl Operator for CountWindows {
    fn assign(&mut self, event: &Event, _: u32, _: i64, to: &mut Trace) {
        self.open.entry(event.key).or_insert_with(|| (to.keys.make_next(Class::State), 0));
    }

    fn run(&mut self, event: &Event, place: u32, to: &mut Trace) {
        let (key, events) = self.open.get_mut(&event.key).expect("assigned before");
        to.push(Kind::Get, Role::Fold, *key, place);
        to.push(Kind::Put, Role::Fold, *key, place);
        *events += 1;
        if *events == EVENTS_A_WINDOW {
            let window = to.window(event.key, place.into(), place.into());
            to.push(Kind::Get, Role::Answer, *key, window);
            to.push(Kind::Delete, Role::None, *key, 0);
            self.open.remove(&event.key);
        }
    }

    fn terminate(&mut self, _: i64, _: &mut Trace) {}

    fn grammar(&self) -> Grammar {
        Grammar::Folded
    }

    fn shape(&self) -> Shape {
        Shape::Sums
    }
}

#[test]
fn it_runs_on_any_engine_and_is_checked() {
    let stream = Generator { events: 1000, keys: 10, ..Generator::default() }.stream().unwrap();
    let mut operator = CountWindows::default();
    let trace = trace_of(&mut operator, &stream);
    operator.grammar().check(&trace).unwrap();
    let expected = expect(&trace, &stream, operator.shape()).unwrap();
    let mut wanted = Answers::default();
    let mut sums = HashMap::<u64, Vec<u64>>::new();
    for (event, place) in stream.events.iter().zip(0..) {
        let amounts = sums.entry(event.key).or_default();
        amounts.push(event.amount.into());
        if amounts.len() == 3 {
            wanted.tell(event.key, place, Some([3, amounts.drain(..).sum(), 0]));
        }
    }
    assert_eq!(expected.answers, wanted);
    let run = |engine: &mut dyn Engine| {
        let watch = &mut Until::never();
        replay(&trace, &stream, Shape::Sums, &expected, engine, false, watch)?;
        sweep(&trace, &expected, engine)
    };
    run(&mut BTree::default()).unwrap();
    run(&mut Faulty::new(BTree::default(), Fault::StaleValue(50))).unwrap_err();
    run(&mut Faulty::new(BTree::default(), Fault::DropsDelete(50))).unwrap_err();
}
