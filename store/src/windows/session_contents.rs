//! What is kept of sessions: an accumulator, or the events themselves.

use std::marker::PhantomData;

use alluvium_layouts::Lists;
use alluvium_pagestore::{Key, Result, State, Time};

use super::Window;
use super::contents::Out;
use super::holistic::Process;
use super::sessions::SessionContents;
use crate::aggregate::Aggregate;
use crate::cells::ListsCell;
use crate::held::Held;

/// An accumulator per session, in the key's set.
pub(crate) struct FoldedSessions<E, A> {
    pub(crate) aggregate: A,
    pub(crate) element: PhantomData<E>,
}

impl<K: Key, E: 'static, A: Aggregate<E>> SessionContents<K> for FoldedSessions<E, A> {
    type Element = E;
    type Item = A::Acc;
    type Part = A::Acc;
    type Row = A::Out;
    const KEEPS: bool = false;

    fn item(&self, element: &E) -> A::Acc {
        let mut acc = self.aggregate.init();
        self.aggregate.add(&mut acc, element);
        acc
    }

    fn keep(&mut self, _: &K, _: Time, _: &A::Acc) -> Result<()> {
        Ok(())
    }

    fn move_before(&mut self, _: &K, _: Time, _: Time) -> Result<()> {
        Ok(())
    }

    fn begin(&self) -> A::Acc {
        self.aggregate.init()
    }

    fn add(&self, part: &mut A::Acc, element: &E) {
        self.aggregate.add(part, element);
    }

    fn put(&self, part: &mut A::Acc, item: &A::Acc) {
        self.aggregate.merge(part, item);
    }

    fn join(&self, part: &mut A::Acc, later: &A::Acc) {
        self.aggregate.merge(part, later);
    }

    fn tell(
        &mut self,
        key: &K,
        (window, _): (Window, Time),
        part: &A::Acc,
        diff: i64,
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        if let Some(row) = self.aggregate.out(part) {
            out(key, window, row, diff);
        }
        Ok(())
    }

    fn forget(&mut self, _: &K, _: Time) -> Result<()> {
        Ok(())
    }

    fn prefetch(&mut self, _: Time) -> Result<()> {
        Ok(())
    }

    fn purge(&mut self, _: Time, _: usize) -> Result<bool> {
        Ok(true)
    }
}

/// The events of sessions, in lists by when the session is expected to end: in buckets as long as
/// the gap, so that no two sessions of a key meet in one.
pub(crate) struct KeptSessions<K, E, F, L> {
    pub(crate) process: F,
    pub(crate) gap: i64,
    pub(crate) lists: Held<ListsCell<K, E, L>>,
}

impl<K, E, F, L> KeptSessions<K, E, F, L> {
    /// The bucket of a session whose last event is at `last`, named by the multiple of the gap after that.
    /// Events of two sessions are more than the gap apart, also where their ends are after the end of
    /// time, and only the last bucket can be named by that.
    fn bucket(&self, last: Time) -> Time {
        super::clipped(self.floor(last) + i128::from(self.gap))
    }

    /// The multiple of the gap at or before a time.
    fn floor(&self, at: Time) -> i128 {
        let (at, gap) = (i128::from(at.0), i128::from(self.gap));
        at.div_euclid(gap) * gap
    }
}

impl<K, E, F, L> SessionContents<K> for KeptSessions<K, E, F, L>
where
    K: Key,
    E: State,
    F: Process<K, E>,
    L: Lists<K, E>,
{
    type Element = E;
    type Item = E;
    /// How many there are.
    type Part = u64;
    type Row = F::Row;
    const KEEPS: bool = true;

    fn item(&self, element: &E) -> E {
        element.clone()
    }

    fn keep(&mut self, key: &K, last: Time, item: &E) -> Result<()> {
        let bucket = self.bucket(last);
        Ok(self.lists.enter_for(1)?.append(bucket, key, item.clone())?)
    }

    fn move_before(&mut self, key: &K, from: Time, to: Time) -> Result<()> {
        let (from, to) = (self.bucket(from), self.bucket(to));
        match from == to {
            true => Ok(()),
            false => self.lists.enter()?.relocate(from, to, key),
        }
    }

    fn begin(&self) -> u64 {
        0
    }

    fn add(&self, part: &mut u64, _: &E) {
        *part += 1;
    }

    fn put(&self, part: &mut u64, _: &E) {
        *part += 1;
    }

    fn join(&self, part: &mut u64, later: &u64) {
        *part += later;
    }

    fn tell(
        &mut self,
        key: &K,
        (window, last): (Window, Time),
        _: &u64,
        diff: i64,
        out: Out<'_, K, F::Row>,
    ) -> Result<()> {
        let (bucket, process) = (self.bucket(last), &mut self.process);
        self.lists.run(0, |lists| {
            lists.stream(bucket, key, &mut |elements| {
                process.process(key, window, elements, &mut |row| out(key, window, row, diff))
            })
        })?
    }

    fn forget(&mut self, key: &K, last: Time) -> Result<()> {
        self.lists.enter()?.clear_key(self.bucket(last), key)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.lists.enter()?.prefetch(until)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        // The bucket of the first end that is not before; at the end of time all are over.
        let before = match before {
            Time::MAX => Time::MAX,
            _ => super::clipped(self.floor(before)),
        };
        self.lists.enter()?.purge(before, fuel)
    }
}
