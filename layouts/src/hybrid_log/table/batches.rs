//! Batches: groups of keys whose memory accesses overlap, and whose reads from storage are under way
//! together.

use std::ops::Range;

use alluvium_pagestore::{Key, Lookup, Result, State};

use crate::contract::table::BatchError;
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::core::LogCore;
use crate::hybrid_log::index::IndexHash;
use crate::hybrid_log::log::{NOWHERE, RecordLocation};
use crate::hybrid_log::stored::RecordRead;
use crate::hybrid_log::table::HybridLogTable;

/// Items whose memory accesses overlap.
pub(in crate::hybrid_log) const GROUP: usize = 64;
/// Entries that are put for which reads of runs are under way together: few of them need one.
const PUTS_AHEAD: usize = 4096;
/// The fewest entries for which filters are asked together.
const GROUP_MIN: usize = 8;
const _: () = assert!(GROUP <= crate::runs::AT_ONCE, "filters have an answer for each of a group");
/// Buckets of the index are loaded so many of them ahead.
const PREFETCHED: usize = 8;

/// What filters say of entries that are put next: they are not asked again when these are put.
pub(in crate::hybrid_log) struct LookedUp {
    /// A bit for each: no level has its key.
    absent: [u64; PUTS_AHEAD / GROUP],
    /// The number of the last level that had come then.
    pub(in crate::hybrid_log) last_level: u64,
}

impl Default for LookedUp {
    fn default() -> Self {
        Self { absent: [0; PUTS_AHEAD / GROUP], last_level: 0 }
    }
}

impl LookedUp {
    /// Whether no level had the key of the nth entry.
    pub(in crate::hybrid_log) fn is_absent(&self, nth: usize) -> bool {
        self.absent[nth / GROUP] >> (nth % GROUP) & 1 == 1
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Reads the cold records of a group's keys from the `from`th on, as many at once as there are
    /// buffers. Returns how far it came.
    fn read_ahead<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[T],
        hashes: (&[IndexHash; GROUP], &[u64; GROUP]),
        from: usize,
        key: &impl Fn(&T) -> &Q,
    ) -> usize {
        let stored = self.core.log.stored.as_ref();
        if !self.has_cold() && stored.is_none_or(|stored| stored.live_records() == 0) {
            return items.len();
        }
        // First which, then the reads: keys are user code, which may panic, and no panic may come
        // between the start of a read and its end.
        let (mut places, mut end) = self.places_stored(items, hashes, from, key);
        let (mut wanted, mut count) = ([0; GROUP], 0);
        if self.has_cold() {
            (count, end) = self.hashes_of_runs(&items[..end], hashes, from, (key, &mut wanted));
        }
        places[end..].fill(None);
        self.core.read_group(&places, &wanted[..count]);
        end
    }

