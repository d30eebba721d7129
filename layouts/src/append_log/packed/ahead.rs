//! Packed slices that were read ahead: whoever folds slice after slice reads some that follow by the same pass over the
//! levels.
//!
//! What it keeps true: what is here is what the directory tells of the slice, or it is not used. Its memory is booked, and
//! given up where memory is short.

use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{Account, Time};

use super::loading::{KnownSlice, SliceRecords};
use super::{PackedSlice, SliceDirectory};
use crate::support::booked::Booked;

/// Slices that are read ahead take one part in so many of the memory, or of what is free, at most.
const MEMORY_SHARE: u64 = 64;
const FREE_SHARE: u64 = 8;
/// Most slices that are read ahead.
const SLICES_MAX: usize = 64;

/// Slices that were read ahead.
#[derive(Debug, Default)]
pub(super) struct SlicesAhead {
    slices: BTreeMap<Time, (PackedSlice, SliceRecords, Booked)>,
    /// The last slice that was loaded.
    last: Option<Time>,
}

impl SlicesAhead {
    /// Forgets what was read ahead.
    pub fn give_up(&mut self) {
        self.slices.clear();
    }

    /// Forgets slices before a time.
    pub fn purge(&mut self, before: Time) {
        self.slices = self.slices.split_off(&before);
    }

    /// Takes out what was read of a slice, if that is what is known of it, and what is booked for that.
    pub fn take(&mut self, (time, slice): KnownSlice) -> Option<(SliceRecords, Booked)> {
        let (known, records, booked) = self.slices.remove(&time)?;
        (known == slice).then_some((records, booked))
    }

    /// A slice was loaded.
    pub fn has_loaded(&mut self, time: Time) {
        self.last = Some(time);
    }

    /// These slices are going to be loaded. Those that follow and are to be read with them: none, if they are not the next
    /// after those that were loaded last.
    pub fn followers(
        &mut self,
        loaded: &[KnownSlice],
        directory: &SliceDirectory,
        account: &Account,
    ) -> Vec<KnownSlice> {
        let (first, last) = (loaded[0].0, loaded[loaded.len() - 1].0);
        let before = self.last.replace(last).and_then(|last| last.0.checked_add(1));
        let follows = before.is_some_and(|after| directory.next(Time(after)) == Some(first));
        let Some(from) = last.0.checked_add(1).filter(|_| follows) else { return Vec::new() };
        let most = (account.limit() / MEMORY_SHARE).min(account.available() / FREE_SHARE);
        let mut bytes = 0;
        let all = directory.within(Time(from)..=Time::MAX).take(SLICES_MAX);
        let all = all.take_while(|(_, slice)| {
            bytes += slice.bytes;
            bytes <= most
        });
        all.collect()
    }

    /// Keeps what was read of a slice. Its memory is free.
    pub fn put(&mut self, (time, slice): KnownSlice, records: SliceRecords, account: &Rc<Account>) {
        let booked = Booked::buffers(account.clone(), records.bytes);
        self.slices.insert(time, (slice, records, booked));
    }
}
