//! Sessions, over any contents.
//!
//! Each key has a set of sessions that are open, in order, more than the gap apart. What it keeps
//! true: each session has one timer, at or before the time when something has to be done about it;
//! a timer that comes too early, because the session was extended, is set again, so that an event
//! moves no timer. An event counts for a session unless that was closed at the time the event was sent
//! with, whatever the watermark was when it came: events for which that is not certain wait. An event
//! is too late if the session that it makes, together with the open ones that it joins, is closed; these
//! are those of events that were sent before it.
//!
//! A call that fails has either not taken an event, which is then left in the batch, or taken it
//! whole. What an event entails beside its first write is noted in memory, and done before anything
//! else: by this call, or, if memory is short, by the next one. No checkpoint is taken meanwhile.

use std::collections::VecDeque;
use std::ops::Range;

use alluvium_layouts::Layout;
use alluvium_pagestore::{Error, Key, Result, State, Time};
use smallvec::SmallVec;

use super::contents::Out;
use super::late::LateEvents;
use super::progress::ProgressCell;
use super::reach::{self, Reach, Span};
use super::session_set::{Session, SessionSet};
use super::{Advanced, Emit, Late, Window, Windows, clipped, has_come};
use crate::api::map::Map;
use crate::api::timers::Timers;
use crate::cells::held::Held;

/// What is kept of sessions.
pub(crate) trait SessionContents<K: Key>: 'static {
    /// What comes in.
    type Element: 'static;
    /// An event that has to wait before it may come in.
    type Item: State;
    /// What stands in the set of sessions.
    type Part: State;
    /// What comes out.
    type Row: 'static;

    fn item(&self, element: &Self::Element) -> Self::Item;

    /// Whether events are kept beside the set, by [`keep`](SessionContents::keep).
    const KEEPS: bool;

    /// Where the events of a session are kept, whose last event is at `last`.
    fn place(&self, last: Time, part: &Self::Part) -> Time;

    /// Where those of a session are kept that has taken an event, and is now as long.
    fn place_of(&self, span: Span) -> Time;

    /// Keeps an event at a place, after those that are kept there.
    fn keep(&mut self, key: &K, place: Time, item: &Self::Item) -> Result<()>;

    /// What is kept of a key at one place goes before what is kept at another. Changes nothing if it was called
    /// before.
    fn move_before(&mut self, key: &K, from: Time, to: Time) -> Result<()>;

    /// The part of a session with one event.
    fn begin(&self) -> Self::Part;
    /// Adds an event as it comes in.
    fn add(&self, part: &mut Self::Part, element: &Self::Element);
    /// Adds an event to a session, which is then as long.
    fn put(&self, part: &mut Self::Part, item: &Self::Item, span: Span);
    /// Adds what a later session has.
    fn join(&self, part: &mut Self::Part, later: &Self::Part);

    /// Tells the result of a session: its window, and the time of its last event.
    fn tell(
        &mut self,
        key: &K,
        of: (Window, Time),
        part: &Self::Part,
        diff: i64,
        out: Out<'_, K, Self::Row>,
    ) -> Result<()>;

    /// A session is closed, whose last event was at `last`: what is kept beside the set may go.
    fn forget(&mut self, key: &K, last: Time, part: &Self::Part) -> Result<()>;

    fn prefetch(&mut self, until: Time) -> Result<()>;

    /// Sessions that end before this are gone; says whether nothing is left of them.
    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool>;
}

pub(crate) struct Sessions<K, C, L>
where
    K: Key + Ord,
    C: SessionContents<K>,
    L: Layout<K, SessionSet<C::Part>>,
{
    rules: Rules,
    contents: C,
    sets: Map<K, SessionSet<C::Part>, L>,
    timers: Timers<K>,
    late: LateEvents<K, C::Item>,
    reach: Reach<K>,
    pub(crate) progress: Held<ProgressCell>,
    /// An event that is kept, and not in its session yet.
    entering: Option<Entering<K, C>>,
    /// Timers that found no room yet.
    unset: Vec<(Time, K)>,
    /// Keys without sessions whose sets are to be removed.
    emptied: Vec<K>,
    /// What is to be told of sessions, and whether they are closed.
    telling: VecDeque<(K, Span, C::Part, Tell)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) gap: i64,
    pub(crate) lateness: i64,
    pub(crate) emit: Emit,
}

/// What is to be told of a session.
#[derive(Clone, Copy, Debug)]
struct Tell {
    diff: i64,
    is_closed: bool,
}

