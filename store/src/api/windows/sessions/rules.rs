//! The rules of sessions: which sessions of a key's set an event joins, what that does to the set,
//! and when a session's timer is due.

use std::ops::Range;

use alluvium_pagestore::{Key, Time};

use super::super::reach::SessionSpan;
use super::super::session_contents::SessionContents;
use super::super::session_set::{Session, SessionSet};
use super::super::{Emit, Window, clipped, has_come};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRules {
    pub(crate) gap: i64,
    pub(crate) lateness: i64,
    pub(crate) emit: Emit,
}

/// What an event does to a key's set beside the set itself.
pub(super) struct EventEffects<K, P> {
    pub(super) key: K,
    /// Where the session's timer has to be set, if it has to.
    pub(super) set: Option<Time>,
    pub(super) cancel: Vec<Time>,
    /// Results to take back.
    pub(super) taken_back: Vec<(SessionSpan, P)>,
    /// The session's result, if it is due.
    pub(super) told: Option<(SessionSpan, P)>,
}

impl SessionRules {
    #[cfg(test)]
    pub(crate) fn of_gap(gap: i64) -> Self {
        Self { gap, lateness: 0, emit: Emit::OnClose }
    }

    pub(super) fn window(&self, (first, last): SessionSpan) -> Window {
        Window { start: first, end: last.plus(self.gap) }
    }

    /// Whether a session whose last event was at `last` takes events that were sent with `sent`.
    pub(crate) fn is_open(&self, last: Time, sent: Time) -> bool {
        let close = i128::from(last.0) + i128::from(self.gap) + i128::from(self.lateness);
        !has_come(close + 1, sent)
    }

    /// Whether an event at `at` belongs to a session.
    pub(crate) fn touches(&self, (first, last): SessionSpan, at: Time) -> bool {
        let (gap, at) = (i128::from(self.gap), i128::from(at.0));
        i128::from(first.0) <= at + gap && at <= i128::from(last.0) + gap
    }

    /// When something has to be done after `now` about a session whose last event was at `last`.
    fn due_of(&self, last: Time, is_told: bool, now: Time) -> Time {
        let end = last.plus(self.gap);
        match self.emit {
            Emit::OnWatermark if !is_told => end,
            Emit::Early(every) if !is_told => {
                let now = i128::from(now.max(last).0);
                let every = every.as_nanos() as i128;
                end.min(clipped((now.div_euclid(every) + 1) * every))
            }
            _ => end.plus(self.lateness),
        }
    }

    /// When something has to be done about a session next, after `now`.
    pub(super) fn due<P>(&self, session: &Session<P>, now: Time) -> Time {
        self.due_of(session.1, session.2.1, now)
    }

    /// The sessions that an event at `at` belongs to. Cost: O(log n).
    pub(super) fn joined<P>(&self, set: &SessionSet<P>, at: Time) -> Range<usize> {
        // Sums stop at the ends of time, where the comparisons come out the same.
        let first = set.partition_point(|session| session.1.plus(self.gap) < at);
        let after = set.partition_point(|session| session.0 <= at.plus(self.gap));
        first..after.max(first)
    }

    /// The sessions whose timer may be set for `at`, in order: a timer is set for when the session, or a
    /// part of it, ends or closes, or for an early result before it ends.
    pub(super) fn armed<P>(&self, set: &SessionSet<P>, at: Time) -> [Range<usize>; 2] {
        let [gap, lateness, time] = [self.gap, self.lateness, at.0].map(i128::from);
        let touching = |from: i128, to: i128| {
            let first = set.partition_point(|session| i128::from(session.1.0) < from);
            let after = set.partition_point(|session| i128::from(session.0.0) <= to);
            first..after.max(first)
        };
        let close = time - gap - lateness;
        if at == Time::MAX {
            // It also stands for all times after it.
            return [touching(close, time), 0..0];
        }
        let closing = touching(close, close);
        match self.emit {
            Emit::OnClose => [closing, 0..0],
            Emit::OnWatermark | Emit::Early(_) => {
                let ending = touching(time - gap, time);
                [closing.clone(), ending.start.max(closing.end)..ending.end.max(closing.end)]
            }
        }
    }

