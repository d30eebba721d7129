//! The keys at a place, and what each has in memory and in runs.

use alluvium_pagestore::{Result, Time};

use super::VisitElements;
use crate::append_log::block::{ListElements, ListType};
use crate::append_log::bucket::AppendBucket;
use crate::append_log::core::ListsCore;
use crate::append_log::frozen::{FrozenElements, LIVE};
use crate::append_log::gather::GatheredElements;
use crate::append_log::key_unsafe::{KeyRef, OwnedKey, has};
use crate::append_log::notes::{OwnedRuns, resolve, views};
use crate::append_log::run_cursor::{CursorMark, RunCursor};

/// What cursors have at a place.
pub struct CursorElements {
    /// Those that stand there.
    pub cursors: Vec<(usize, CursorMark)>,
    /// The first one's key, if there is nothing in memory.
    pub key: Option<OwnedKey>,
    /// Whether some cursors are to [rest](RunCursor::rest) afterwards.
    pub is_noted: bool,
}

/// A fold over some buckets, place by place.
pub struct BucketFold<'a> {
    log: &'a ListsCore,
    buckets: &'a [&'a AppendBucket],
    views: Vec<OwnedRuns>,
}

impl<'a> BucketFold<'a> {
    /// A fold over these buckets.
    pub(super) fn new(log: &'a ListsCore, buckets: &'a [&'a AppendBucket]) -> Self {
        Self { log, buckets, views: Vec::new() }
    }

    /// Visits the keys at `place`, of which there is hardly ever more than one, and tells how many
    /// elements were looked at.
    pub(super) fn visit_place(
        &mut self,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        visit: VisitElements<'_>,
    ) -> Result<u64> {
        if let ([FrozenElements { key, source: (_, LIVE), chain: Some(chain), .. }], true) =
            (pieces, cursors.is_empty())
        {
            // All there is of the key, most often.
            visit(*key, ListElements::Chain(chain.chunks()))?;
            return Ok(chain.len());
        }
        let CursorElements { cursors: at_place, key, is_noted } =
            self.arrive(place, pieces, cursors)?;
        if at_place.is_empty() && pieces.iter().all(|piece| piece.key == pieces[0].key) {
            return self.visit_key((pieces[0].key, place), pieces, cursors, &mut Vec::new(), visit);
        }
        let mut keys: Vec<OwnedKey> = key.into_iter().collect();
        for piece in pieces {
            if !has(&keys, piece.key) {
                keys.push(piece.key.to_owned());
            }
        }
        let (mut looked_at, mut turn) = (0, 0);
        while turn < keys.len() {
            if turn > 0 {
                for (number, mark) in &at_place {
                    cursors[*number].rewind(*mark)?;
                }
            }
            let key = keys[turn].clone();
            let here = (key.get(), place);
            looked_at += self.visit_key(here, pieces, cursors, &mut keys, &mut *visit)?;
            turn += 1;
        }
        if is_noted {
            rest(cursors);
        }
        Ok(looked_at)
    }

    /// The types of the lists.
    pub(in crate::append_log) fn list_type(&self) -> &'static ListType {
        self.log.list_type
    }

    /// Has cursors come to a place.
    pub(in crate::append_log) fn arrive(
        &mut self,
        place: u64,
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
    ) -> Result<CursorElements> {
        // Runs of other buckets have something only for keys that a note tells of.
        let mut noted = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.chain.is_none()) {
            for (owner, bucket) in self.buckets.iter().enumerate() {
                views(bucket, owner, piece.key.key_hash(), piece.key, &mut noted);
            }
        }
        let mut at_place: Vec<(usize, CursorMark)> = Vec::new();
        let mut key = None;
        for (number, cursor) in cursors.iter_mut().enumerate() {
            if !cursor.drives {
                if resolve(&noted, (cursor.bucket, cursor.number)).is_none() {
                    continue;
                }
                cursor.seek(place)?;
            }
            if cursor.peek()? == Some(place) {
                at_place.push((number, cursor.mark()));
                if key.is_none() && pieces.is_empty() {
                    key = Some(cursor.key().to_owned());
                }
            } else if !cursor.drives {
                cursor.rest();
            }
        }
        Ok(CursorElements { cursors: at_place, key, is_noted: !noted.is_empty() })
    }

    fn visit_key(
        &mut self,
        (key, place): (KeyRef<'_>, u64),
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        others: &mut Vec<OwnedKey>,
        visit: VisitElements<'_>,
    ) -> Result<u64> {
        self.gather((key, place), pieces, cursors, others, |mut list| {
            if !list.is_empty() {
                visit(key, ListElements::Other(&mut list))?;
            }
            Ok(list.finish()?.max(1))
        })
    }

    /// Gathers what a key has, from memory and from cursors that stand at its place, for `read`.
    pub(in crate::append_log) fn gather<R>(
        &mut self,
        (key, place): (KeyRef<'_>, u64),
        pieces: &[FrozenElements<'a>],
        cursors: &mut [RunCursor],
        others: &mut Vec<OwnedKey>,
        read: impl FnOnce(GatheredElements<'_, 'a>) -> Result<R>,
    ) -> Result<R> {
        let hash = key.key_hash();
        self.views.clear();
        for (owner, bucket) in self.buckets.iter().enumerate() {
            views(bucket, owner, hash, key, &mut self.views);
        }
        let mut own: Vec<FrozenElements<'a>> =
            pieces.iter().filter(|piece| piece.key == key).copied().collect();
        let own_times = |time: &Time| self.buckets.iter().any(|bucket| bucket.time == *time);
        if self.views.len() > self.buckets.len() {
            // Runs of other buckets, and of those that were purged.
            let mut imported = Vec::new();
            self.log.find_imported(&self.views, hash, key, &mut imported);
            let known: Vec<_> = own.iter().map(|piece| piece.source).collect();
            imported.retain(|piece| !own_times(&piece.source.0) || !known.contains(&piece.source));
            own.extend(imported);
        }
        let pieces = own.into_iter();
        read(GatheredElements::new((key, place), &self.views, cursors, pieces, others)?)
    }
}

/// Has the cursors give memory back that are needed seldom.
pub fn rest(cursors: &mut [RunCursor]) {
    cursors.iter_mut().filter(|cursor| !cursor.drives).for_each(RunCursor::rest);
}
