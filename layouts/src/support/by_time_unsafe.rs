//! Values by event time. Their order is compiled once, whatever they are: a B-tree of values of its own takes each type
//! 14 KB of machine code.
//!
//! What it keeps true: each place in the tree points to a value of the map's type, which the map owns and nothing else
//! points to.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Bound;
use std::ptr::NonNull;

use alluvium_pagestore::{Result, Time, rounded};

use super::first_panic::FirstPanic;
use super::out_of_line_unsafe::{DroppedHere, drop_here};
use super::tree_bytes::tree_bytes;

/// Values by time. A look-up costs O(log n), a visit of all O(n).
pub struct ByTime<T> {
    places: DroppedHere<TimeIndex>,
    values: PhantomData<Box<T>>,
}

/// Where the values are.
struct TimeIndex(BTreeMap<Time, NonNull<u8>>);

drop_here!(TimeIndex);

impl TimeIndex {
    #[inline(never)]
    fn get(&self, time: Time) -> Option<NonNull<u8>> {
        self.0.get(&time).copied()
    }

    #[inline(never)]
    fn insert(&mut self, time: Time, value: NonNull<u8>) -> Option<NonNull<u8>> {
        self.0.insert(time, value)
    }

    #[inline(never)]
    fn remove(&mut self, time: Time) -> Option<NonNull<u8>> {
        let removed = self.0.remove(&time);
        if self.0.is_empty() {
            // It keeps a node otherwise.
            self.0 = BTreeMap::new();
        }
        removed
    }

    #[inline(never)]
    fn next(&self, range: (Bound<Time>, Bound<Time>)) -> Option<(Time, NonNull<u8>)> {
        self.0.range(range).next().map(|(time, value)| (*time, *value))
    }

    #[inline(never)]
    fn walk(&self, range: (Bound<Time>, Bound<Time>)) -> TimeIter<'_> {
        TimeIter(self.0.range(range))
    }

    #[inline(never)]
    fn times(&self) -> Vec<Time> {
        self.0.keys().copied().collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Places in order.
struct TimeIter<'a>(btree_map::Range<'a, Time, NonNull<u8>>);

impl TimeIter<'_> {
    #[inline(never)]
    fn next(&mut self) -> Option<(Time, NonNull<u8>)> {
        self.0.next().map(|(time, value)| (*time, *value))
    }
}

/// All times from this one on.
fn from(time: Time) -> (Bound<Time>, Bound<Time>) {
    (Bound::Included(time), Bound::Unbounded)
}

// SAFETY: in all of these a place points to a value that `insert` has boxed, and that is in the map until its place is
// removed. A value is borrowed as long as the map is.
impl<T> ByTime<T> {
    /// Returns the most that so many entries take, without what the values own.
    pub const fn memory_bytes(len: usize) -> u64 {
        tree_bytes::<Time, NonNull<u8>>(len) + (len * rounded(size_of::<T>())) as u64
    }

    /// Returns whether so many bytes for each entry are always enough.
    pub(crate) const fn fits_in(entry_bytes: u64) -> bool {
        // The first one takes a whole node; from eleven on there are several, that may be half full.
        let mut len = 1;
        while len <= 100 {
            if Self::memory_bytes(len) > len as u64 * entry_bytes {
                return false;
            }
            len += 1;
        }
        true
    }