    /// Lets an event at `at` into the sessions that it [joins](SessionRules::joined). Returns what that entails
    /// beside the set: nearly always nothing.
    #[inline]
    pub(super) fn join<K: Key, C: SessionContents<K>>(
        &self,
        (contents, watermark): (&C, Time),
        (key, at): (&K, Time),
        set: &mut SessionSet<C::Part>,
        joined: Range<usize>,
        add: impl FnOnce(&mut C::Part),
    ) -> Option<EventEffects<K, C::Part>> {
        if joined.len() == 1
            && let Some(session) = set.get_mut(joined.start)
            && self.only_extends(session, at, watermark)
        {
            session.0 = session.0.min(at);
            session.1 = session.1.max(at);
            add(&mut session.3);
            return None;
        }
        // Few come here, from wherever: it is compiled once for all of them.
        let mut add = Some(add);
        let add = &mut |part: &mut C::Part| add.take().expect("an event is added once")(part);
        self.join_all((contents, watermark), (key, at), set, joined, add)
    }

    /// Whether an event at `at`, which joins this session alone, changes nothing else: the session was
    /// not told and is not to be told yet, and its timer comes in time.
    fn only_extends<P>(&self, session: &Session<P>, at: Time, watermark: Time) -> bool {
        let (_, last, (armed, is_told), _) = session;
        let last = (*last).max(at);
        !is_told
            && !self.is_to_be_told(last, watermark)
            && *armed <= self.due_of(last, false, watermark)
    }

    /// Whether the result is due of a session whose last event was at `last`, and its timer for that has
    /// been.
    fn is_to_be_told(&self, last: Time, watermark: Time) -> bool {
        self.emit != Emit::OnClose && has_passed(last.plus(self.gap), watermark)
    }

    #[inline(never)]
    fn join_all<K: Key, C: SessionContents<K>>(
        &self,
        (contents, watermark): (&C, Time),
        (key, at): (&K, Time),
        set: &mut SessionSet<C::Part>,
        joined: Range<usize>,
        add: &mut dyn FnMut(&mut C::Part),
    ) -> Option<EventEffects<K, C::Part>> {
        let mut cancel = Vec::new();
        let mut taken_back = Vec::new();
        let mut note_old = |old: &Session<C::Part>| {
            if old.2.1 {
                taken_back.push(((old.0, old.1), old.3.clone()));
            }
        };
        let (place, is_new) = (joined.start, joined.is_empty());
        let mut armed = None;
        if is_new {
            set.insert(place, (at, at, (Time::MAX, false), contents.begin()));
        }
        let rest: Vec<_> = joined.skip(1).map_while(|_| set.remove(place + 1)).collect();
        let whole = set.get_mut(place).expect("a session is there, or was put there");
        if !is_new {
            note_old(whole);
            armed = Some(whole.2.0);
            for later in &rest {
                note_old(later);
                contents.join(&mut whole.3, &later.3);
                whole.1 = whole.1.max(later.1);
                let (first, second) = (armed.unwrap_or(Time::MAX), later.2.0);
                armed = Some(first.min(second));
                if first != second {
                    cancel.push(first.max(second));
                }
            }
            whole.0 = whole.0.min(at);
            whole.1 = whole.1.max(at);
            whole.2.1 = false;
        }
        add(&mut whole.3);
        let mut told = None;
        if self.is_to_be_told(whole.1, watermark) {
            whole.2.1 = true;
            told = Some(((whole.0, whole.1), whole.3.clone()));
        }
        let due = self.due(whole, watermark);
        let mut set_timer = None;
        match armed {
            Some(armed) if armed <= due => whole.2.0 = armed,
            _ => {
                cancel.extend(armed);
                whole.2.0 = due;
                set_timer = Some(due);
            }
        }
        // Timers are a set: one may be that of another session too.
        let has = |set: &SessionSet<_>, range: Range<usize>, at| {
            set.iter_from(range.start).take(range.len()).any(|session| session.2.0 == at)
        };
        cancel.retain(|at| !self.armed(set, *at).into_iter().any(|range| has(set, range, *at)));
        let entails =
            set_timer.is_some() || told.is_some() || !cancel.is_empty() || !taken_back.is_empty();
        entails.then(|| EventEffects { key: key.clone(), set: set_timer, cancel, taken_back, told })
    }
}

/// Whether the watermark is past `end`: an event exactly then still belongs to the session.
fn has_passed(end: Time, watermark: Time) -> bool {
    watermark == Time::MAX || end < watermark
}
