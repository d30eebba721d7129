//! The original's sessions.

use std::collections::{BTreeMap, HashMap};

use super::{Machine, Sink};
use crate::operator::Options;
use crate::rows::Row;

struct Session {
    key: u64,
    start: i64,
    end: i64,
    state: String,
}

/// What the operations of an event are, decided when state objects are made.
enum Next {
    Dropped,
    Opens { session: usize },
    Joins { session: usize, absorbed: Vec<usize>, left: usize },
}

pub(super) struct Sessions {
    gap: i64,
    allowed: i64,
    folds: bool,
    sessions: Vec<Session>,
    of_key: HashMap<u64, Vec<usize>>,
    due: BTreeMap<i64, Vec<usize>>,
    next: Vec<Next>,
    /// The watermarks of the last pane and of the one before.
    watermarks: [i64; 2],
}

impl Sessions {
    pub(super) fn new(options: &Options, folds: bool) -> Self {
        Sessions {
            gap: options.gap,
            allowed: options.allowed,
            folds,
            sessions: Vec::new(),
            of_key: HashMap::new(),
            due: BTreeMap::new(),
            next: Vec::new(),
            watermarks: [i64::MIN; 2],
        }
    }

    /// The fourth mistake: the entry goes only where it is the only one of its unit.
    fn forget(&mut self, end: i64, session: usize, to: &mut Sink<'_>) {
        match self.due.get(&end) {
            Some(sessions) if sessions.len() == 1 && sessions[0] == session => {
                self.due.remove(&end);
            }
            Some(sessions) if sessions.contains(&session) => to.operations.stale_sessions += 1,
            _ => {}
        }
    }

    fn note(&mut self, session: usize) {
        self.due.entry(self.sessions[session].end).or_default().push(session);
    }

    fn next(&mut self, row: &Row, to: &mut Sink<'_>) -> Next {
        let (start, end) = (row.time, row.time + self.gap);
        if row.time + self.allowed < self.watermarks[1] {
            return Next::Dropped;
        }
        let open = self.of_key.get(&row.key).cloned().unwrap_or_default();
        let overlapping: Vec<usize> = open
            .iter()
            .copied()
            .filter(|session| {
                let session = &self.sessions[*session];
                session.start <= end && session.end >= start
            })
            .collect();
        let Some((&session, absorbed)) = overlapping.split_first() else {
            let (number, state) = (self.sessions.len(), to.make_key());
            self.sessions.push(Session { key: row.key, start, end, state });
            self.of_key.entry(row.key).or_default().push(number);
            self.note(number);
            return Next::Opens { session: number };
        };
        let absorbed = absorbed.to_vec();
        let before = self.sessions[session].end;
        let others =
            absorbed.iter().map(|other| (self.sessions[*other].start, self.sessions[*other].end));
        let (start, end) = others
            .fold((start, end), |(from, until), (start, end)| (from.min(start), until.max(end)));
        let joined = &mut self.sessions[session];
        (joined.start, joined.end) = (joined.start.min(start), joined.end.max(end));
        // Also where the end stays: its entry may then be there twice.
        self.forget(before, session, to);
        self.note(session);
        for other in &absorbed {
            self.forget(self.sessions[*other].end, *other, to);
        }
        let open = self.of_key.entry(row.key).or_default();
        open.retain(|other| !absorbed.contains(other));
        Next::Joins { session, absorbed, left: open.len() }
    }

    fn close(&mut self, session: usize, to: &mut Sink<'_>) {
        let key = self.sessions[session].key;
        let open = self.of_key.entry(key).or_default();
        open.retain(|other| *other != session);
        let left = open.len();
        to.push("get", &self.sessions[session].state);
        to.push("delete", &self.sessions[session].state);
        let list = format!("metadata_{}", to.name(key));
        to.push("delete", &list);
        (0..left).for_each(|_| to.push("merge", &list));
    }

    fn take_event(&self, session: usize, to: &mut Sink<'_>) {
        let state = &self.sessions[session].state;
        if self.folds {
            to.push("get", state);
            to.push("put", state);
        } else {
            to.push("merge", state);
        }
    }
}

impl Machine for Sessions {
    fn assign(&mut self, _: usize, pane: &[Row], watermark: i64, to: &mut Sink<'_>) {
        // What was over at the last watermark is closed now.
        while let Some(first) = self.due.first_entry() {
            if *first.key() >= watermark {
                break;
            }
            for session in first.remove() {
                self.close(session, to);
            }
        }
        self.watermarks = [watermark, self.watermarks[0]];
        self.next = pane.iter().map(|row| self.next(row, to)).collect();
    }

    fn run(&mut self, _: usize, pane: &[Row], _: i64, to: &mut Sink<'_>) {
        let next = std::mem::take(&mut self.next);
        for (row, next) in pane.iter().zip(next) {
            let list = format!("metadata_{}", to.name(row.key));
            match next {
                Next::Dropped => to.operations.silent_events += 1,
                Next::Opens { session } => {
                    to.push("get", &list);
                    self.take_event(session, to);
                    to.push("merge", &list);
                }
                Next::Joins { session, absorbed, left } => {
                    to.push("get", &list);
                    self.take_event(session, to);
                    for other in absorbed {
                        to.push("get", &self.sessions[other].state);
                        to.push("merge", &self.sessions[session].state);
                        to.push("delete", &self.sessions[other].state);
                    }
                    // The fifth mistake: also if nothing in the list has changed.
                    to.push("delete", &list);
                    (0..left).for_each(|_| to.push("merge", &list));
                }
            }
        }
    }

    fn fire(&mut self, _: i64, _: bool, _: &mut Sink<'_>) {}
}