/// What a key's set says of an event.
enum Looked<K: Key, P> {
    /// The event is kept, and in its session.
    IsIn(Joined<K, P>),
    /// It joins these sessions, whose events have to move or whose results were told.
    Joins(SmallVec<[Session<P>; 1]>),
    /// It could not be kept.
    Failed(Error),
}

/// Where an event is kept if it begins a session, or joins one that stays where it is and was not told; and from where
/// to where that is then.
fn stays<K: Key, C: SessionContents<K>>(
    contents: &C,
    set: &SessionSet<C::Part>,
    joined: &Range<usize>,
    at: Time,
) -> Option<(Time, Span)> {
    let mut sessions = set.iter_from(joined.start).take(joined.len());
    let Some(one) = sessions.next() else {
        return Some((contents.place_of((at, at)), (at, at)));
    };
    let span = (one.0.min(at), one.1.max(at));
    let place = contents.place(one.1, &one.3);
    let stays = sessions.next().is_none() && !one.2.1 && contents.place_of(span) == place;
    stays.then_some((place, span))
}

/// An event that is kept beside the set, on its way into the set.
struct Entering<K: Key, C: SessionContents<K>> {
    at: Time,
    key: K,
    item: C::Item,
    /// From the first to the last event of the session that it makes.
    span: Span,
    /// Where it is kept: with the last session that it joins, if it joins any.
    kept: Time,
    /// Where the other sessions are kept that it joins, but those whose events have been moved there.
    joined: SmallVec<[Time; 1]>,
    /// Results to take back.
    old_rows: Vec<(Window, C::Row, i64)>,
}

/// What an event does to a key's set beside the set itself.
struct Joined<K, P> {
    key: K,
    /// Where the session's timer has to be set, if it has to.
    set: Option<Time>,
    cancel: Vec<Time>,
    /// Results to take back.
    taken_back: Vec<(Span, P)>,
    /// The session's result, if it is due.
    told: Option<(Span, P)>,
}

impl Rules {
    #[cfg(test)]
    pub(crate) fn of_gap(gap: i64) -> Self {
        Self { gap, lateness: 0, emit: Emit::OnClose }
    }

    fn window(&self, (first, last): Span) -> Window {
        Window { start: first, end: last.plus(self.gap) }
    }

    /// Whether a session whose last event was at `last` takes events that were sent with `sent`.
    pub(crate) fn is_open(&self, last: Time, sent: Time) -> bool {
        let close = i128::from(last.0) + i128::from(self.gap) + i128::from(self.lateness);
        !has_come(close + 1, sent)
    }

    /// Whether an event at `at` belongs to a session.
    pub(crate) fn touches(&self, (first, last): Span, at: Time) -> bool {
        let (gap, at) = (i128::from(self.gap), i128::from(at.0));
        i128::from(first.0) <= at + gap && at <= i128::from(last.0) + gap
    }

    /// When something has to be done about a session next, after `now`.
    fn due<P>(&self, session: &Session<P>, now: Time) -> Time {
        let end = session.1.plus(self.gap);
        match self.emit {
            Emit::OnWatermark if !session.2.1 => end,
            Emit::Early(every) if !session.2.1 => {
                let now = i128::from(now.max(session.1).0);
                let every = every.as_nanos() as i128;
                end.min(clipped((now.div_euclid(every) + 1) * every))
            }
            _ => end.plus(self.lateness),
        }
    }

    /// The sessions that an event at `at` belongs to. Cost: O(log n).
    fn joined<P>(&self, set: &SessionSet<P>, at: Time) -> Range<usize> {
        let gap = i128::from(self.gap);
        let at = i128::from(at.0);
        let first = set.partition_point(|session| i128::from(session.1.0) + gap < at);
        let after = set.partition_point(|session| i128::from(session.0.0) <= at + gap);
        first..after.max(first)
    }

