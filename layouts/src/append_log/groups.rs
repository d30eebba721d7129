//! Lists by ranges of hashes: for lists whose key groups come and go.
//!
//! A bucket's tables and runs are all in the order of hashes, so that the lists asked for are found without
//! a look at the others: of tables the parts with their prefixes, of runs the blocks with their hashes. To
//! remove them reads nothing, unless the bucket is [packed](super::packed): what runs have of them is behind a
//! [gap](crate::support::gaps), until they are merged.
//!
//! A list that is longer than the fuel is left in the middle. As long as the cursors are kept it goes on
//! there; after that it is read again from its start, and what was visited is passed over. A cursor's position
//! is the place, its version how many elements were visited there; keys at one place have an order of
//! their own, whatever of them is in memory.

use std::ops::{Range, RangeInclusive};

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result, Time};

use super::block::{ListElements, ListType};
use super::core::ListsCore;
use super::element_type_unsafe::ElementSlice;
use super::fold::{BucketFold, CursorElements, FoldBounds, PausedFold, rest};
use super::frozen::{FrozenElements, LIVE};
use super::gather::GatherStop;
use super::key_unsafe::{KeyRef, OwnedKey, has};
use super::run_cursor::RunCursor;
use crate::contract::lists::span_alone;
use crate::contract::table::Cursor;
use crate::heap::lists::reading::RECORD_ELEMENTS;
use crate::support::gaps::GAP_BYTES;

/// Takes a key, the number of its elements that were visited before, and the next ones.
pub type VisitSlices<'v> = &'v mut dyn FnMut(KeyRef<'_>, u64, ElementSlice<'_>) -> Result<()>;

impl ListsCore {
    /// Visits lists in runs of as many elements as a value may have bytes, or one.
    pub(super) fn visit_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitSlices<'_>,
    ) -> Result<()> {
        let visited = self.visit_lists(bucket, hashes, cursor, fuel, visit);
        self.book_left();
        if self.resume.is_none() && !(visited.is_ok() && self.is_loading()) {
            self.unload_all();
        }
        visited
    }

    pub fn remove_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.leave_fold();
        self.poll()?;
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        let mut removed = 0;
        while !cursor.done && removed < fuel.max(1) {
            if !self.leave_gap(bucket, hashes)? {
                cursor.done = true;
                break;
            }
            let found = self.buckets.get_mut(&bucket).expect("looked up above");
            let place = cursor.position.max(first);
            let memory = found.hashes_bytes(place);
            self.account.charge(MemoryKind::Buffers, memory);
            let (there, next) = found.hashes_at(place, last);
            let mut at = there.iter();
            while removed < fuel.max(1)
                && let Some(hash) = at.next()
            {
                let count = found.remove_hash(*hash);
                self.elements -= count;
                removed += (count as usize).max(1);
            }
            let next = at.next().map(|hash| self.range.place(*hash)).or(next);
            removed += 1;
            drop(there);
            self.account.release(MemoryKind::Buffers, memory);
            cursor.go_on(next);
        }
        self.drop_if_vacant(bucket);
        Ok(removed)
    }
}

impl ListsCore {
    fn visit_lists(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitSlices<'_>,
    ) -> Result<()> {
        self.poll()?;
        if cursor.done || !self.buckets.contains_key(&bucket) && !self.is_packed(bucket) {
            cursor.done = true;
            return Ok(());
        }
        let buckets = self.alone(bucket)?;
        let (first, last) = (self.range.place(*hashes.start()), self.range.place(*hashes.end()));
        cursor.position = cursor.position.max(first);
        let position = (cursor.position, cursor.version);
        let Some((mut cursors, within)) = self.cursors_at(&buckets, position)? else {
            return Ok(());
        };
        let seen = |cursors: &[RunCursor]| -> u64 {
            cursors.iter().map(|cursor| cursor.entries_read).sum()
        };
        let seen_before = seen(&cursors);
        let mut lists = ListVisit {
            visit,
            left: fuel.max(1) as u64,
            skip: if within.is_some() { 0 } else { cursor.version },
            visited: cursor.version,
            within,
            run_bytes: usize::try_from(self.context.max_value_bytes).unwrap_or(usize::MAX),
            failed: None,
        };
        let mut bounds = FoldBounds { fuel, last, looked_at: 0 };
        let folded = self.fold_from(
            &buckets,
            cursor,
            &mut bounds,
            &mut cursors,
            |walk, place, pieces, c| lists.visit_place(walk, place, pieces, c),
        );
        let ListVisit { visited, within, failed, .. } = lists;
        cursor.version = visited;
        self.stats.sought += bounds.looked_at + seen(&cursors) - seen_before;
        self.count_reads(&mut cursors);
        if cursor.done
            && let Some(packed) = &mut self.packed
        {
            packed.has_folded(&buckets);
        }
        folded?;
        if !cursor.done {
            let position = (cursor.position, visited);
            let merges = self.merges_of_levels();
            self.resume = Some(PausedFold { buckets, position, cursors, within, merges });
        }
        failed.map_or(Ok(()), Err)
    }
}

