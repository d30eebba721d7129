//! Clearing a list, and moving it to another bucket, without reading storage, unless the bucket is [packed](super::packed).
//!
//! What is in memory is dropped or copied. Of what is on storage it is noted that it is not the
//! key's any more, or where it belongs now. Moved elements get ranks below all that their target
//! has; what was in memory among them is kept as an early part, unless the target has nothing on
//! storage.

use alluvium_pagestore::{Result, Time};

use super::bucket::AppendBucket;
use super::chain_unsafe::ElementChain;
use super::core::ListsCore;
use super::frozen::rank_of;
use super::key_unsafe::{KeyRef, OwnedKey};
use super::merge::is_step;
use super::notes::{ImportedRuns, KeyNote};

/// Memory that a note or a moved list may take, by upper bound but for the growth of large tables.
const ROOM_BYTES: u64 = 48 << 10;

impl ListsCore {
    fn room_to_note(&self) -> u64 {
        ROOM_BYTES.min(self.account.limit() / 16)
    }

    /// Whether only notes can say that a key has nothing in a bucket.
    pub(super) fn has_runs(&self, time: Time) -> bool {
        self.buckets.get(&time).is_some_and(|bucket| !bucket.runs.is_empty())
    }

    pub fn clear_list(&mut self, time: Time, key: KeyRef<'_>) -> Result<()> {
        self.leave_fold();
        self.poll()?;
        self.wait_for_notes(time);
        let hash = key.key_hash();
        self.clear_or_unpack(time, (hash, key), self.room_to_note())?;
        let cut = self.epoch + 1;
        let Some(bucket) = self.buckets.get_mut(&time) else { return Ok(()) };
        if bucket.runs.is_empty() {
            bucket.take_note(hash, key);
        } else {
            let known = bucket.put_note(cut_off(key.to_owned(), cut))?.map_or(0, |note| note.cut);
            // Of short lists no block goes, but notes come.
            if bucket.count_cut(hash, known, cut) || is_step(bucket) {
                self.crowded.insert(time);
            }
        }
        let live = bucket.take_live(hash, key);
        let next = |bucket: &mut AppendBucket| Some(bucket.take_early(hash, key)?.chain);
        let mut gone = live.or_else(|| next(bucket));
        while let Some(chain) = gone {
            self.elements -= chain.len();
            bucket.recycle(chain.drain());
            gone = next(bucket);
        }
        self.drop_if_vacant(time);
        Ok(())
    }

    pub(super) fn relocate_list(&mut self, from: Time, to: Time, key: KeyRef<'_>) -> Result<()> {
        self.leave_fold();
        self.poll()?;
        let hash = key.key_hash();
        if from == to {
            return Ok(());
        }
        self.unpack_for(&[from], 0, "")?;
        if !self.buckets.get(&from).is_some_and(|b| may_have(b, hash, key)) {
            return Ok(());
        }
        let moved = self.buckets[&from].bytes_to_move(hash, key);
        let room = 2 * self.room_to_note() + moved;
        self.unpack_for(&[from, to], room, "a list that moves")?;
        let next = self.epoch + 1;
        if !self.buckets.contains_key(&to) {
            let bucket = self.new_bucket((to, next))?;
            self.add_bucket(bucket);
        }
        self.kept = None;
        let moved = self.move_list((from, to), (hash, &key.to_owned()), next);
        self.drop_if_vacant(from);
        self.drop_if_vacant(to);
        moved
    }

    fn move_list(
        &mut self,
        (from, to): (Time, Time),
        (hash, owned): (u64, &OwnedKey),
        next: u64,
    ) -> Result<()> {
        let key = owned.get();
        let source = self.buckets.get_mut(&from).expect("there is something to move");
        let note = source.note(hash, key);
        let mut low = note.map_or(0, |note| note.low);
        let mut imports = note.map_or(Vec::new(), |note| note.imports.clone());
        let cut = source.first_run(hash, note);
        if source.runs.last().is_some_and(|run| run.number >= cut) {
            imports.push(ImportedRuns { source: from, runs: (cut, next - 1), delta: 0 });
        }
        let early: Vec<i64> = source.early_of(hash, key).map(|early| early.rank).collect();
        let has_live = source.live.find(hash, key).is_some();
        let leaves_runs = !source.runs.is_empty();

        let target = self.buckets.get_mut(&to).expect("a bucket was made");
        let known = target.note(hash, key);
        let alone = target.runs.is_empty()
            && known.is_none()
            && target.early_of(hash, key).next().is_none();
        // The rank of what `from` has in memory, after all that it has on storage.
        let last = rank_of(next);
        let delta = if alone { 0 } else { known.map_or(0, |note| note.low) - 1 - last };
        low += delta;
        imports.iter_mut().for_each(|import| import.delta += delta);
        imports.extend(known.iter().flat_map(|note| &note.imports).copied());
        imports.shrink_to_fit();
        let target_cut = known.map_or(0, |note| note.cut);
        let is_noted = !imports.is_empty() || !early.is_empty() || !alone;
        // First all that can fail.
        for rank in &early {
            target.ensure_early(hash, owned, rank + delta)?;
        }
        match (has_live, alone) {
            (true, true) => target.ensure_head(hash, key)?,
            (true, false) => target.ensure_early(hash, owned, last + delta)?,
            (false, _) => {}
        }
        let mut before = None;
        if is_noted {
            let note = KeyNote { key: owned.clone(), cut: target_cut, low, imports };
            before = target.put_note(note)?;
        }
        let source = self.buckets.get_mut(&from).expect("looked up before");
        if leaves_runs {
            if let Err(error) = source.put_note(cut_off(owned.clone(), next)) {
                let target = self.buckets.get_mut(&to).expect("looked up before");
                if is_noted {
                    target.take_note(hash, key);
                }
                if let Some(before) = before {
                    target.put_note(before)?;
                }
                return Err(error);
            }
        } else {
            source.take_note(hash, key);
        }
        let mut parts = Vec::with_capacity(early.len());
        while let Some(early) = source.take_early(hash, key) {
            parts.push((early.rank, early.chain.drain()));
        }
        let mut live = source.take_live(hash, key).map(ElementChain::drain);
        let target = self.buckets.get_mut(&to).expect("looked up before");
        for (rank, chain) in &mut parts {
            target.fill_early(hash, owned, *rank + delta, chain);
        }
        match &mut live {
            Some(chain) if alone => target.prepend(hash, key, chain),
            Some(chain) => target.fill_early(hash, owned, last + delta, chain),
            None => {}
        }
        let source = self.buckets.get_mut(&from).expect("looked up before");
        for chain in parts.into_iter().map(|(_, chain)| chain).chain(live) {
            source.recycle(chain);
        }
        Ok(())
    }
}

/// Whether a key may have elements in a bucket.
fn may_have(bucket: &AppendBucket, hash: u64, key: KeyRef<'_>) -> bool {
    let note = bucket.note(hash, key);
    let cut = bucket.first_run(hash, note);
    bucket.runs.last().is_some_and(|run| run.number >= cut)
        || note.is_some_and(|note| !note.imports.is_empty())
        || bucket.live.find(hash, key).is_some()
        || bucket.early_of(hash, key).next().is_some()
}

/// The note of a key of which runs below `cut` have nothing any more.
fn cut_off(key: OwnedKey, cut: u64) -> KeyNote {
    KeyNote { key, cut, low: rank_of(cut), imports: Vec::new() }
}
