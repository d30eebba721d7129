//! What is kept of sessions: an accumulator, or the events themselves.

use std::marker::PhantomData;

use alluvium_layouts::Lists;
use alluvium_pagestore::{Key, Result, State, Time};

use super::Window;
use super::contents::Out;
use super::holistic::Process;
use super::reach::SessionSpan;
use crate::api::aggregate::Aggregate;
use crate::cells::ListsCell;
use crate::cells::cell_handle::CellHandle;
use crate::cells::recording::Access;

/// What is kept of sessions: an accumulator in the set of the key, or events beside it.
pub(crate) trait SessionContents<K: Key>: 'static {
    /// What comes in.
    type Element: 'static;
    /// An event that has to wait before it may come in.
    type Item: State;
    /// What stands in the set of sessions.
    type Part: State;
    /// What comes out.
    type Row: 'static;

    /// Whether events are kept beside the set, by [`keep`](SessionContents::keep).
    const KEEPS: bool;

    fn item(&self, element: &Self::Element) -> Self::Item;

    /// The part of a session without events.
    fn begin(&self) -> Self::Part;

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

    /// Adds an event as it comes in. Only where none is kept.
    fn add(&self, _part: &mut Self::Part, _element: &Self::Element) {}

    /// Adds an event that has waited. Only where none is kept.
    fn put(&self, _part: &mut Self::Part, _item: &Self::Item) {}

    /// Keeps an event at a place, after those that are kept there.
    fn keep(&mut self, _key: &K, _place: Time, _item: Self::Item) -> Result<()> {
        Ok(())
    }

    /// Counts an event that is kept, in a session that is then as long.
    fn count(&self, _part: &mut Self::Part, _span: SessionSpan) {}

    /// Where the events of a session are kept, whose last event is at `last`.
    fn place(&self, _last: Time, _part: &Self::Part) -> Time {
        Time::MIN
    }

    /// Where those of a session are kept that has taken an event, and is now as long.
    fn place_of(&self, _span: SessionSpan) -> Time {
        Time::MIN
    }

    /// What is kept of a key at one place goes before what is kept at another. Changes nothing if it was called
    /// before.
    fn move_before(&mut self, _key: &K, _from: Time, _to: Time) -> Result<()> {
        Ok(())
    }

    /// A session is closed, whose last event was at `last`: what is kept beside the set may go.
    fn forget(&mut self, _key: &K, _last: Time, _part: &Self::Part) -> Result<()> {
        Ok(())
    }

    fn prefetch(&mut self, _until: Time) -> Result<()> {
        Ok(())
    }

    /// Sessions that end before this are gone; says whether nothing is left of them.
    fn purge(&mut self, _before: Time, _fuel: usize) -> Result<bool> {
        Ok(true)
    }
}

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
}

/// The events of sessions, in lists that are named by about when the session ends.
///
/// A list moves when its session has outgrown the name. The longer a session is, the wider are the buckets that it
/// moves between: of one that is 2^n gaps long they are 2^n gaps wide, so that an event is moved a few times,
/// however long its session becomes. [`Part`](SessionContents::Part) has that n, the level, beside the number of events.
pub(crate) struct KeptSessions<K, E, F, L> {
    pub(crate) process: F,
    pub(crate) places: SessionBuckets,
    pub(crate) lists: CellHandle<ListsCell<K, E, L>>,
}

/// The level in the part of a session; below it is how many events there are.
const LEVEL_SHIFT: u32 = 56;

/// The buckets of sessions with this gap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionBuckets {
    pub(crate) gap: i64,
}

impl SessionBuckets {
    /// The bucket of a session at a level, whose last event is at `last`: the multiple of its width after that, and the
    /// level. No two sessions of a key meet in one: at a level above 0 they are longer than a bucket is wide, and levels
    /// are less than the gap. At level 0 their events are more than the gap apart, also where their ends are after the
    /// end of time, and only the last bucket can be named by that.
    fn bucket(self, last: Time, level: u32) -> Time {
        super::clipped(self.name(last, level))
    }

    fn name(self, last: Time, level: u32) -> i128 {
        let width = i128::from(self.gap) << level;
        let floor = match i64::try_from(width) {
            Ok(width) => i128::from(last.0.div_euclid(width)) * i128::from(width),
            Err(_) => i128::from(last.0).div_euclid(width) * width,
        };
        floor + width + i128::from(level)
    }

    /// The level of a session from its first to its last event: 0 of one that is shorter than two gaps.
    fn level(self, (first, last): SessionSpan) -> u32 {
        let gaps = last.0.wrapping_sub(first.0) as u64 / self.gap as u64;
        let least = u64::try_from(self.gap - 1).unwrap_or(0);
        let mut level =
            gaps.checked_ilog2().unwrap_or(0).min(least.min(u64::from(u32::MAX)) as u32);
        // The end of time is no name.
        while level > 0 && self.name(last, level) >= i128::from(Time::MAX.0) {
            level -= 1;
        }
        level
    }

