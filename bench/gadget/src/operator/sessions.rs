//! Sessions: per key a window from an event to a gap after the last one, both ends within.
//!
//! Beside the value of each session there is a list of the sessions of each event key, read with
//! every event and written when a session's ends change. An event that joins sessions keeps the
//! first of them; the others are merged into it and deleted.
//!
//! A session is over when the watermark has passed its end. An event whose own session would be
//! over joins what was open before its batch, or is dropped.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{Operator, Options};
use crate::access::{Class, Kind, Role, SessionOf, Trace};
use crate::event::Event;
use crate::grammar::Grammar;
use crate::value::Shape;

/// An open session.
#[derive(Clone, Copy)]
struct Session {
    start: i64,
    end: i64,
    /// Its state key.
    key: u32,
    /// The batch that changed it last.
    batch: u32,
    /// Its ends before that batch, if it was there.
    settled: Option<(i64, i64)>,
}

impl Session {
    fn overlaps(&self, start: i64, end: i64) -> bool {
        self.start <= end && self.end >= start
    }

    /// Its ends before the batch at hand.
    fn before(&self, batch: u32) -> Option<(i64, i64)> {
        if self.batch == batch { self.settled } else { Some((self.start, self.end)) }
    }
}

struct OfKey {
    /// The key of the list.
    list: u32,
    open: Vec<Session>,
}

/// What the event at hand does.
#[derive(Default)]
enum Next {
    #[default]
    Nothing,
    Opens {
        session: SessionOf,
        list: u32,
    },
    Joins {
        key: u32,
        list: u32,
        absorbed: Vec<u32>,
        /// The key's sessions, if their ends have changed.
        changed: Option<Vec<SessionOf>>,
    },
}

pub(super) struct Sessions {
    gap: i64,
    folds: bool,
    batch: u32,
    keys: HashMap<u64, OfKey, FixedState>,
    /// Event keys and state keys by the end that the session had when it was noted.
    due: BTreeMap<i64, Vec<(u64, u32)>>,
    next: Next,
}

impl Sessions {
    pub(super) fn folded(options: &Options) -> Self {
        let (keys, due) = (HashMap::default(), BTreeMap::new());
        let next = Next::Nothing;
        Sessions { gap: options.gap, folds: true, batch: 0, keys, due, next }
    }

    pub(super) fn kept(options: &Options) -> Self {
        Sessions { folds: false, ..Self::folded(options) }
    }

    /// Writes a key's list anew.
    fn write(list: u32, sessions: &[SessionOf], to: &mut Trace) {
        to.push(Kind::Delete, Role::None, list, 0);
        for session in sessions {
            Self::append(list, *session, to);
        }
    }

    fn append(list: u32, session: SessionOf, to: &mut Trace) {
        let number = to.sessions.len() as u32;
        to.sessions.push(session);
        to.push(Kind::Merge, Role::Session, list, number);
    }

    fn take_event(&self, key: u32, place: u32, to: &mut Trace) {
        if self.folds {
            to.push(Kind::Get, Role::Fold, key, place);
            to.push(Kind::Put, Role::Fold, key, place);
        } else {
            to.push(Kind::Merge, Role::Element, key, place);
        }
    }

    fn fire(&mut self, event_key: u64, key: u32, end: i64, to: &mut Trace) {
        let Some(of_key) = self.keys.get_mut(&event_key) else { return };
        let is_it = |session: &Session| session.key == key && session.end == end;
        // It may have grown or been absorbed since it was noted.
        let Some(at) = of_key.open.iter().position(is_it) else { return };
        let session = of_key.open.remove(at);
        let window = to.window(event_key, session.start, session.end);
        to.push(Kind::Get, Role::Answer, key, window);
        to.push(Kind::Delete, Role::None, key, 0);
        Self::write(of_key.list, &listed(&of_key.open), to);
    }
}

fn listed(open: &[Session]) -> Vec<SessionOf> {
    open.iter()
        .map(|session| SessionOf { start: session.start, end: session.end, key: session.key })
        .collect()
}

impl Operator for Sessions {
    fn assign(&mut self, event: &Event, _: u32, watermark: i64, to: &mut Trace) {
        let (start, end, batch) = (event.time, event.time + self.gap, self.batch);
        let of_key = self.keys.entry(event.key).or_insert_with(|| {
            let name = format!("metadata_{}", event.key);
            OfKey { list: to.keys.make(Class::Sessions, name.as_bytes()), open: Vec::new() }
        });
        let settled = |session: &Session| {
            session.before(batch).is_some_and(|(from, until)| from <= end && until >= start)
        };
        if end < watermark && !of_key.open.iter().any(settled) {
            self.next = Next::Nothing;
            return;
        }
        let list = of_key.list;
        let Some(first) = of_key.open.iter().position(|open| open.overlaps(start, end)) else {
            let key = to.keys.make_next(Class::State);
            of_key.open.push(Session { start, end, key, batch, settled: None });
            self.due.entry(end).or_default().push((event.key, key));
            self.next = Next::Opens { session: SessionOf { start, end, key }, list };
            return;
        };
        let mut joined = of_key.open[first];
        let before = (joined.start, joined.end);
        if joined.batch != batch {
            (joined.batch, joined.settled) = (batch, Some(before));
        }
        (joined.start, joined.end) = (start.min(joined.start), end.max(joined.end));
        let mut absorbed = Vec::new();
        let mut at = first + 1;
        // Those that are joined overlap the event: sessions never overlap one another.
        while at < of_key.open.len() {
            let other = of_key.open[at];
            if !other.overlaps(start, end) {
                at += 1;
                continue;
            }
            of_key.open.remove(at);
            absorbed.push(other.key);
            joined.settled = match (joined.settled, other.before(batch)) {
                (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
                (one, two) => one.or(two),
            };
            (joined.start, joined.end) = (joined.start.min(other.start), joined.end.max(other.end));
        }
        of_key.open[first] = joined;
        if joined.end != before.1 {
            self.due.entry(joined.end).or_default().push((event.key, joined.key));
        }
        let changes = !absorbed.is_empty() || before != (joined.start, joined.end);
        let changed = changes.then(|| listed(&of_key.open));
        self.next = Next::Joins { key: joined.key, list, absorbed, changed };
    }

    fn run(&mut self, _: &Event, place: u32, to: &mut Trace) {
        match std::mem::take(&mut self.next) {
            Next::Nothing => {}
            Next::Opens { session, list } => {
                to.push(Kind::Get, Role::Look, list, 0);
                self.take_event(session.key, place, to);
                Self::append(list, session, to);
            }
            Next::Joins { key, list, absorbed, changed } => {
                to.push(Kind::Get, Role::Look, list, 0);
                self.take_event(key, place, to);
                for other in absorbed {
                    to.push(Kind::Get, Role::Absorb, other, 0);
                    to.push(Kind::Merge, Role::Absorb, key, 0);
                    to.push(Kind::Delete, Role::None, other, 0);
                }
                if let Some(sessions) = changed {
                    Self::write(list, &sessions, to);
                }
            }
        }
    }

    fn terminate(&mut self, watermark: i64, to: &mut Trace) {
        self.batch += 1;
        while let Some(first) = self.due.first_entry() {
            let end = *first.key();
            if end >= watermark {
                break;
            }
            for (event_key, key) in first.remove() {
                self.fire(event_key, key, end, to);
            }
        }
    }

    fn grammar(&self) -> Grammar {
        if self.folds { Grammar::FoldedSessions } else { Grammar::KeptSessions }
    }

    fn shape(&self) -> Shape {
        if self.folds { Shape::Sums } else { Shape::Elements }
    }
}
