//! Sessions by hand: a short list of them per key, and one timer each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use alluvium::Time;

use super::by_hand::{Contents, FastMap};
use super::{Answer, Event, Question};

/// Sessions in a hash map.
#[derive(Debug)]
pub(super) struct SessionsByHand {
    gap: i64,
    question: Question,
    keys: FastMap<u64, Vec<Session>>,
    /// When a key's sessions have to be looked at, earliest first.
    timers: BinaryHeap<Reverse<(Time, u64)>>,
}

/// One session that is not over.
#[derive(Debug)]
struct Session {
    first: Time,
    last: Time,
    /// Its timer, which is not after its end.
    timer: Time,
    contents: Contents,
}

impl Session {
    fn end(&self, gap: i64) -> Time {
        Time(self.last.0.saturating_add(gap))
    }
}

impl SessionsByHand {
    pub(super) fn new(gap: i64, question: Question) -> Self {
        let (keys, timers) = (FastMap::default(), BinaryHeap::new());
        SessionsByHand { gap, question, keys, timers }
    }

    pub(super) fn push(&mut self, event: Event) {
        let (gap, at) = (self.gap, event.time);
        let sessions = self.keys.entry(event.key).or_default();
        let touches = |session: &Session| {
            session.first.0.saturating_sub(gap) <= at.0 && at <= session.end(gap)
        };
        let Some(home) = sessions.iter().position(touches) else {
            let timer = Time(at.0.saturating_add(gap));
            let mut contents = Contents::new(self.question);
            contents.add(event.value);
            sessions.push(Session { first: at, last: at, timer, contents });
            self.timers.push(Reverse((timer, event.key)));
            return;
        };
        // An event can close the pause between two sessions, not between more.
        if let Some(other) = (home + 1..sessions.len()).find(|&other| touches(&sessions[other])) {
            let other = sessions.swap_remove(other);
            let session = &mut sessions[home];
            session.first = session.first.min(other.first);
            session.last = session.last.max(other.last);
            session.timer = session.timer.min(other.timer);
            session.contents.merge(other.contents);
        }
        let session = &mut sessions[home];
        session.first = session.first.min(at);
        session.last = session.last.max(at);
        session.contents.add(event.value);
    }

    pub(super) fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) {
        while let Some(&Reverse((timer, key))) = self.timers.peek() {
            // At the end of time everything is over.
            if timer >= watermark && watermark != Time::MAX {
                return;
            }
            self.timers.pop();
            let Some(sessions) = self.keys.get_mut(&key) else { continue };
            // None has it if it was that of a session which is part of another now.
            let Some(at) = sessions.iter().position(|session| session.timer == timer) else {
                continue;
            };
            let end = sessions[at].end(self.gap);
            if end >= watermark && watermark != Time::MAX {
                sessions[at].timer = end;
                self.timers.push(Reverse((end, key)));
                continue;
            }
            let Session { first: start, contents, .. } = sessions.swap_remove(at);
            contents.answer(self.question, |figures| tell(Answer { key, start, end, figures }));
            if sessions.is_empty() {
                self.keys.remove(&key);
            }
        }
    }
}
