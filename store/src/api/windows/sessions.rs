//! Sessions, over any contents.
//!
//! Each key has a set of sessions that are open, in order, more than the gap apart. What it keeps
//! true: each session has one timer, at or before the time when something has to be done about it, in memory or made
//! again [when it comes next](next_timers); a timer that comes too early, because the session was extended, is set again, so that an event
//! moves no timer. An event counts for a session unless that was closed at the time the event was sent
//! with, whatever the watermark was when it came: events for which that is not certain wait. An event
//! is too late if the session that it makes, together with the open ones that it joins, is closed; these
//! are those of events that were sent before it.
//!
//! A call that fails has either not taken an event, which is then left in the batch, or taken it
//! whole. What an event entails beside its first write is noted in memory, and done before anything
//! else: by this call, or, if memory is short, by the next one. No checkpoint is taken meanwhile.

mod entering;
mod firing;
mod next_timers;
mod rest;
mod rules;
mod sets;

use alluvium_pagestore::{Error, Key, Result, Time};

use super::contents::Out;
use super::late::LateEvents;
use super::progress::ProgressCell;
use super::reach::{self, SessionReach, SessionSpan};
use super::session_contents::SessionContents;
use super::session_set::SessionSet;
use super::{Late, Windows, clipped};
use crate::api::timers::Timers;
use crate::cells::cell_handle::CellHandle;
use entering::EnteringEvent;
use next_timers::NextTimers;
use rest::SessionRest;
use rules::EventEffects;

pub(crate) use rules::SessionRules;
pub(crate) use sets::SessionSets;

/// The sets of sessions with these contents.
type SetsOf<K, C> =
    dyn SessionSets<K, <C as SessionContents<K>>::Part, <C as SessionContents<K>>::Element>;

pub(crate) struct Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    rules: SessionRules,
    contents: C,
    sets: Box<SetsOf<K, C>>,
    timers: NextTimers<K>,
    late: LateEvents<K, C::Item>,
    reach: SessionReach<K>,
    pub(crate) progress: CellHandle<ProgressCell>,
    /// An event that is kept, and not in its session yet.
    entering: Option<EnteringEvent<K, C>>,
    rest: SessionRest<K, C::Part>,
}

impl<K, C> Drop for Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    /// The next handle tells alike what came before the events of the watermark.
    fn drop(&mut self) {
        let none = SessionReach::new(self.late.account());
        self.progress.leave(Box::new(std::mem::replace(&mut self.reach, none)));
    }
}

