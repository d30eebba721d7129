//! Tumbling and sliding windows, folded or kept, and the window joins, which keep both streams.
//!
//! One state key is one window of one event key. A window takes events until the watermark passes
//! its end and the allowed lateness; windows that are over fire by their ends, in the order in
//! which they were made.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{Name, Operator, Options};
use crate::access::{Class, Kind, Purged, Role, Trace, digits};
use crate::event::Event;
use crate::grammar::Grammar;
use crate::value::Shape;

/// Digits of a window's end, which windows that are over at once share.
const PREFIX_BYTES: u32 = 10;

pub(super) struct Windows {
    options: Options,
    slide: i64,
    folds: bool,
    shape: Shape,
    /// The state key of each open window, by event key and start. It is its window's number too.
    open: HashMap<(u64, i64), u32, FixedState>,
    /// Open windows by their ends.
    due: BTreeMap<i64, Vec<u32>>,
    assigned: Vec<u32>,
}

impl Windows {
    pub(super) fn new(name: Name, options: &Options) -> Self {
        let slide = if name.slides() { options.slide } else { options.length };
        Windows {
            options: *options,
            slide,
            folds: matches!(name, Name::TumblingIncremental | Name::SlidingIncremental),
            shape: name.shape(),
            open: HashMap::default(),
            due: BTreeMap::new(),
            assigned: Vec::new(),
        }
    }

    fn make(&mut self, event_key: u64, start: i64, to: &mut Trace) -> u32 {
        let end = start + self.options.length;
        let key = match self.options.purge {
            false => to.keys.make_next(Class::State),
            true => {
                let name = [digits(end as u64), digits(event_key)].concat();
                to.keys.make(Class::State, &name)
            }
        };
        let window = to.window(event_key, start, end);
        assert_eq!(key, window, "windows and keys are made together");
        self.due.entry(end).or_default().push(key);
        key
    }

    fn fire(&mut self, windows: &[u32], to: &mut Trace) {
        for &key in windows {
            let window = to.windows[key as usize];
            self.open.remove(&(window.key, window.start));
            if !self.options.purge {
                to.push(Kind::Get, Role::Answer, key, key);
                to.push(Kind::Delete, Role::None, key, 0);
            }
        }
        if self.options.purge {
            let from = to.purged.len() as u32;
            to.purged.extend(windows.iter().map(|key| (*key, *key)));
            let to_place = to.purged.len() as u32;
            let number = to.purges.len() as u32;
            to.purges.push(Purged { prefix: PREFIX_BYTES, from, to: to_place });
            to.push(Kind::Purge, Role::Answer, windows[0], number);
        }
    }
}

impl Operator for Windows {
    fn assign(&mut self, event: &Event, _: u32, watermark: i64, to: &mut Trace) {
        self.assigned.clear();
        for start in self.options.starts(self.slide, event.time) {
            if start + self.options.length + self.options.allowed <= watermark {
                continue;
            }
            let key = match self.open.get(&(event.key, start)) {
                Some(key) => *key,
                None => {
                    let key = self.make(event.key, start, to);
                    self.open.insert((event.key, start), key);
                    key
                }
            };
            self.assigned.push(key);
        }
    }

    fn run(&mut self, _: &Event, place: u32, to: &mut Trace) {
        for &key in &self.assigned {
            if self.folds {
                to.push(Kind::Get, Role::Fold, key, place);
                to.push(Kind::Put, Role::Fold, key, place);
            } else {
                to.push(Kind::Merge, Role::Element, key, place);
            }
        }
    }

    fn terminate(&mut self, watermark: i64, to: &mut Trace) {
        while let Some(first) = self.due.first_entry() {
            if first.key() + self.options.allowed > watermark {
                break;
            }
            let windows = first.remove();
            self.fire(&windows, to);
        }
    }

    fn grammar(&self) -> Grammar {
        if self.folds { Grammar::Folded } else { Grammar::Kept }
    }

    fn shape(&self) -> Shape {
        self.shape
    }
}
