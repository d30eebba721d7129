//! The original's tumbling and sliding windows, and the joins of them.

use std::collections::{BTreeMap, HashMap};

use super::{Machine, Sink};
use crate::operator::{Name, Options};
use crate::rows::Row;

struct Window {
    key: u64,
    start: i64,
    state: String,
}

pub(super) struct Windows {
    options: Options,
    slide: i64,
    folds: bool,
    /// Open windows of each key; an empty list closes the key for good.
    of_key: HashMap<u64, Vec<usize>>,
    /// The last start of any window of a key.
    progress: HashMap<u64, i64>,
    windows: Vec<Window>,
    due: BTreeMap<i64, Vec<usize>>,
}

impl Windows {
    pub(super) fn new(name: Name, options: &Options) -> Self {
        Windows {
            options: *options,
            slide: if name.slides() { options.slide } else { options.length },
            folds: matches!(name, Name::TumblingIncremental | Name::SlidingIncremental),
            of_key: HashMap::new(),
            progress: HashMap::new(),
            windows: Vec::new(),
            due: BTreeMap::new(),
        }
    }

    fn window_at(&self, key: u64, start: i64) -> Option<usize> {
        let open = self.of_key.get(&key)?;
        open.iter().copied().find(|window| self.windows[*window].start == start)
    }

    fn make(&mut self, key: u64, start: i64, to: &mut Sink<'_>) {
        let number = self.windows.len();
        let state = to.make_key();
        self.windows.push(Window { key, start, state });
        self.of_key.entry(key).or_default().push(number);
        self.progress.insert(key, start);
        let end = start + self.options.length + self.options.allowed;
        self.due.entry(end).or_default().push(number);
    }
}

impl Machine for Windows {
    fn assign(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            // The second mistake: nothing is ever made for a key with an empty list.
            if self.of_key.get(&row.key).is_some_and(Vec::is_empty) {
                continue;
            }
            for start in self.options.starts(self.slide, row.time) {
                let is_later = self.progress.get(&row.key).is_none_or(|last| start > *last);
                if self.window_at(row.key, start).is_none() && is_later {
                    self.make(row.key, start, to);
                }
            }
            self.of_key.entry(row.key).or_default();
        }
    }

    fn run(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        for row in pane {
            let mut is_silent = true;
            for start in self.options.starts(self.slide, row.time) {
                let Some(window) = self.window_at(row.key, start) else { continue };
                is_silent = false;
                let state = &self.windows[window].state;
                if self.folds {
                    to.push("get", state);
                    to.push("put", state);
                } else {
                    to.push("merge", state);
                }
            }
            to.operations.silent_events += u64::from(is_silent);
        }
    }

    fn fire(&mut self, watermark: i64, is_first: bool, to: &mut Sink<'_>) {
        while let Some(first) = self.due.first_entry() {
            if *first.key() > watermark {
                return;
            }
            for number in first.remove() {
                // The first mistake: they stay open and never fire.
                if is_first {
                    continue;
                }
                let window = &self.windows[number];
                to.push("get", &window.state);
                to.push("delete", &window.state);
                if let Some(open) = self.of_key.get_mut(&window.key) {
                    open.retain(|other| *other != number);
                    if open.is_empty() {
                        self.of_key.remove(&window.key);
                    }
                }
            }
        }
    }
}