impl<K, C> Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    pub(crate) fn new(
        gap: i64,
        windows: &Windows,
        contents: C,
        sets: Box<SetsOf<K, C>>,
        timers: Timers<K>,
        late: LateEvents<K, C::Item>,
        progress: CellHandle<ProgressCell>,
    ) -> Self {
        let rules = SessionRules { gap, lateness: windows.lateness, emit: windows.emit };
        let known = progress.take_left::<SessionReach<K>>();
        let reach = known.unwrap_or_else(|| SessionReach::new(late.account()));
        let (entering, rest, timers) = (None, SessionRest::new(), NextTimers::new(timers));
        Self { rules, contents, sets, timers, late, reach, progress, entering, rest }
    }

    /// Keeps no more timers in memory than that: for tests.
    pub(crate) fn keep_timers(&mut self, most: usize) {
        self.timers.keep_most(most);
    }

    pub(crate) fn clear_poison(&mut self) {
        self.sets.clear_poison();
    }

    /// Adds events none of which is late.
    pub(crate) fn add_in_time(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        if self.reach.may_change(sent) {
            batch.iter().for_each(|(key, ..)| self.reach.comes(key, sent));
        }
        self.catch_up(out)?;
        match C::KEEPS {
            true => self.keep_batch(batch, out),
            false => self.join_batch(batch, out),
        }
    }

    /// As [`Aligned::add_one_by_one`](super::aligned::Aligned::add_one_by_one).
    pub(crate) fn add_one_by_one(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        drop: &mut dyn FnMut(Late<K, C::Element>),
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        self.catch_up(out)?;
        let mut rest = std::mem::take(batch).into_iter();
        while let Some((key, at, element)) = rest.next() {
            match self.add(sent, (at, &key, &element), out) {
                Ok(true) => {}
                Ok(false) => {
                    let lateness = clipped(i128::from(sent.0) - i128::from(at.0)).0;
                    drop(Late { at, key, element, lateness });
                }
                Err(error) => {
                    batch.push((key, at, element));
                    batch.extend(rest);
                    return Err(error);
                }
            }
        }
        self.catch_up(out)
    }

    /// Adds an event that was sent with `sent`, or has it wait; says whether it was not too late. After an
    /// error it was not added.
    fn add(
        &mut self,
        sent: Time,
        (at, key, element): (Time, &K, &C::Element),
        out: Out<'_, K, C::Row>,
    ) -> Result<bool> {
        self.catch_up(out)?;
        if self.is_too_late(at, key, sent)? {
            return Ok(false);
        }
        let item = self.contents.item(element);
        if self.has_to_wait(at, sent) {
            self.late.keep(sent, key, at, item).map_err(Error::from)?;
        } else {
            if self.is_late(at, sent) {
                self.note_reach(key, sent)?;
            }
            self.put(at, key, &item, out)?;
        }
        self.reach.comes(key, sent);
        Ok(true)
    }

    /// Whether an event is too late for a session of its own, and for those that it would join. Cost: a
    /// look-up of the key's sessions if it is too late for its own; while late events of the key
    /// wait, a look at them.
    fn is_too_late(&mut self, at: Time, key: &K, sent: Time) -> Result<bool> {
        if at >= sent || self.rules.is_open(at, sent) {
            return Ok(false);
        }
        if sent == Time::MAX {
            // Nothing is open.
            return Ok(true);
        }
        let start = match self.reach.get(key, sent) {
            Some(start) => start,
            None => {
                let start = self.first_open(key, sent)?;
                // It spares a look at what waits; without room for it each event takes one.
                let _ = self.reach.set(key, sent, start);
                start
            }
        };
        let gap = i128::from(self.rules.gap);
        Ok(start.is_none_or(|start| i128::from(at.0) + gap < i128::from(start.0)))
    }

    /// A late event comes in that was sent with the watermark: notes which session was the first open one
    /// before it.
    fn note_reach(&mut self, key: &K, sent: Time) -> Result<()> {
        if self.reach.get(key, sent).is_none() {
            let start = self.first_open(key, sent)?;
            self.reach.set(key, sent, start)?;
        }
        Ok(())
    }

    /// Where the first session of `key` begins that is open for an event sent with `sent`, if it begins
    /// early enough for an event to matter that is too late for a session of its own.
    fn first_open(&mut self, key: &K, sent: Time) -> Result<Option<Time>> {
        let rules = self.rules;
        let latest = i128::from(sent.0) - i128::from(rules.lateness);
        let mut spans: Vec<SessionSpan> = Vec::new();
        self.sets.read(key, &mut |set| {
            // In order, and those that are over are gone: as many as gaps are from the watermark to `sent`.
            let set = set.into_iter().flat_map(SessionSet::iter);
            let set = set.map(|session| (session.0, session.1));
            spans.extend(set.take_while(|(first, _)| i128::from(first.0) < latest));
        })?;
        let waiting = self.late.of_key(key, sent)?;
        Ok(reach::first_open(&rules, spans, waiting, sent))
    }

    /// Whether an event is late, by more than the lateness: a session that it would join may be closed.
    fn is_late(&self, at: Time, sent: Time) -> bool {
        i128::from(at.0) + i128::from(self.rules.lateness) < i128::from(sent.0)
    }

    /// Whether a session that the event would join may be closed for it, and yet not be closed.
    fn has_to_wait(&self, at: Time, sent: Time) -> bool {
        self.is_late(at, sent) && self.progress.settled.get() < sent
    }

    /// Lets a batch of events that are not late into their sessions.
    fn join_batch(
        &mut self,
        batch: &mut Vec<(K, Time, C::Element)>,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        let Self { rules, contents, sets, timers, rest, .. } = self;
        let of = (&*contents, self.progress.watermark.get());
        let done = sets.update_batch(batch, &mut |(key, at, element), set| {
            let (joined, add) = (rules.joined(set, *at), |part: &mut _| of.0.add(part, element));
            if let Some(joined) = rules.join(of, (key, *at), set, joined, add) {
                rest.follow(timers, joined);
            }
        });
        let done = done.map_err(|error| error.leave_rest(batch));
        if done.is_ok() {
            batch.clear();
        }
        self.catch_up(out).and(done)
    }

    /// Lets an event into its session. What that entails is left to `catch_up`. After an error the event
    /// is not in.
    fn put(&mut self, at: Time, key: &K, item: &C::Item, out: Out<'_, K, C::Row>) -> Result<()> {
        if C::KEEPS {
            return self.keep((at, key, item.clone()), &|_| item.clone(), out);
        }
        let Self { rules, contents, sets, progress, .. } = self;
        let of = (*rules, &*contents, progress.watermark.get());
        let joined = let_into(of, &mut **sets, (key, at), &|part| contents.put(part, item))?;
        joined.into_iter().for_each(|joined| self.rest.follow(&mut self.timers, joined));
        Ok(())
    }
}

/// Lets an event of a key into its session, where `add` adds it. Returns what that entails.
fn let_into<K, C>(
    (rules, contents, watermark): (SessionRules, &C, Time),
    sets: &mut SetsOf<K, C>,
    (key, at): (&K, Time),
    add: &dyn Fn(&mut C::Part),
) -> Result<Option<EventEffects<K, C::Part>>>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    let mut entails = None;
    sets.update(key, &mut |set| {
        let joined = rules.joined(set, at);
        entails = rules.join((contents, watermark), (key, at), set, joined, add);
    })?;
    Ok(entails)
}