    /// The hashes of the keys that may be in runs, as many as there are buffers. Returns how many they are, and how far
    /// they come.
    #[cold]
    #[inline(never)]
    fn hashes_of_runs<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[T],
        (hashes, likely): (&[IndexHash; GROUP], &[u64; GROUP]),
        from: usize,
        (key, wanted): (&impl Fn(&T) -> &Q, &mut [u64; GROUP]),
    ) -> (usize, usize) {
        let at_once = self.core.log.cold.as_ref().map_or(0, |cold| cold.at_once()).clamp(1, GROUP);
        let (mut count, mut end) = (0, items.len());
        for (i, item) in items.iter().enumerate().skip(from) {
            if likely[i] == NOWHERE
                && self.core.log.may_be_in_levels(key(item).key_hash())
                && matches!(self.core.locate_again(hashes[i], key(item)), RecordLocation::Absent)
            {
                if count == at_once {
                    end = i;
                    break;
                }
                wanted[count] = key(item).key_hash();
                count += 1;
            }
        }
        (count, end)
    }

    /// Puts all entries, in order. After an error those are left that were not put.
    pub(in crate::hybrid_log) fn put_in_order(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        self.core.clear_group();
        let mut hashes = [IndexHash(0); GROUP];
        let (mut rest, mut nth, mut read_to) = (batch.drain(..), 0, 0);
        let (mut looked_up, mut looked_from) = (LookedUp::default(), 0);
        loop {
            if nth % GROUP == 0 {
                for ((key, _), hash) in rest.as_slice().iter().zip(&mut hashes) {
                    *hash = self.hash(key);
                    self.core.log.index.prefetch(*hash);
                }
            }
            if nth == read_to {
                looked_from = read_to;
                looked_up = LookedUp::default();
                read_to += match self.has_cold() {
                    true => self.read_ahead_of_puts(rest.as_slice(), &mut looked_up),
                    false => PUTS_AHEAD,
                };
            }
            let Some((key, value)) = rest.next() else { break };
            if let Some(cold) = &mut self.core.log.cold
                && looked_up.is_absent(nth - looked_from)
            {
                cold.has_not(key.key_hash(), looked_up.last_level);
            }
            if let Err(rejected) = self.put_hashed(hashes[nth % GROUP], key, value) {
                let left = std::iter::once(rejected.value).chain(rest).collect();
                *batch = left;
                self.core.clear_group();
                return Err(rejected.error);
            }
            nth += 1;
        }
        self.core.clear_group();
        Ok(())
    }

    /// Reads what the next puts read of runs, as much at once as there are buffers: those of keys that are there, and of
    /// new ones for which a filter is wrong. Returns for how many puts.
    #[cold]
    #[inline(never)]
    pub(in crate::hybrid_log) fn read_ahead_of_puts(
        &mut self,
        next: &[(K, V)],
        looked_up: &mut LookedUp,
    ) -> usize {
        let cold = self.core.log.cold.as_ref();
        let at_once = cold.map_or(0, |cold| cold.at_once()).clamp(1, GROUP);
        let last_level = cold.map_or(0, |cold| cold.last_level());
        looked_up.last_level = last_level;
        let (mut wanted, mut count) = ([0; GROUP], 0);
        let (mut from, end) = (0, next.len().min(PUTS_AHEAD));
        while from < end {
            // No more are asked at once than a few times those that can be read.
            let group = from..end.min(from + (at_once - count + 1).clamp(GROUP_MIN, GROUP));
            let (hashes, places, asked) = self.hashes_without_entry(next, group.clone());
            let may_have = self.core.log.may_each_be_in_levels(&hashes[..asked]);
            for nth in 0..asked {
                let place = usize::from(places[nth]);
                if may_have >> nth & 1 == 0 {
                    looked_up.absent[place / GROUP] |= 1 << (place % GROUP);
                    continue;
                }
                if count == at_once {
                    self.core.read_runs_of(&wanted[..count]);
                    return place;
                }
                wanted[count] = hashes[nth];
                count += 1;
            }
            from = group.end;
        }
        self.core.read_runs_of(&wanted[..count]);
        PUTS_AHEAD
    }

    /// The hashes of keys of a group that have no entry in the index, where these keys stand, and how many there are.
    fn hashes_without_entry(
        &self,
        next: &[(K, V)],
        group: Range<usize>,
    ) -> ([u64; GROUP], [u16; GROUP], usize) {
        let (mut hashes, mut places, mut count) = ([0; GROUP], [0; GROUP], 0);
        for place in group {
            let key = &next[place].0;
            if let Some((later, _)) = next.get(place + PREFETCHED) {
                self.core.log.index.prefetch(self.hash(later));
            }
            // Of a key that has an entry no filter is asked.
            if matches!(self.core.locate_again(self.hash(key), key), RecordLocation::Absent) {
                (hashes[count], places[count]) = (key.key_hash(), place as u16);
                count += 1;
            }
        }
        (hashes, places, count)
    }

    /// Where the records of keys are that are in segments, as many as there are buffers. Returns how far they come, too.
    fn places_stored<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[T],
        (hashes, likely): (&[IndexHash; GROUP], &[u64; GROUP]),
        from: usize,
        key: &impl Fn(&T) -> &Q,
    ) -> ([Option<StoredAt>; GROUP], usize) {
        let (all, mut places) = (items.len(), [None; GROUP]);
        let Some(stored) = self.core.log.stored.as_ref().filter(|stored| stored.live_records() > 0)
        else {
            return (places, all);
        };
        // One buffer is left for reads that turn out to be needed.
        let at_once = stored.free_buffers().saturating_sub(1).max(1);
        let (mut cold, mut end) = (0, all);
        for (i, item) in items.iter().enumerate().skip(from) {
            let hash = hashes[i];
            // What is likely to be in memory is not looked for: if it is not there it is read by itself.
            if likely[i] == NOWHERE
                && matches!(self.core.locate_again(hash, key(item)), RecordLocation::Cold)
            {
                let place = self.core.log.candidate(hash, 0).map(|(_, place)| place);
                let stored = self.core.log.stored.as_ref().expect("looked at above");
                if place.is_some_and(|place| stored.has_fetched(place)) {
                    continue;
                }
                if cold == at_once {
                    end = i;
                    break;
                }
                places[i] = place;
                cold += 1;
            }
        }
        (places, end)
    }

    /// Runs `apply` for each item in groups whose memory and storage accesses overlap.
    pub(in crate::hybrid_log) fn in_groups<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut apply: impl FnMut(&mut Self, &T, (IndexHash, u64), &mut Option<RecordRead>) -> Result<()>,
    ) -> std::result::Result<(), BatchError> {
        let mut applied = 0;
        let small = self.core.log.index.len() * 32 < 512 << 10;
        let (mut hashes, mut likely) = ([IndexHash(0); GROUP], [NOWHERE; GROUP]);
        for items in batch.chunks(GROUP) {
            for (item, hash) in items.iter().zip(&mut hashes) {
                *hash = self.hash(key(item));
                if !small {
                    self.core.log.index.prefetch(*hash);
                }
            }
            if !small {
                for (hash, likely) in hashes[..items.len()].iter().zip(&mut likely) {
                    *likely = self.core.prefetch_candidate(*hash);
                }
            }
            self.core.clear_group();
            let (mut failed, mut read_to, mut ahead) = (None, 0, None);
            for (i, item) in items.iter().enumerate() {
                if i == read_to {
                    read_to = self.read_ahead(items, (&hashes, &likely), i, &key);
                }
                // A read is handed on only if it is used up before a closure runs: one that
                // panics would take it along.
                if self.core.group_reads
                    && self.core.group[i].is_some()
                    && matches!(self.core.locate_again(hashes[i], key(item)), RecordLocation::Cold)
                {
                    ahead = self.core.group[i].take();
                }
                if let Err(error) = apply(self, item, (hashes[i], likely[i]), &mut ahead) {
                    failed = Some(BatchError { applied: applied + i, error });
                }
                if self.core.group_reads {
                    if let Some(read) = ahead.take() {
                        self.core.log.stored.as_mut().expect("a read has a store").recycle(read);
                    }
                }
                if failed.is_some() {
                    break;
                }
            }
            applied += items.len();
            self.core.clear_group();
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl LogCore {
    /// Reads what look-ups of these hashes read first of runs, all at once.
    fn read_runs_of(&mut self, hashes: &[u64]) {
        // A single read gains nothing by being started first.
        if hashes.len() > 1 {
            self.group_reads = true;
            self.log.make_room_ahead(hashes.len());
            self.log.cold.iter_mut().for_each(|cold| cold.read_ahead(hashes));
            self.log.keep_for_work();
        }
    }

    /// Reads records of a group, and what look-ups of hashes read first of runs, all at once.
    fn read_group(&mut self, places: &[Option<StoredAt>; GROUP], hashes: &[u64]) {
        let count = places.iter().flatten().count();
        if count == 0 {
            return self.read_runs_of(hashes);
        }
        // A single read gains nothing by being started first.
        if count + hashes.len() > 1 {
            if !hashes.is_empty() {
                // Nothing is made free while reads are under way. What this makes free is no segment of `places`:
                // those go with a rewrite only.
                self.log.make_room_ahead(hashes.len());
            }
            let pending = self.start_group(places);
            if let Some(cold) = self.log.cold.as_mut().filter(|_| !hashes.is_empty()) {
                cold.read_ahead(hashes);
                self.log.keep_for_work();
            }
            self.end_group(places, pending);
        }
    }

    /// Starts reads of records. Returns how many.
    fn start_group(&mut self, places: &[Option<StoredAt>; GROUP]) -> usize {
        let stored = self.log.stored.as_mut().expect("a stored record has a store");
        let mut pending = 0;
        for (i, place) in places.iter().enumerate() {
            // Whoever needs the record meets the error of a read that could not be started.
            if let Some(Some(Ok(()))) = place.map(|place| stored.start(place, i as u64)) {
                pending += 1;
            }
        }
        self.group_reads = true;
        pending
    }

    /// Waits for reads of records.
    fn end_group(&mut self, places: &[Option<StoredAt>; GROUP], pending: usize) {
        let stored = self.log.stored.as_mut().expect("a stored record has a store");
        for _ in 0..pending {
            // Whoever needs a record that was not waited for any longer meets the error.
            let ended = stored.wait(|nth| places[nth as usize].expect("was started"));
            let Ok((nth, read)) = ended else { break };
            self.group[nth as usize] = Some(read);
        }
    }

    /// Takes back reads that were not needed after all, or that a panic has left.
    #[inline]
    pub(in crate::hybrid_log) fn clear_group(&mut self) {
        if std::mem::take(&mut self.group_reads) {
            self.take_group_back();
        }
    }

    #[cold]
    fn take_group_back(&mut self) {
        for read in self.group.iter_mut().filter_map(Option::take) {
            self.log.stored.as_mut().expect("a read has a store").recycle(read);
        }
        self.log.cold.iter_mut().for_each(|cold| cold.forget_ahead());
        self.log.keep_for_work();
    }
}
