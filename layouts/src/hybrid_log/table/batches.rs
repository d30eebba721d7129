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

/// What was read ahead of a group of keys, and what filters have said of these.
struct GroupAhead {
    /// How far it comes.
    end: usize,
    /// A bit for each key: no level has it.
    absent: u64,
    /// The number of the last level that had come then.
    last_level: u64,
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Reads the cold records of a group's keys from the `from`th on, as many at once as there are
    /// buffers.
    fn read_ahead<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        items: &[T],
        hashes: (&[IndexHash; GROUP], &[u64; GROUP]),
        from: usize,
        key: &impl Fn(&T) -> &Q,
    ) -> GroupAhead {
        let mut ahead = GroupAhead { end: items.len(), absent: 0, last_level: 0 };
        let stored = self.core.log.stored.as_ref();
        if !self.has_cold() && stored.is_none_or(|stored| stored.live_records() == 0) {
            return ahead;
        }
        // First which, then the reads: keys are user code, which may panic, and no panic may come
        // between the start of a read and its end.
        let (mut places, end) = self.places_stored(items, hashes, from, key);
        ahead.end = end;
        let (mut wanted, mut count) = ([0; GROUP], 0);
        if self.has_cold() {
            count =
                self.hashes_of_runs(&items[..end], hashes, from, (key, &mut wanted, &mut ahead));
        }
        places[ahead.end..].fill(None);
        self.core.read_group(&places, &wanted[..count]);
        ahead
    }

    /// The hashes of the keys that may be in runs, as many as there are buffers, and how far they come. Returns how many
    /// they are.
    #[cold]
    #[inline(never)]
    fn hashes_of_runs<T, Q: Lookup<K> + ?Sized>(
        &self,
        items: &[T],
        (hashes, likely): (&[IndexHash; GROUP], &[u64; GROUP]),
        from: usize,
        (key, wanted, ahead): (&impl Fn(&T) -> &Q, &mut [u64; GROUP], &mut GroupAhead),
    ) -> usize {
        let without_entry = &mut |nth: usize| {
            let key = key(&items[nth]);
            let is_absent = likely[nth] == NOWHERE
                && matches!(self.core.locate_again(hashes[nth], key), RecordLocation::Absent);
            is_absent.then(|| key.key_hash())
        };
        let absent = &mut ahead.absent;
        let is_absent = &mut |nth: usize| *absent |= 1 << nth;
        let (count, end) =
            self.core.ask_filters(from..items.len(), without_entry, is_absent, wanted);
        (ahead.end, ahead.last_level) = (end, self.core.last_level());
        count
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
            if looked_up.is_absent(nth - looked_from) {
                self.core.has_not(key.key_hash(), looked_up.last_level);
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
        let end = next.len().min(PUTS_AHEAD);
        let without_entry = &mut |nth: usize| {
            if let Some((later, _)) = next.get(nth + PREFETCHED) {
                self.core.log.index.prefetch(self.hash(later));
            }
            // Of a key that has an entry no filter is asked.
            let key = &next[nth].0;
            let located = self.core.locate_again(self.hash(key), key);
            matches!(located, RecordLocation::Absent).then(|| key.key_hash())
        };
        looked_up.last_level = self.core.last_level();
        let absent = &mut looked_up.absent;
        let is_absent = &mut |nth: usize| absent[nth / GROUP] |= 1 << (nth % GROUP);
        let mut wanted = [0; GROUP];
        let (count, reached) = self.core.ask_filters(0..end, without_entry, is_absent, &mut wanted);
        self.core.read_runs_of(&wanted[..count]);
        if reached < end { reached } else { PUTS_AHEAD }
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
            let mut group = GroupAhead { end: 0, absent: 0, last_level: 0 };
            let (mut failed, mut ahead) = (None, None);
            for (i, item) in items.iter().enumerate() {
                if i == group.end {
                    group = self.read_ahead(items, (&hashes, &likely), i, &key);
                }
                if group.absent >> i & 1 == 1 {
                    self.core.has_not(key(item).key_hash(), group.last_level);
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
    /// Which of some keys runs may have, as many as can be read at once: their hashes. `without_entry` gives a key's hash
    /// if it has no entry in the index, and filters are asked for several at a time, so that their memory accesses
    /// overlap; `is_absent` is told of those that no level has. Returns how many may be there, and how far they come.
    fn ask_filters(
        &self,
        keys: Range<usize>,
        without_entry: &mut dyn FnMut(usize) -> Option<u64>,
        is_absent: &mut dyn FnMut(usize),
        wanted: &mut [u64; GROUP],
    ) -> (usize, usize) {
        let cold = self.log.cold.as_ref();
        let at_once = cold.map_or(0, |cold| cold.at_once()).clamp(1, GROUP);
        let (mut count, mut from) = (0, keys.start);
        while from < keys.end {
            // No more are asked at once than a few times those that can be read.
            let end = keys.end.min(from + (at_once - count + 1).clamp(GROUP_MIN, GROUP));
            let (mut hashes, mut asked_of, mut asked) = ([0; GROUP], [0; GROUP], 0);
            for nth in from..end {
                if let Some(hash) = without_entry(nth) {
                    (hashes[asked], asked_of[asked]) = (hash, nth);
                    asked += 1;
                }
            }
            let may_have = self.log.may_each_be_in_levels(&hashes[..asked]);
            for (bit, (hash, nth)) in hashes[..asked].iter().zip(asked_of).enumerate() {
                if may_have >> bit & 1 == 0 {
                    is_absent(nth);
                    continue;
                }
                if count == at_once {
                    return (count, nth);
                }
                wanted[count] = *hash;
                count += 1;
            }
            from = end;
        }
        (count, keys.end)
    }

    /// The number of the last level that has come.
    fn last_level(&self) -> u64 {
        self.log.cold.as_ref().map_or(0, |cold| cold.last_level())
    }

    /// No level had a hash when the last one that had come was `last_level`.
    #[cold]
    fn has_not(&mut self, hash: u64, last_level: u64) {
        self.log.cold.iter_mut().for_each(|cold| cold.has_not(hash, last_level));
    }

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
