//! Events of sessions that keep them, on their way in.
//!
//! An event is kept first, which is the write that may fail, and then counted in the key's set. Nearly
//! always both happen in one look at the set. If the event joins sessions whose events have to move,
//! or whose results were told, it is *entering* from when it is kept until the set has it.

use std::ops::Range;

use alluvium_layouts::BatchError;
use alluvium_pagestore::{Error, ErrorKind, Key, Result, Time};
use smallvec::SmallVec;

use super::super::Window;
use super::super::contents::Out;
use super::super::reach::SessionSpan;
use super::super::session_contents::SessionContents;
use super::super::session_set::{Session, SessionSet};
use super::rules::EventEffects;
use super::{Sessions, let_into};

/// An event that is kept beside the set, on its way into the set.
pub(super) struct EnteringEvent<K: Key, C: SessionContents<K>> {
    at: Time,
    key: K,
    /// From the first to the last event of the session that it makes.
    span: SessionSpan,
    /// Where it is kept: with the last session that it joins, if it joins any.
    kept: Time,
    /// Where the other sessions are kept that it joins, but those whose events have been moved there.
    joined: SmallVec<[Time; 1]>,
    /// Results to take back.
    old_rows: Vec<(Window, C::Row, i64)>,
}

/// What a key's set says of an event.
enum SetLookup<K: Key, P> {
    /// The event is kept, and in its session.
    IsIn(Option<EventEffects<K, P>>),
    /// It joins these sessions, whose events have to move or whose results were told.
    Joins(SmallVec<[Session<P>; 1]>),
    /// It could not be kept, and joins these sessions.
    Failed(Error, SmallVec<[Session<P>; 1]>),
}

/// Where an event is kept if it begins a session, or joins one that stays where it is and was not told; and from where
/// to where that is then.
fn stays<K: Key, C: SessionContents<K>>(
    contents: &C,
    set: &SessionSet<C::Part>,
    joined: &Range<usize>,
    at: Time,
) -> Option<(Time, SessionSpan)> {
    let mut sessions = set.iter_from(joined.start).take(joined.len());
    let Some(one) = sessions.next() else {
        return Some((contents.place_of((at, at)), (at, at)));
    };
    let span = (one.0.min(at), one.1.max(at));
    if joined.len() > 1 || one.2.1 {
        return None;
    }
    let place = contents.place(one.1, &one.3);
    (contents.place_of(span) == place).then_some((place, span))
}

impl<K, C> Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    /// Keeps events that are not late, one after the other.
    pub(super) fn keep_batch(
        &mut self,
        batch: &mut Vec<(K, Time, C::Element)>,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        for (applied, (key, at, element)) in batch.iter().enumerate() {
            let item = self.contents.item(element);
            let again = &|contents: &C| contents.item(element);
            let kept = self.catch_up(out).and_then(|()| self.keep((*at, key, item), again, out));
            if let Err(error) = kept {
                return Err(BatchError { applied, error }.leave_rest(batch));
            }
        }
        batch.clear();
        self.catch_up(out)
    }

    /// Keeps an event, which can be made `again`. After an error it is not in.
    pub(super) fn keep(
        &mut self,
        (at, key, item): (Time, &K, C::Item),
        again: &dyn Fn(&C) -> C::Item,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        let (rules, watermark) = (self.rules, self.progress.watermark.get());
        let (contents, mut item) = (&mut self.contents, Some(item));
        // Not only read: what refuses to be changed refuses it before anything is kept.
        let mut looked = None;
        self.sets.modify(key, &mut |set| {
            let joined = rules.joined(set, at);
            let sessions = |set: &SessionSet<C::Part>| {
                set.iter_from(joined.start).take(joined.len()).cloned().collect()
            };
            let Some((place, span)) = stays(contents, set, &joined, at) else {
                looked = Some(SetLookup::Joins(sessions(set)));
                return;
            };
            let kept = item.take().map_or(Ok(()), |item| contents.keep(key, place, item));
            looked = Some(match kept {
                Ok(()) => {
                    let count = |part: &mut C::Part| contents.count(part, span);
                    let (of, event) = ((&*contents, watermark), (key, at));
                    SetLookup::IsIn(rules.join(of, event, set, joined.clone(), count))
                }
                Err(error) => SetLookup::Failed(error, sessions(set)),
            });
        })?;
        let joined = match looked {
            Some(SetLookup::IsIn(joined)) => {
                joined.into_iter().for_each(|joined| self.rest.follow(&mut self.timers, joined));
                return Ok(());
            }
            // The set was in use, and gave no memory up. It does if the event is kept first.
            Some(SetLookup::Failed(error, joined)) if error.kind() == ErrorKind::OverBudget => {
                item = Some(again(&self.contents));
                joined
            }
            Some(SetLookup::Failed(error, _)) => return Err(error),
            Some(SetLookup::Joins(joined)) => joined,
            None => SmallVec::new(),
        };
        let Some(item) = item else { unreachable!("an event that joins others is kept below") };
        self.keep_beside(at, key, item, joined)?;
        if self.enter(out).is_err() {
            // The next call goes on with it, and says why if it cannot.
            self.progress.busy.set(true);
        }
        Ok(())
    }

    /// Keeps an event that begins a key's set, or joins these sessions; it is entering then.
    fn keep_beside(
        &mut self,
        at: Time,
        key: &K,
        item: C::Item,
        joined: SmallVec<[Session<C::Part>; 1]>,
    ) -> Result<()> {
        let mut old_rows = Vec::new();
        // What is to be taken back has to be read before it is joined.
        for old in joined.iter().filter(|old| old.2.1) {
            let note = &mut |_: &K, window, row, diff| old_rows.push((window, row, diff));
            let span = (old.0, old.1);
            self.contents.tell(key, (self.rules.window(span), old.1), &old.3, -1, note)?;
        }
        let first = joined.first().map_or(at, |first| first.0.min(at));
        let span = (first, joined.last().map_or(at, |last| last.1.max(at)));
        let mut joined: SmallVec<[Time; 1]> =
            joined.iter().map(|old| self.contents.place(old.1, &old.3)).collect();
        let kept = joined.pop().unwrap_or_else(|| self.contents.place_of(span));
        self.contents.keep(key, kept, item)?;
        let key = key.clone();
        self.entering = Some(EnteringEvent { at, key, span, kept, joined, old_rows });
        Ok(())
    }

    /// Lets the event that is on its way into its session. After an error the next call goes on.
    pub(super) fn enter(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        let Some(entering) = &mut self.entering else { return Ok(()) };
        // The last first: what is moved comes before what is there. The place of the whole session may be that
        // of one of them, which has left it by then.
        while let Some(place) = entering.joined.last() {
            self.contents.move_before(&entering.key, *place, entering.kept)?;
            entering.joined.pop();
        }
        let (rules, contents) = (self.rules, &mut self.contents);
        let (span, at, key) = (entering.span, entering.at, &entering.key);
        contents.move_before(key, entering.kept, contents.place_of(span))?;
        let of = (rules, &*contents, self.progress.watermark.get());
        let count = &|part: &mut C::Part| of.1.count(part, span);
        let joined = let_into(of, &mut *self.sets, (key, at), count)?;
        if let Some(EnteringEvent { key, old_rows, .. }) = self.entering.take() {
            old_rows.into_iter().for_each(|(window, row, diff)| out(&key, window, row, diff));
        }
        if let Some(mut joined) = joined {
            // They were read before.
            joined.taken_back.clear();
            self.rest.follow(&mut self.timers, joined);
        }
        Ok(())
    }
}
