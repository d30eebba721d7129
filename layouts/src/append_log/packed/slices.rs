//! Which slices are packed: their times, and of each how many elements and bytes its packed lists have.
//!
//! Slices stand in the order of their times in pages of some hundred, each [coded](super::slice_codes) in a few bits: what
//! differs from the slice before. Pages are shared with checkpoints that are being taken, and never changed.
//!
//! What it keeps true: a record of a packed slice counts if the slice is here and the record is not older than it.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use alluvium_pagestore::{Error, ErrorKind, Result, Time};

use super::slice_codes::{CodedSlices, coded, slices_told, told};

/// Most slices of a page.
pub(super) const PAGE_SLICES: usize = 256;
/// Most slices that a checkpoint tells in a record.
const TOLD_SLICES: usize = 128;
/// Bytes booked for a page beside what is coded.
const PAGE_BYTES: u64 = 208;
/// Bytes of a slice are counted in units of this.
pub(super) const UNIT_BYTES: u64 = 64;

/// What is known of a packed slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedSlice {
    pub elements: u64,
    /// Bytes that its records take in memory when they are read, about.
    pub bytes: u64,
    /// Records of runs with a lower number are of a slice of the same time that is gone.
    pub since: u64,
}

#[derive(Clone, Debug)]
struct SlicesPage {
    coded: Arc<[u8]>,
    slices: u32,
    last: Time,
    /// Bytes that its slices take once they are loaded.
    bytes: u64,
}

impl SlicesPage {
    /// Its slices; the first has this time.
    fn all(&self, first: Time) -> CodedSlices<'_> {
        CodedSlices::of(first, &self.coded, self.slices)
    }
}

/// The packed slices.
#[derive(Clone, Debug, Default)]
pub struct SliceDirectory {
    /// No slice takes more than this once it is loaded.
    most: Option<u64>,
    /// By the time of the first slice.
    pages: BTreeMap<Time, SlicesPage>,
    elements: u64,
    slices: u64,
    coded_bytes: u64,
}

impl SliceDirectory {
    /// No slices. Larger ones than this are read part by part, and take so much while they are.
    pub fn loaded_up_to(most: u64) -> Self {
        Self { most: Some(most.next_multiple_of(UNIT_BYTES)), ..Self::default() }
    }

    /// What so many bytes of a slice take once it is loaded.
    pub fn loaded(&self, bytes: u64) -> u64 {
        bytes.min(self.most.unwrap_or(u64::MAX))
    }

    pub fn is_empty(&self) -> bool {
        self.slices == 0
    }

    /// Slices.
    pub fn len(&self) -> u64 {
        self.slices
    }

    /// Elements of all slices.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Bytes that are to be booked for it.
    pub fn memory_bytes(&self) -> u64 {
        self.coded_bytes + self.pages.len() as u64 * PAGE_BYTES
    }

    /// What is known of a slice.
    pub fn get(&self, time: Time) -> Option<PackedSlice> {
        let (first, page) = self.pages.range(..=time).next_back()?;
        if page.last < time {
            return None;
        }
        let found = page.all(*first).find(|(at, _)| *at >= time);
        found.filter(|(at, _)| *at == time).map(|(_, slice)| slice)
    }

    /// The first slice at or after a time.
    pub fn next(&self, from: Time) -> Option<Time> {
        self.within(from..=Time::MAX).next().map(|(time, _)| time)
    }