impl ListsCore {
    /// Hides what the runs of a bucket have of keys with these hashes; says whether there is such a bucket.
    /// Done at each step, as lists that are still in memory may have become a run since the last one.
    fn leave_gap(&mut self, bucket: Time, hashes: &RangeInclusive<u64>) -> Result<bool> {
        self.unpack_for(&[bucket], 0, "")?;
        if self.buckets.get(&bucket).is_some_and(|found| !found.runs.is_empty()) {
            self.unpack_for(&[bucket], GAP_BYTES, "a range of removed keys")?;
        }
        let next = self.epoch + 1;
        let Some(found) = self.buckets.get_mut(&bucket) else { return Ok(false) };
        match found.runs.is_empty() {
            true => found.gaps.close(&self.account),
            false => found.gaps.leave(hashes, next, &self.account)?,
        }
        Ok(true)
    }

    /// What to fold for one bucket alone.
    fn alone(&self, bucket: Time) -> Result<Range<Time>> {
        span_alone(bucket, |from| self.next_bucket(from)).ok_or_else(|| {
            let message = "lists in the last bucket of time and in the one for ever";
            Error::new(ErrorKind::Unsupported, message).with("state", &self.context.name)
        })
    }
}

/// A visit of lists, as far as it has come.
struct ListVisit<'v> {
    visit: VisitSlices<'v>,
    /// Fuel.
    left: u64,
    /// Elements at the place that were visited before, and come again.
    skip: u64,
    /// Elements at the place that were visited.
    visited: u64,
    /// The list that was left in the middle, which is the only one at its place.
    within: Option<(OwnedKey, GatherStop)>,
    /// Bytes of a run's elements.
    run_bytes: usize,
    /// What `visit` said of the run at hand.
    failed: Option<Error>,
}

