//! Whether slices that are read together have room in memory once they are loaded.
//!
//! What pages of the directory take is summed, so that nobody goes over all packed slices: a sum over any stretch of times
//! looks at the slices of the pages at its two ends. Whoever asks for times that rise looks at each page once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

use alluvium_pagestore::Time;

use super::slices::PAGE_SLICES;
use super::{LOADED_BYTES, LOADED_SHARE, PackedState, SLICE_MOST_SHARE, SliceDirectory};

/// What slices take once they are loaded, summed up to each page of the directory. Its memory is booked with the pages.
#[derive(Debug, Default)]
pub(super) struct PageSums {
    /// The time of a page's first slice, and what the slices before it take.
    pages: Vec<(Time, u64)>,
    all: u64,
    /// Slices and pages that were looked at.
    looked_at: Cell<u64>,
}

impl PageSums {
    /// Sums all pages.
    pub fn count(&mut self, directory: &SliceDirectory) {
        self.pages.clear();
        self.pages.reserve_exact(directory.page_sums().len());
        self.all = 0;
        self.looked_at.set(self.looked_at.get() + directory.page_sums().len() as u64);
        for (first, slices, bytes) in directory.page_sums() {
            self.pages.push((first, self.all));
            self.all += bytes + slices * LOADED_BYTES;
        }
    }

    /// Slices and pages that were looked at since it was made.
    pub fn looked_at(&self) -> u64 {
        self.looked_at.get()
    }
}

/// Sums up to a time.
struct SumsUpTo<'p> {
    sums: &'p PageSums,
    directory: &'p SliceDirectory,
    /// The page that was looked at last, and what the slices up to each of its slices take, that one among them.
    page: Option<usize>,
    slices: Vec<(Time, u64)>,
}

impl<'p> SumsUpTo<'p> {
    fn of(sums: &'p PageSums, directory: &'p SliceDirectory) -> Self {
        Self { sums, directory, page: None, slices: Vec::new() }
    }

    /// What all slices up to a time take, those of that time too.
    fn sum(&mut self, time: Time) -> u64 {
        let Self { sums, directory, .. } = *self;
        let Some(at) = sums.pages.partition_point(|(first, _)| *first <= time).checked_sub(1)
        else {
            return 0;
        };
        let (first, mut sum) = sums.pages[at];
        if self.page != Some(at) {
            self.page = Some(at);
            self.slices.clear();
            self.slices.reserve_exact(PAGE_SLICES);
            for (time, slice) in directory.slices_of(first) {
                sum += directory.loaded(slice.bytes) + LOADED_BYTES;
                self.slices.push((time, sum));
            }
            sums.looked_at.set(sums.looked_at.get() + self.slices.len() as u64);
        }
        let count = self.slices.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).map_or(sums.pages[at].1, |last| self.slices[last].1)
    }
}

/// What slices of a batch take once they are loaded, at most: summed up to each, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct LoadingMemory(Vec<(Time, u64)>);

impl LoadingMemory {
    /// More comes of the last slice or of a later one.
    pub fn push(&mut self, time: Time, bytes: u64) {
        let sum = self.0.last().map_or(0, |(_, sum)| *sum);
        self.0.push((time, sum + bytes));
    }

    /// What comes of some times.
    pub fn within(&self, times: &RangeInclusive<Time>) -> u64 {
        let upto = |end: usize| end.checked_sub(1).map_or(0, |last| self.0[last].1);
        let from = self.0.partition_point(|(time, _)| time < times.start());
        let to = self.0.partition_point(|(time, _)| time <= times.end());
        upto(to.max(from)) - upto(from)
    }
}

/// Looks whether slices have room beside what is packed, for times that rise.
pub(in crate::append_log) struct PackedRoom<'p> {
    packed: &'p PackedState,
    limit: u64,
    before: SumsUpTo<'p>,
    own: SumsUpTo<'p>,
    upto: SumsUpTo<'p>,
}

impl<'p> PackedRoom<'p> {
    pub fn of(packed: &'p PackedState) -> Self {
        let upto = || SumsUpTo::of(&packed.sums, &packed.directory);
        let limit = packed.account.limit();
        Self { packed, limit, before: upto(), own: upto(), upto: upto() }
    }

    /// Whether what is packed of slices that are read `together` has room in memory with so much more of one of them,
    /// beside so much that is taken already and what is being packed; and whether the slice itself is small enough to be
    /// read part by part.
    pub fn has(
        &mut self,
        together: RangeInclusive<Time>,
        (time, more): (Time, u64),
        taken: u64,
    ) -> bool {
        let Self { packed, limit, .. } = *self;
        let own = self.own.sum(time) - earlier(&mut self.own, time);
        let directory = &packed.directory;
        // It takes no more than a part of it, however much is packed of it.
        let most = directory.loaded(u64::MAX).saturating_add(LOADED_BYTES);
        let more = more.min(most.saturating_sub(own));
        let is_paged = own >= most;
        if is_paged && directory.get(time).is_some_and(|own| own.bytes > limit / SLICE_MOST_SHARE) {
            return false;
        }
        let packed_there =
            self.upto.sum(*together.end()) - earlier(&mut self.before, *together.start());
        let going = packed.going.iter().map(|batch| batch.coming.within(&together));
        packed_there + going.sum::<u64>() + taken + more <= limit / LOADED_SHARE
    }
}