    /// Makes an empty map, which takes no memory.
    pub fn new() -> Self {
        Self { places: DroppedHere::new(TimeIndex(BTreeMap::new())), values: PhantomData }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a time.
    #[inline]
    pub fn get(&self, time: Time) -> Option<&T> {
        // SAFETY: as said above.
        self.places.get(time).map(|value| unsafe { value.cast::<T>().as_ref() })
    }

    /// Returns the value of a time, mutable.
    #[inline]
    pub fn get_mut(&mut self, time: Time) -> Option<&mut T> {
        // SAFETY: as said above.
        self.places.get(time).map(|value| unsafe { value.cast::<T>().as_mut() })
    }

    /// Returns whether a time has a value.
    pub fn has(&self, time: Time) -> bool {
        self.places.get(time).is_some()
    }

    /// Puts a value where there was none.
    ///
    /// # Panics
    /// If there was one.
    pub fn insert(&mut self, time: Time, value: T) -> &mut T {
        assert!(!self.has(time), "a time without a value");
        let mut value = NonNull::from(Box::leak(Box::new(value)));
        self.places.insert(time, value.cast());
        // SAFETY: it is in the map, which is borrowed.
        unsafe { value.as_mut() }
    }

    /// Returns the value of a time, which is made if there is none. One look-up if there is.
    #[inline]
    pub fn get_or_insert(
        &mut self,
        time: Time,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<&mut T> {
        match self.places.get(time) {
            // SAFETY: as said above.
            Some(value) => Ok(unsafe { value.cast::<T>().as_mut() }),
            None => Ok(self.insert(time, make()?)),
        }
    }

    /// Removes the value of a time.
    pub fn remove(&mut self, time: Time) -> Option<T> {
        let value = self.places.remove(time)?;
        // SAFETY: it was boxed, and is the map's no more.
        Some(*unsafe { Box::from_raw(value.cast::<T>().as_ptr()) })
    }

    /// Returns the first time.
    pub fn first(&self) -> Option<Time> {
        self.places.next((Bound::Unbounded, Bound::Unbounded)).map(|(time, _)| time)
    }

    /// Removes the first value before a time.
    pub fn pop_before(&mut self, before: Time) -> Option<(Time, T)> {
        let (time, _) = self.places.next((Bound::Unbounded, Bound::Excluded(before)))?;
        Some((time, self.remove(time)?))
    }

    /// Removes the first value.
    pub fn pop_first(&mut self) -> Option<(Time, T)> {
        let (time, _) = self.places.next((Bound::Unbounded, Bound::Unbounded))?;
        Some((time, self.remove(time)?))
    }

    /// Returns all times, in order.
    pub fn times(&self) -> Vec<Time> {
        self.places.times()
    }

    /// Iterates over the values of some times, in order.
    pub fn range(&self, range: (Bound<Time>, Bound<Time>)) -> impl Iterator<Item = (Time, &T)> {
        let mut walk = self.places.walk(range);
        std::iter::from_fn(move || {
            let (time, value) = walk.next()?;
            // SAFETY: as said above.
            Some((time, unsafe { value.cast::<T>().as_ref() }))
        })
    }

    /// Iterates over the values from a time on, in order.
    pub fn range_from(&self, time: Time) -> impl Iterator<Item = (Time, &T)> {
        self.range(from(time))
    }

    /// Iterates over all values, in order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.range_from(Time::MIN).map(|(_, value)| value)
    }

    /// Shows all values, in order.
    pub fn for_each_mut(&mut self, see: &mut dyn FnMut(&mut T)) {
        self.for_each_after(None, see);
    }

    /// Shows the values after a time, in order; all if there is none.
    pub fn for_each_after(&mut self, time: Option<Time>, see: &mut dyn FnMut(&mut T)) {
        let after = time.map_or(Bound::Unbounded, Bound::Excluded);
        let mut walk = self.places.walk((after, Bound::Unbounded));
        while let Some((_, value)) = walk.next() {
            // SAFETY: as said above; nobody has another reference to the value.
            see(unsafe { value.cast::<T>().as_mut() });
        }
    }
}

impl<T> Default for ByTime<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for ByTime<T> {
    fn drop(&mut self) {
        let mut panic = FirstPanic::default();
        while let Some((_, value)) = self.pop_first() {
            panic.catch(|| drop(value));
        }
        panic.resume();
    }
}

impl<T: fmt::Debug> fmt::Debug for ByTime<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.range_from(Time::MIN)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    const TIMES: [i64; 7] = [i64::MIN, -1, 0, 1, 2, 7, i64::MAX];

    fn bounds(range: &Range<i64>) -> (Bound<Time>, Bound<Time>) {
        (Bound::Included(Time(range.start)), Bound::Excluded(Time(range.end)))
    }

    /// What an ordinary B-tree does with the same calls.
    #[test]
    fn it_does_what_a_tree_of_values_does() {
        let mut random = 7u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % below
        };
        let (mut map, mut model) = (ByTime::new(), BTreeMap::new());
        for step in 0..if cfg!(miri) { 60 } else { 5000 } {
            let time = Time(TIMES[next(TIMES.len())]);
            match next(5) {
                0 | 1 => {
                    if !map.has(time) && step % 2 == 0 {
                        *map.insert(time, vec![step]) = vec![step, 1];
                        model.insert(time, vec![step, 1]);
                    } else {
                        let made = map.get_or_insert(time, || Ok(vec![step]));
                        made.unwrap().push(2);
                        model.entry(time).or_insert_with(|| vec![step]).push(2);
                    }
                }
                2 => assert_eq!(map.remove(time), model.remove(&time)),
                3 if next(4) == 0 => {
                    let rest = model.split_off(&time);
                    for gone in std::mem::replace(&mut model, rest) {
                        assert_eq!(map.pop_before(time), Some(gone));
                    }
                    assert_eq!(map.pop_before(time), None);
                }
                _ => {
                    map.for_each_mut(&mut |value| value.push(step));
                    model.values_mut().for_each(|value| value.push(step));
                    if let Some(value) = map.get_mut(time) {
                        value.pop();
                        model.get_mut(&time).unwrap().pop();
                    }
                }
            }
            assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(map.times(), model.keys().copied().collect::<Vec<_>>());
            assert!(map.values().eq(model.values()));
            assert_eq!(
                (map.get(time), map.first()),
                (model.get(&time), model.keys().next().copied())
            );
            assert!(map.range_from(time).eq(model.range(time..).map(|(time, v)| (*time, v))));
            let range = bounds(&(-1..TIMES[next(5) + 2]));
            assert!(map.range(range).eq(model.range(range).map(|(time, v)| (*time, v))));
            let mut after = Vec::new();
            map.for_each_after(Some(time), &mut |value| after.push(value.clone()));
            assert!(
                after
                    .iter()
                    .eq(model.range((Bound::Excluded(time), Bound::Unbounded)).map(|(_, v)| v))
            );
        }
    }

    struct Counted(Rc<Cell<usize>>, bool);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            assert!(!self.1, "planned");
        }
    }

    #[test]
    fn each_value_is_dropped_once_also_if_one_panics() {
        let dropped = Rc::new(Cell::new(0));
        let mut map = ByTime::new();
        for time in 0..40 {
            map.insert(Time(time), Counted(dropped.clone(), time % 16 == 3));
        }
        drop(map.remove(Time(0)));
        let all = catch_unwind(AssertUnwindSafe(|| drop(map)));
        assert!(all.is_err());
        assert_eq!(dropped.get(), 40);
    }
}