    /// Buckets before this one are over at a time before which sessions have closed.
    fn over(self, before: Time) -> Time {
        match before {
            Time::MAX => Time::MAX,
            _ => Time(before.0.div_euclid(self.gap).saturating_mul(self.gap)),
        }
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

    fn place(&self, last: Time, part: &u64) -> Time {
        self.places.bucket(last, (part >> LEVEL_SHIFT) as u32)
    }

    fn place_of(&self, span: SessionSpan) -> Time {
        self.places.bucket(span.1, self.places.level(span))
    }

    fn keep(&mut self, key: &K, place: Time, item: E) -> Result<()> {
        let recorder = self.lists.recorder();
        let bytes = recorder.map_or(0, |_| size_of::<E>() + item.heap_bytes());
        self.lists.enter_for(1)?.append(place, key, item)?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Merge, key, Some(place), bytes as u64);
        }
        Ok(())
    }

    fn move_before(&mut self, key: &K, from: Time, to: Time) -> Result<()> {
        match from == to {
            true => Ok(()),
            false => self.lists.enter()?.relocate(from, to, key),
        }
    }

    fn begin(&self) -> u64 {
        0
    }

    fn count(&self, part: &mut u64, span: SessionSpan) {
        *part = (count_of(*part) + 1) | (u64::from(self.places.level(span)) << LEVEL_SHIFT);
    }

    fn join(&self, part: &mut u64, later: &u64) {
        *part += count_of(*later);
    }

    fn tell(
        &mut self,
        key: &K,
        (window, last): (Window, Time),
        part: &u64,
        diff: i64,
        out: Out<'_, K, F::Row>,
    ) -> Result<()> {
        let bucket = SessionContents::<K>::place(self, last, part);
        let process = &mut self.process;
        if let Some(recorder) = self.lists.recorder() {
            recorder.record(Access::Get, key, Some(bucket), 0);
        }
        self.lists.run(0, |lists| {
            lists.stream(bucket, key, &mut |elements| {
                process.process(key, window, elements, &mut |row| out(key, window, row, diff))
            })
        })?
    }

    fn forget(&mut self, key: &K, last: Time, part: &u64) -> Result<()> {
        let bucket = SessionContents::<K>::place(self, last, part);
        self.lists.enter()?.clear_key(bucket, key)?;
        if let Some(recorder) = self.lists.recorder() {
            recorder.record(Access::Delete, key, Some(bucket), 0);
        }
        Ok(())
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.lists.enter()?.prefetch(until)
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        let over = self.places.over(before);
        if let Some(recorder) = self.lists.recorder() {
            recorder.record_purge(over);
        }
        self.lists.enter()?.purge(over, fuel)
    }
}

/// How many events a session has, of which this is the part.
fn count_of(part: u64) -> u64 {
    part & ((1 << LEVEL_SHIFT) - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Numbers that look like chance.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: i64) -> i64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as i64 % limit
        }
    }

    #[test]
    fn a_session_that_grows_moves_its_events_a_few_times_however_long_it_becomes() {
        let (places, mut bucket, mut moved) = (SessionBuckets { gap: 100 }, Time::MIN, 0);
        let events = 100_000;
        for last in 0..events {
            let span = (Time(0), Time(last * 10));
            let now = places.bucket(span.1, places.level(span));
            if now != bucket {
                (bucket, moved) = (now, moved + last);
            }
        }
        assert!(moved < 8 * events, "{moved} of {events}");
    }

    #[test]
    fn no_two_sessions_of_a_key_have_one_bucket_and_none_is_over_before_it_closes() {
        let mut dice = Dice(7);
        for gap in [1, 2, 3, 64, 1_000] {
            let places = SessionBuckets { gap };
            for start in [-5_000, 0, Time::MAX.0 - 90 * gap] {
                let (mut at, mut taken) = (start, BTreeSet::new());
                for _ in 0..60 {
                    let gaps = 1 << dice.below(7);
                    let length = dice.below(gaps) * gap + dice.below(gap + 1);
                    let Some(last) = at.checked_add(length) else { break };
                    let span = (Time(at), Time(last));
                    let level = places.level(span);
                    let bucket = places.bucket(span.1, level);
                    assert!(taken.insert(bucket), "gap {gap}, {span:?} at level {level}");
                    // It takes events until the gap after its last one has passed.
                    let open = Time(last.saturating_add(gap));
                    let over = places.over(open);
                    assert!(open == Time::MAX || bucket >= over, "gap {gap}, {span:?}: {bucket:?}");
                    let Some(next) = last.checked_add(gap + 1 + dice.below(3 * gap)) else { break };
                    at = next;
                }
            }
        }
    }
}
