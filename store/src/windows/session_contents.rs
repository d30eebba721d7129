//! What is kept of sessions: an accumulator, or the events themselves.

use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::Lists;
use alluvium_pagestore::{Key, Result, State, Time};

use super::Window;
use super::contents::Out;
use super::holistic::Process;
use super::sessions::{Session, SessionContents};
use crate::aggregate::Aggregate;
use crate::cells::ListsCell;

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
    const PREPARES: bool = false;

    fn item(&self, element: &E) -> A::Acc {
        let mut acc = self.aggregate.init();
        self.aggregate.add(&mut acc, element);
        acc
    }

    fn prepare(&mut self, _: &K, _: &[Session<A::Acc>], _: i64, _: Time, _: &A::Acc) -> Result<()> {
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
        window: Window,
        part: &A::Acc,
        diff: i64,
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        if let Some(row) = self.aggregate.out(part) {
            out(key, window, row, diff);
        }
        Ok(())
    }

    fn forget(&mut self, _: &K, _: Window) -> Result<()> {
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
    pub(crate) lists: Rc<ListsCell<K, E, L>>,
}

impl<K, E, F, L> KeptSessions<K, E, F, L> {
    fn bucket(&self, end: Time) -> Time {
        let (end, gap) = (i128::from(end.0), i128::from(self.gap));
        super::clipped(end.div_euclid(gap) * gap)
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
    const PREPARES: bool = true;

    fn item(&self, element: &E) -> E {
        element.clone()
    }

    fn prepare(
        &mut self,
        key: &K,
        joined: &[Session<u64>],
        gap: i64,
        end: Time,
        item: &E,
    ) -> Result<()> {
        let target = self.bucket(end);
        let mut lists = self.lists.0.enter()?;
        // The last first: what is moved comes before what is there.
        for session in joined.iter().rev() {
            let bucket = self.bucket(session.1.plus(gap));
            if bucket != target {
                lists.relocate(bucket, target, key)?;
            }
        }
        Ok(lists.append(target, key, item.clone())?)
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
        window: Window,
        _: &u64,
        diff: i64,
        out: Out<'_, K, F::Row>,
    ) -> Result<()> {
        let (bucket, process) = (self.bucket(window.end), &mut self.process);
        self.lists.0.run(0, |lists| {
            lists.stream(bucket, key, &mut |elements| {
                process.process(key, window, elements, &mut |row| out(key, window, row, diff))
            })
        })?
    }

    fn forget(&mut self, key: &K, window: Window) -> Result<()> {
        self.lists.0.enter()?.clear_key(self.bucket(window.end), key)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.lists.0.enter()?.prefetch(until)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        self.lists.0.enter()?.purge(self.bucket(before), fuel)
    }
}