    /// The sessions whose timer may be set for `at`, in order: a timer is set for when the session, or a
    /// part of it, ends or closes, or for an early result before it ends.
    fn armed<P>(&self, set: &SessionSet<P>, at: Time) -> [Range<usize>; 2] {
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

    /// Lets an event at `at` into a key's set.
    fn join<K: Key, C: SessionContents<K>>(
        &self,
        contents: &C,
        watermark: Time,
        key: &K,
        set: &mut SessionSet<C::Part>,
        at: Time,
        add: impl FnOnce(&mut C::Part),
    ) -> Joined<K, C::Part> {
        let joined = self.joined(set, at);
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
        if self.emit != Emit::OnClose && has_passed(whole.1.plus(self.gap), watermark) {
            // Its time has come, and its timer for that has been.
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
        Joined { key: key.clone(), set: set_timer, cancel, taken_back, told }
    }
}

/// Whether the watermark is past `end`: an event exactly then still belongs to the session.
fn has_passed(end: Time, watermark: Time) -> bool {
    watermark == Time::MAX || end < watermark
}

impl<K, C, L> Drop for Sessions<K, C, L>
where
    K: Key + Ord,
    C: SessionContents<K>,
    L: Layout<K, SessionSet<C::Part>>,
{
    /// The next handle tells alike what came before the events of the watermark.
    fn drop(&mut self) {
        let none = Reach::new(self.late.account());
        self.progress.leave(Box::new(std::mem::replace(&mut self.reach, none)));
    }
}

impl<K, C, L> Sessions<K, C, L>
where
    K: Key + Ord,
    C: SessionContents<K>,
    L: Layout<K, SessionSet<C::Part>>,
{
    pub(crate) fn new(
        gap: i64,
        windows: &Windows,
        contents: C,
        sets: Map<K, SessionSet<C::Part>, L>,
        timers: Timers<K>,
        late: LateEvents<K, C::Item>,
        progress: Held<ProgressCell>,
    ) -> Self {
        let rules = Rules { gap, lateness: windows.lateness, emit: windows.emit };
        let (unset, emptied, telling) = (Vec::new(), Vec::new(), VecDeque::new());
        let known = progress.take_left::<Reach<K>>();
        let (reach, entering) = (known.unwrap_or_else(|| Reach::new(late.account())), None);
        Self {
            rules,
            contents,
            sets,
            timers,
            late,
            reach,
            progress,
            entering,
            unset,
            emptied,
            telling,
        }
    }

    pub(crate) fn clear_poison(&mut self) {
        self.sets.clear_poison();
    }

    /// Adds events none of which is late.
    pub(crate) fn add_in_time(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        drop: &mut dyn FnMut(Late<K, C::Element>),
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        if C::KEEPS {
            return self.add_one_by_one(sent, batch, drop, out);
        }
        self.catch_up(out)?;
        self.join_batch(sent, batch, out)
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
        let spans = self.sets.read(key, |set| {
            // In order, and those that are over are gone: as many as gaps are from the watermark to `sent`.
            let set = set.into_iter().flat_map(SessionSet::iter);
            let set = set.map(|session| (session.0, session.1));
            set.take_while(|(first, _)| i128::from(first.0) < latest).collect::<Vec<Span>>()
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
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        if self.reach.may_change(sent) {
            batch.iter().for_each(|(key, ..)| self.reach.comes(key, sent));
        }
        let (rules, contents) = (self.rules, &self.contents);
        let watermark = self.progress.watermark.get();
        let mut all = Vec::new();
        let done = self.sets.update_batch(
            batch,
            |(key, ..)| key,
            |_| SessionSet::new(),
            |(key, at, element), set| {
                let add = |part: &mut C::Part| contents.add(part, element);
                let joined = rules.join(contents, watermark, key, set, *at, add);
                if joined.has_something() {
                    all.push(joined);
                }
            },
        );
        let done = done.map_err(|error| error.leave_rest(batch));
        if done.is_ok() {
            batch.clear();
        }
        all.into_iter().for_each(|joined| self.follow(joined));
        self.catch_up(out).and(done)
    }

    /// Lets an event into its session. What that entails is left to `catch_up`. After an error the event
    /// is not in.
    fn put(&mut self, at: Time, key: &K, item: &C::Item, out: Out<'_, K, C::Row>) -> Result<()> {
        if C::KEEPS {
            return self.keep(at, key, item, out);
        }
        let (rules, contents) = (self.rules, &self.contents);
        let watermark = self.progress.watermark.get();
        let joined = self.sets.update(key, SessionSet::new, |set| {
            rules.join(contents, watermark, key, set, at, |part| contents.put(part, item, (at, at)))
        })?;
        self.follow(joined);
        Ok(())
    }

    /// Keeps an event, which is the write that may fail; from then on it is on its way into the set. Nearly
    /// always it is in it at once.
    fn keep(&mut self, at: Time, key: &K, item: &C::Item, out: Out<'_, K, C::Row>) -> Result<()> {
        let rules = self.rules;
        // Not only read: what refuses to be changed refuses it before anything is kept.
        let (contents, watermark) = (&mut self.contents, self.progress.watermark.get());
        let looked = self.sets.modify(key, |set| {
            let joined = rules.joined(set, at);
            let Some((place, span)) = stays(contents, set, &joined, at) else {
                return Looked::Joins(
                    set.iter_from(joined.start).take(joined.len()).cloned().collect(),
                );
            };
            match contents.keep(key, place, item) {
                Ok(()) => Looked::IsIn(rules.join(&*contents, watermark, key, set, at, |part| {
                    contents.put(part, item, span);
                })),
                Err(error) => Looked::Failed(error),
            }
        })?;
        let joined = match looked {
            Some(Looked::IsIn(joined)) => {
                self.follow(joined);
                return Ok(());
            }
            Some(Looked::Failed(error)) => return Err(error),
            Some(Looked::Joins(joined)) => joined,
            None => SmallVec::new(),
        };
        let mut old_rows = Vec::new();
        // What is to be taken back has to be read before it is joined.
        for old in joined.iter().filter(|old| old.2.1) {
            let note = &mut |_: &K, window, row, diff| old_rows.push((window, row, diff));
            let span = (old.0, old.1);
            self.contents.tell(key, (rules.window(span), old.1), &old.3, -1, note)?;
        }
        let first = joined.first().map_or(at, |first| first.0.min(at));
        let span = (first, joined.last().map_or(at, |last| last.1.max(at)));
        let mut joined: SmallVec<[Time; 1]> =
            joined.iter().map(|old| self.contents.place(old.1, &old.3)).collect();
        let kept = joined.pop().unwrap_or_else(|| self.contents.place_of(span));
        self.contents.keep(key, kept, item)?;
        let (key, item) = (key.clone(), item.clone());
        self.entering = Some(Entering { at, key, item, span, kept, joined, old_rows });
        if self.enter(out).is_err() {
            // The next call goes on with it, and says why if it cannot.
            self.progress.busy.set(true);
        }
        Ok(())
    }

    /// Lets the event that is on its way into its session. After an error the next call goes on.
    fn enter(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        let Some(entering) = &mut self.entering else { return Ok(()) };
        // The last first: what is moved comes before what is there. The place of the whole session may be that
        // of one of them, which has left it by then.
        while let Some(place) = entering.joined.last() {
            self.contents.move_before(&entering.key, *place, entering.kept)?;
            entering.joined.pop();
        }
        let (rules, contents) = (self.rules, &mut self.contents);
        let span = entering.span;
        contents.move_before(&entering.key, entering.kept, contents.place_of(span))?;
        let (contents, watermark) = (&*contents, self.progress.watermark.get());
        let Entering { at, key, item, .. } = &*entering;
        let mut joined = self.sets.update(key, SessionSet::new, |set| {
            rules.join(contents, watermark, key, set, *at, |part| contents.put(part, item, span))
        })?;
        // They were read before.
        joined.taken_back.clear();
        if let Some(Entering { key, old_rows, .. }) = self.entering.take() {
            old_rows.into_iter().for_each(|(window, row, diff)| out(&key, window, row, diff));
        }
        self.follow(joined);
        Ok(())
    }

    /// Does what a change of a set entails; what cannot be done now is noted.
    fn follow(&mut self, joined: Joined<K, C::Part>) {
        let Joined { key, set, cancel, taken_back, told } = joined;
        for at in cancel {
            self.timers.cancel(key.clone(), at);
        }
        let tell = |diff| Tell { diff, is_closed: false };
        for (span, part) in taken_back {
            self.telling.push_back((key.clone(), span, part, tell(-1)));
        }
        if let Some((span, part)) = told {
            self.telling.push_back((key.clone(), span, part, tell(1)));
        }
        self.unset.extend(set.map(|at| (at, key)));
    }

    /// Does what the calls before had to leave: lets an event in that is kept already, sets timers, tells
    /// what is to be told. No checkpoint is taken until that is done.
    fn catch_up(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        let done = self.do_rest(out);
        if done.is_err() {
            self.progress.busy.set(true);
        }
        done
    }

    fn do_rest(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        self.enter(out)?;
        while let Some((at, key)) = self.unset.pop() {
            if let Err(error) = self.timers.set(key.clone(), at) {
                self.unset.push((at, key));
                return Err(error);
            }
        }
        while let Some((key, span, part, tell)) = self.telling.front_mut() {
            if tell.diff != 0 {
                let of = (self.rules.window(*span), span.1);
                self.contents.tell(key, of, part, tell.diff, out)?;
                // Told, also if it cannot be forgotten yet.
                tell.diff = 0;
            }
            if tell.is_closed {
                self.contents.forget(key, span.1, part)?;
            }
            self.telling.pop_front();
        }
        while let Some(key) = self.emptied.pop() {
            match self.sets.take(&key) {
                // Nothing was added since.
                Ok(set) => debug_assert!(set.is_none_or(|set| set.is_empty())),
                Err(error) => {
                    self.emptied.push(key);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// As [`Aligned::advance`](super::aligned::Aligned::advance).
    pub(crate) fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, C::Row>,
    ) -> Result<Advanced> {
        let progress = self.progress.clone();
        let watermark = progress.advance(watermark)?;
        self.reach.advance(watermark);
        let mut fuel = fuel.max(1);
        while fuel > 0 {
            fuel -= 1;
            self.catch_up(out)?;
            if let Some((sent, (at, key, item))) = self.late.take() {
                // Others may still come that were sent with the watermark.
                let noted = match sent < watermark {
                    true => Ok(()),
                    false => self.note_reach(&key, sent),
                };
                if let Err(error) = noted.and_then(|()| self.put(at, &key, &item, out)) {
                    self.late.give_back((at, key, item));
                    return Err(error);
                }
                continue;
            }
            if self.late.unload(fuel.max(1))? {
                continue;
            }
            let waiting = self.late.first()?.filter(|sent| *sent <= watermark);
            // Sessions that were closed for an event that waits close first.
            if self.fire_next(waiting.unwrap_or(watermark))? {
                continue;
            }
            match waiting {
                Some(sent) => {
                    // All sessions that were closed then are closed: nothing else joins these.
                    progress.settled.set(sent.max(progress.settled.get()));
                    self.late.begin(sent);
                }
                None => return self.settle(watermark, fuel),
            }
        }
        Ok(Advanced { done: false })
    }

    /// Does what the first timer before `watermark` asks for, if there is one.
    fn fire_next(&mut self, watermark: Time) -> Result<bool> {
        let next = match watermark {
            Time::MAX => self.timers.pop_first().map(|(at, key, ())| (at, key)),
            _ => self.timers.pop_due(watermark),
        };
        let Some((at, key)) = next else { return Ok(false) };
        let (rules, mut due) = (self.rules, Vec::new());
        let looked_at = self.sets.modify(&key, |set| {
            // Several sessions may have had this timer; each gets the next of its own.
            let (mut set_timers, mut removed) = (Vec::new(), 0);
            for n in rules.armed(set, at).into_iter().flatten() {
                let n = n - removed;
                let Some(session) = set.get_mut(n).filter(|session| session.2.0 == at) else {
                    continue;
                };
                let next = rules.due(session, at.plus(-1));
                if next > at {
                    session.2.0 = next;
                    set_timers.push(next);
                    continue;
                }
                let span = (session.0, session.1);
                let tells = rules.emit == Emit::OnClose || !session.2.1;
                session.2.1 = true;
                let close = rules.due(session, at);
                let is_closed = close <= at;
                let tell = Tell { diff: i64::from(tells), is_closed };
                due.push((key.clone(), span, session.3.clone(), tell));
                if is_closed {
                    set.remove(n);
                    removed += 1;
                } else {
                    session.2.0 = close;
                    set_timers.push(close);
                }
            }
            (set_timers, set.is_empty())
        });
        match looked_at {
            Ok(Some((set_timers, is_empty))) => {
                self.unset.extend(set_timers.into_iter().map(|at| (at, key.clone())));
                if is_empty {
                    self.emptied.push(key);
                }
                self.telling.extend(due);
            }
            Ok(None) => {}
            Err(error) => {
                self.unset.push((at, key));
                return Err(error);
            }
        }
        Ok(true)
    }

    fn settle(&mut self, watermark: Time, fuel: usize) -> Result<Advanced> {
        let closed = match watermark {
            Time::MAX => Time::MAX,
            _ => clipped(i128::from(watermark.0) - i128::from(self.rules.lateness)),
        };
        self.progress.settled.set(watermark);
        self.progress.busy.set(false);
        self.progress.due.set(false);
        // Sessions that nobody extends end within the gap.
        self.contents.prefetch(watermark.plus(self.rules.gap))?;
        let done = closed == Time::MIN || self.contents.purge(closed, fuel.max(1))?;
        Ok(Advanced { done })
    }
}

impl<K, P> Joined<K, P> {
    fn has_something(&self) -> bool {
        self.set.is_some()
            || self.told.is_some()
            || !self.cancel.is_empty()
            || !self.taken_back.is_empty()
    }
}