impl ListVisit<'_> {
    /// Visits the lists at a place. Returns the fuel spent, and whether that was all of them.
    fn visit_place<'a>(
        &mut self,
        walk: &mut BucketFold<'a>,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
    ) -> Result<(u64, bool)> {
        let before = self.left;
        let is_all = match (pieces, cursors.is_empty()) {
            // All there is of the key, most often.
            ([FrozenElements { key, source: (_, LIVE), chain: Some(chain), .. }], true) => {
                self.within = None;
                self.skip = self.visited;
                self.visit_list(*key, ListElements::Chain(chain.chunks()), 0)?.is_none()
            }
            _ => self.visit_keys(walk, place, pieces, cursors)?,
        };
        if is_all {
            (self.visited, self.skip) = (0, 0);
            // A place without elements costs something too.
            self.left -= u64::from(self.left == before);
        }
        Ok((before - self.left, is_all))
    }

    /// Visits the lists of a bucket that may have elements in runs. Returns whether all of them were visited.
    fn visit_keys<'a>(
        &mut self,
        walk: &mut BucketFold<'a>,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
    ) -> Result<bool> {
        let mut within = self.within.take();
        let (there, is_noted, keys) = match &within {
            // The cursors stand where the list goes on.
            Some((key, _)) => (Vec::new(), true, vec![key.clone()]),
            None => {
                let CursorElements { cursors: there, is_noted, .. } =
                    walk.arrive(place, pieces, cursors)?;
                let keys = keys_at(walk.list_type(), pieces, &there, cursors)?;
                (there, is_noted, keys)
            }
        };
        let is_alone = keys.len() == 1;
        for (turn, key) in keys.iter().enumerate() {
            for (number, mark) in there.iter().filter(|_| turn > 0) {
                cursors[*number].rewind(*mark)?;
            }
            let (stop, visited) = (within.take().map(|(_, stop)| stop), self.visited);
            let left =
                walk.gather((key.get(), place), pieces, cursors, &mut Vec::new(), |mut list| {
                    if let Some(stop) = stop {
                        list.go_on(stop);
                    } else if list.is_empty() {
                        return list.finish().map(|_| None);
                    }
                    let before = if stop.is_some() { visited } else { 0 };
                    match self.visit_list(key.get(), ListElements::Other(&mut list), before)? {
                        None => list.finish().map(|_| None),
                        Some(unread) => Ok(Some(list.stop(unread))),
                    }
                })?;
            if let Some(stop) = left {
                match is_alone {
                    true => self.within = Some((key.clone(), stop)),
                    // Which of them come first is found out anew.
                    false => there.iter().try_for_each(|(n, mark)| cursors[*n].rewind(*mark))?,
                }
                return Ok(false);
            }
        }
        if is_noted {
            rest(cursors);
        }
        Ok(true)
    }

    /// Goes on with a list, `before` elements of which were visited. Returns how many elements of the last chunk were not
    /// visited; `None` if all were.
    fn visit_list(
        &mut self,
        key: KeyRef<'_>,
        mut list: ListElements<'_, '_>,
        before: u64,
    ) -> Result<Option<usize>> {
        let mut from = before;
        loop {
            let Some(chunk) = list.next_slice()? else { return Ok(None) };
            let passed = self.skip.min(chunk.len() as u64);
            (self.skip, from) = (self.skip - passed, from + passed);
            let [_, mut rest] = chunk.split_at(passed as usize);
            while rest.len() > 0 {
                if self.left == 0 {
                    return Ok(Some(rest.len()));
                }
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let count = run_elements(rest, self.run_bytes).min(left).max(1);
                let [run, after] = rest.split_at(count);
                if let Err(error) = (self.visit)(key, from, run) {
                    self.failed = Some(error);
                    return Ok(Some(rest.len()));
                }
                rest = after;
                let count = count as u64;
                (from, self.visited, self.left) =
                    (from + count, self.visited + count, self.left - count);
            }
        }
    }
}

/// The keys that may have something at a place, in an order that only depends on them. Reads on in runs
/// whose blocks end with the place, as others may follow.
fn keys_at(
    list_type: &ListType,
    pieces: &[FrozenElements<'_>],
    there: &[(usize, super::run_cursor::CursorMark)],
    cursors: &mut [RunCursor],
) -> Result<Vec<OwnedKey>> {
    let mut keys: Vec<OwnedKey> = Vec::new();
    for piece in pieces {
        if !has(&keys, piece.key) {
            keys.push(piece.key.to_owned());
        }
    }
    for (number, _) in there {
        cursors[*number].keys_here(&mut keys)?;
    }
    if keys.len() > 1 {
        let mut encoded = Vec::with_capacity(keys.len());
        for key in keys {
            let mut bytes = AlignedVec::new();
            list_type.encode_key(key.get(), &mut bytes)?;
            encoded.push((bytes.to_vec(), key));
        }
        encoded.sort_by(|a, b| a.0.cmp(&b.0));
        keys = encoded.into_iter().map(|(_, key)| key).collect();
    }
    Ok(keys)
}

/// How many of these elements a visitor gets at once: one at least, if there is one.
fn run_elements(list: ElementSlice<'_>, bytes_max: usize) -> usize {
    let (most, element) = (list.len().min(RECORD_ELEMENTS), list.elements());
    let size = element.layout().size();
    if element.is_plain() {
        return most.min((bytes_max / size.max(1)).max(1));
    }
    let mut bytes = 0;
    list.split_at(most)[0].take_while(&mut |heap| {
        let has_room = bytes < bytes_max;
        bytes += size + heap;
        has_room
    })
}