    /// The slices of a range of times, in order.
    pub fn within(
        &self,
        times: RangeInclusive<Time>,
    ) -> impl Iterator<Item = (Time, PackedSlice)> + '_ {
        let (from, to) = (*times.start(), *times.end());
        let before = self.pages.range(..=from).next_back().map_or(from, |(first, _)| *first);
        // An empty range is none of a map.
        let pages = (from <= to).then(|| self.pages.range(before.min(from)..=to));
        let slices = pages.into_iter().flatten().filter(move |(_, page)| page.last >= from);
        let slices = slices.flat_map(|(first, page)| page.all(*first));
        slices.skip_while(move |(at, _)| *at < from).take_while(move |(at, _)| *at <= to)
    }

    /// Adds elements and bytes to a slice, which is new if it is not there: then it counts from `since` on.
    pub fn add(&mut self, time: Time, more: PackedSlice) {
        self.change(time, |known| {
            Some(match known {
                Some(known) => PackedSlice {
                    elements: known.elements + more.elements,
                    bytes: known.bytes + more.bytes,
                    since: known.since,
                },
                None => more,
            })
        });
    }

    /// [`add`](SliceDirectory::add)s to several slices, which cost least in the order of their times.
    pub fn add_all(&mut self, slices: &[(Time, PackedSlice)]) {
        let mut rest = slices;
        while let Some((first, _)) = rest.first() {
            // Those that come to one page, which is coded once.
            let (page, end) = self.page_for(*first);
            let count = rest.iter().take(PAGE_SLICES / 2);
            let is_here = |(time, _): &&(Time, PackedSlice)| {
                *time >= *first && end.is_none_or(|end| *time < end)
            };
            let (here, after) = rest.split_at(count.take_while(is_here).count().max(1));
            let page = page.and_then(|first| Some((first, self.pages.remove(&first)?)));
            let mut all = page.map_or(Vec::new(), |(first, page)| self.forget(first, page));
            for (time, more) in here {
                let at = all.partition_point(|(known, _)| known < time);
                match all.get_mut(at).filter(|(known, _)| known == time) {
                    Some((_, known)) => {
                        known.elements += more.elements;
                        known.bytes += more.bytes;
                    }
                    None => all.insert(at, (*time, *more)),
                }
            }
            self.put_split(all, here.last().map_or(*first, |(time, _)| *time));
            rest = after;
        }
    }

    /// The first slice of the page that a slice is of or comes to, and that of the next page.
    fn page_for(&self, time: Time) -> (Option<Time>, Option<Time>) {
        let first = self.pages.range(..=time).next_back().map(|(first, _)| *first);
        // One before the first page belongs to it.
        let first = first.or_else(|| self.pages.first_key_value().map(|(first, _)| *first));
        let after =
            (Bound::Excluded(first.map_or(time, |first| first.max(time))), Bound::Unbounded);
        (first, self.pages.range(after).next().map(|(next, _)| *next))
    }

    /// Puts the slices of a page back, to which this one was added or changed last, as several pages if there are many.
    fn put_split(&mut self, mut all: Vec<(Time, PackedSlice)>, last: Time) {
        while all.len() > PAGE_SLICES {
            // A page that grows at its end, as time does, leaves a full one behind.
            let grows = all.last().is_some_and(|(time, _)| *time == last);
            let rest = all.split_off(if grows { PAGE_SLICES } else { PAGE_SLICES / 2 });
            self.put(&all);
            all = rest;
        }
        self.put(&all);
    }

    /// Takes a slice out.
    pub fn remove(&mut self, time: Time) -> Option<PackedSlice> {
        let mut removed = None;
        self.change(time, |known| {
            removed = known;
            None
        });
        removed
    }

    /// Takes the slices before a time out; says how many elements they had.
    pub fn remove_before(&mut self, before: Time) -> u64 {
        let had = self.elements;
        while let Some(entry) = self.pages.first_entry().filter(|entry| *entry.key() < before) {
            let (first, page) = entry.remove_entry();
            let rest = self.forget(first, page);
            let rest: Vec<_> = rest.into_iter().filter(|(at, _)| *at >= before).collect();
            if !rest.is_empty() {
                self.put(&rest);
                break;
            }
        }
        had - self.elements
    }

    /// What a checkpoint tells of the next slices at or after a time: the first and the last of them, and all of them in
    /// bytes.
    pub fn tell(&self, from: Time) -> Option<(RangeInclusive<Time>, Vec<u8>)> {
        let slices: Vec<_> = self.within(from..=Time::MAX).take(TOLD_SLICES).collect();
        let ((first, _), (last, _)) = (slices.first()?, slices.last()?);
        Some((*first..=*last, told(&slices)))
    }

    /// How often there is something to [tell](SliceDirectory::tell), from the first slice on.
    pub fn told_count(&self) -> usize {
        self.slices.div_ceil(TOLD_SLICES as u64) as usize
    }

    /// Of each page the time of its first slice, its slices, and what their bytes take once they are [loaded](Self::loaded).
    pub fn page_sums(&self) -> impl ExactSizeIterator<Item = (Time, u64, u64)> {
        self.pages.iter().map(|(first, page)| (*first, u64::from(page.slices), page.bytes))
    }

    /// The slices of the page that begins at a time.
    pub fn slices_of(&self, first: Time) -> impl Iterator<Item = (Time, PackedSlice)> {
        let page = self.pages.get(&first);
        page.into_iter().flat_map(move |page| page.all(first))
    }

    /// Adds slices that were [told](SliceDirectory::tell), behind all that are there.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they were not.
    pub fn put_told(&mut self, first: Time, bytes: &[u8]) -> Result<()> {
        let mut all = slices_told(first, bytes);
        let is_whole = !all.is_empty()
            && told(&all) == bytes
            && all.is_sorted_by(|(one, _), (next, _)| one < next);
        let is_after = self.pages.last_key_value().is_none_or(|(_, last)| last.last < first);
        if !is_whole || !is_after {
            return Err(Error::new(ErrorKind::Corrupt, "a page of packed slices is damaged"));
        }
        // Pages in memory have more slices than are told at once.
        let has_room = |page: &SlicesPage| page.slices as usize + all.len() <= PAGE_SLICES;
        let last = self.pages.last_entry().filter(|last| has_room(last.get()));
        if let Some((first, page)) = last.map(|last| last.remove_entry()) {
            let mut before = self.forget(first, page);
            before.append(&mut all);
            all = before;
        }
        self.put(&all);
        Ok(())
    }

    fn change(
        &mut self,
        time: Time,
        change: impl FnOnce(Option<PackedSlice>) -> Option<PackedSlice>,
    ) {
        let (first, _) = self.page_for(time);
        let page = first.and_then(|first| Some((first, self.pages.remove(&first)?)));
        let mut all = page.map_or(Vec::new(), |(first, page)| self.forget(first, page));
        let at = all.partition_point(|(known, _)| *known < time);
        let known = all.get(at).filter(|(known, _)| *known == time).map(|(_, slice)| *slice);
        match (known, change(known)) {
            (Some(_), Some(slice)) => all[at].1 = slice,
            (Some(_), None) => drop(all.remove(at)),
            (None, Some(slice)) => all.insert(at, (time, slice)),
            (None, None) => {}
        }
        self.put_split(all, time);
    }

    /// What a page has that was taken out.
    fn forget(&mut self, first: Time, page: SlicesPage) -> Vec<(Time, PackedSlice)> {
        let all: Vec<_> = page.all(first).collect();
        self.coded_bytes -= page.coded.len() as u64;
        self.slices -= u64::from(page.slices);
        self.elements -= all.iter().map(|(_, slice)| slice.elements).sum::<u64>();
        all
    }

    fn put(&mut self, slices: &[(Time, PackedSlice)]) {
        let (Some((first, _)), Some((last, _))) = (slices.first(), slices.last()) else { return };
        let coded = coded(slices);
        self.coded_bytes += coded.len() as u64;
        self.slices += slices.len() as u64;
        self.elements += slices.iter().map(|(_, slice)| slice.elements).sum::<u64>();
        let loaded = |slice: &PackedSlice| self.loaded(slice.bytes.next_multiple_of(UNIT_BYTES));
        let bytes = slices.iter().map(|(_, slice)| loaded(slice)).sum();
        let (slices, last) = (slices.len() as u32, *last);
        self.pages.insert(*first, SlicesPage { coded: coded.into(), slices, last, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::hash_word;

    #[test]
    fn the_directory_answers_like_a_map() {
        for spread in [40, 3_000, u64::MAX] {
            let (mut directory, mut model) = (SliceDirectory::default(), BTreeMap::new());
            let mut dice = 7;
            for round in 0..20_000u64 {
                dice = hash_word(dice);
                let time = Time((dice % spread) as i64);
                match dice >> 60 {
                    0..=9 => {
                        let more =
                            PackedSlice { elements: dice >> 40 & 7, bytes: 64, since: round };
                        match round % 3 {
                            0 => directory.add(time, more),
                            1 => directory.add_all(&[(time, more)]),
                            _ => {
                                // Neighbours and others, in order and not.
                                let next = Time(time.0.wrapping_add((dice >> 20 & 63) as i64));
                                directory.add_all(&[(time, more), (next, more)]);
                                let known = model.entry(next).or_insert(PackedSlice {
                                    elements: 0,
                                    bytes: 0,
                                    since: round,
                                });
                                known.elements += more.elements;
                                known.bytes += 64;
                            }
                        }
                        let known = model.entry(time).or_insert(PackedSlice {
                            elements: 0,
                            bytes: 0,
                            since: round,
                        });
                        known.elements += more.elements;
                        known.bytes += 64;
                    }
                    10..=14 => assert_eq!(directory.remove(time), model.remove(&time)),
                    _ if round % 50 == 0 => {
                        let gone: Vec<_> = model.range(..time).map(|(time, _)| *time).collect();
                        let gone = gone.iter().filter_map(|time| model.remove(time));
                        let elements = gone.map(|slice| slice.elements).sum::<u64>();
                        assert_eq!(directory.remove_before(time), elements);
                    }
                    _ => {
                        let next = model.range(time..).next().map(|(time, _)| *time);
                        assert_eq!(directory.next(time), next);
                    }
                }
                assert_eq!(directory.get(time), model.get(&time).copied());
                assert_eq!(directory.len(), model.len() as u64);
            }
            let all = directory.within(Time::MIN..=Time::MAX);
            assert!(all.eq(model.iter().map(|(time, slice)| (*time, *slice))));
            let elements: u64 = model.values().map(|slice| slice.elements).sum();
            assert_eq!(directory.elements(), elements);
            let mut again = SliceDirectory::default();
            let (mut from, mut count) = (Some(Time::MIN), 0);
            while let Some((times, told)) = from.and_then(|from| directory.tell(from)) {
                let first = *times.start();
                again.put_told(first, &told).unwrap();
                assert!(again.clone().put_told(first, &told).is_err(), "not in order");
                assert!(again.clone().put_told(Time::MAX, &told[1..]).is_err());
                from = times.end().0.checked_add(1).map(Time);
                count += 1;
            }
            assert_eq!(count, directory.told_count());
            assert!(
                again.within(Time::MIN..=Time::MAX).eq(directory.within(Time::MIN..=Time::MAX))
            );
            let (bytes, had) = (again.memory_bytes(), directory.memory_bytes());
            assert!(bytes <= had + had / 16, "{bytes} bytes, {had} before");
        }
    }

    #[test]
    fn a_slice_takes_few_bytes() {
        let mut directory = SliceDirectory::default();
        for second in 0..100_000u64 {
            let slice = PackedSlice { elements: 100, bytes: 12_000, since: second / 300 };
            directory.add(Time(1_700_000_000_000 + second as i64 * 1_000), slice);
        }
        let bytes = directory.memory_bytes() as f64 / 100_000.0;
        assert!(bytes < 1.2, "{bytes} bytes a slice");
    }
}