/// What slices before a time take.
fn earlier(upto: &mut SumsUpTo<'_>, time: Time) -> u64 {
    time.0.checked_sub(1).map_or(0, |last| upto.sum(Time(last)))
}

impl PackedState {
    /// Slices that are less than this apart are read together: counts what they take then.
    pub fn count_loaded(&mut self, span: i128) {
        self.sums.count(&self.directory);
        let mut most = self.account.limit() / LOADED_SHARE;
        let all = || self.directory.within(Time::MIN..=Time::MAX);
        let (mut first, mut sum) = (all().peekable(), 0);
        for (time, slice) in all() {
            sum += self.directory.loaded(slice.bytes) + LOADED_BYTES;
            let is_apart = |from: Time| i128::from(time.0) - i128::from(from.0) >= span;
            while let Some((_, gone)) = first.next_if(|(from, _)| is_apart(*from)) {
                sum -= self.directory.loaded(gone.bytes) + LOADED_BYTES;
            }
            most = most.max(sum);
        }
        self.loaded_most = most;
    }
}

/// The greatest of the last numbers, some of which leave at the front. Cost of all calls: O(numbers).
#[derive(Debug, Default)]
pub(in crate::append_log) struct SlidingMax(VecDeque<(usize, u64)>);

impl SlidingMax {
    /// The `nth` number has come.
    pub fn push(&mut self, nth: usize, number: u64) {
        while self.0.back().is_some_and(|(_, last)| *last <= number) {
            self.0.pop_back();
        }
        self.0.push_back((nth, number));
    }

    /// The greatest of those from this one on.
    pub fn from(&mut self, nth: usize) -> u64 {
        while self.0.front().is_some_and(|(first, _)| *first < nth) {
            self.0.pop_front();
        }
        self.0.front().map_or(0, |(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PackedSlice;
    use super::*;
    use alluvium_pagestore::hash_word;

    /// A directory of slices at these times.
    fn directory_of(times: impl Iterator<Item = u64>) -> SliceDirectory {
        let mut directory = SliceDirectory::default();
        for (nth, time) in times.enumerate() {
            let bytes = 64 * (hash_word(nth as u64) % 50);
            directory.add(Time(time as i64), PackedSlice { elements: 1, bytes, since: 0 });
        }
        directory
    }

    #[test]
    fn sums_are_those_of_all_slices() {
        for (spread, count) in [(50, 20), (5_000, 2_000), (u64::MAX, 1_000), (1, 0)] {
            let directory = directory_of((0..count).map(|nth| hash_word(nth) % spread));
            let mut sums = PageSums::default();
            sums.count(&directory);
            let all: Vec<_> = directory.within(Time::MIN..=Time::MAX).collect();
            let slow = |to: Time| {
                let upto = all.iter().filter(|(time, _)| *time <= to);
                upto.map(|(_, slice)| slice.bytes + LOADED_BYTES).sum::<u64>()
            };
            let mut times: Vec<_> =
                (0..300).map(|n| Time((hash_word(!n) % spread) as i64)).collect();
            times.extend(all.iter().map(|(time, _)| *time).take(100));
            times.extend([Time::MIN, Time::MAX]);
            let (mut rises, mut jumps) = (times.clone(), SumsUpTo::of(&sums, &directory));
            assert!(times.iter().all(|time| jumps.sum(*time) == slow(*time)));
            rises.sort_unstable();
            let (before, mut rising) = (sums.looked_at(), SumsUpTo::of(&sums, &directory));
            assert!(rises.iter().all(|time| rising.sum(*time) == slow(*time)));
            assert!(sums.looked_at() - before <= all.len() as u64, "each page once");
        }
    }

    #[test]
    fn what_comes_is_summed_by_times() {
        let all: Vec<(Time, u64)> =
            (0..200).map(|nth| (Time(nth / 2 * 3), hash_word(nth as u64) % 99)).collect();
        let mut coming = LoadingMemory::default();
        all.iter().for_each(|(time, bytes)| coming.push(*time, *bytes));
        for from in (-5..310).step_by(4) {
            for to in from - 3..from + 20 {
                let times = Time(from)..=Time(to);
                let slow = all.iter().filter(|(time, _)| times.contains(time));
                assert_eq!(coming.within(&times), slow.map(|(_, bytes)| bytes).sum::<u64>());
            }
        }
    }

    #[test]
    fn the_greatest_of_the_last_is_told() {
        let numbers: Vec<u64> = (0..500).map(|nth| hash_word(nth) % 40).collect();
        let (mut greatest, mut from) = (SlidingMax::default(), 0);
        for (nth, number) in numbers.iter().enumerate() {
            greatest.push(nth, *number);
            from = (from + hash_word(nth as u64) as usize % 3).min(nth);
            assert_eq!(Some(greatest.from(from)), numbers[from..=nth].iter().max().copied());
        }
    }
}
