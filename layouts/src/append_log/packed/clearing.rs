//! Clearing a list of a packed slice without unpacking it: where the slice has nothing of the list, or nothing else.

use alluvium_pagestore::block::DecodeMemory;
use alluvium_pagestore::{ErrorKind, Result, Time};

use crate::append_log::core::ListsCore;
use crate::append_log::key_unsafe::KeyRef;

/// What a slice has packed of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackedShare {
    Nothing,
    /// Nothing else is packed of the slice.
    All,
    /// Something, or that would take as long to find out as to unpack the slice.
    Some,
}

impl ListsCore {
    /// What is packed of a list. Reads the slice.
    fn packed_share(&mut self, time: Time, hash: u64, key: KeyRef<'_>) -> Result<PackedShare> {
        let packed = self.packed.as_ref();
        let Some(slice) = packed.and_then(|packed| packed.directory.get(time)) else {
            return Ok(PackedShare::Nothing);
        };
        if !self.is_loaded_whole(slice) {
            return Ok(PackedShare::Some);
        }
        // As they are decoded one after the other.
        let decoded = packed.map_or(0, |packed| packed.decoded_bytes());
        let read = match self.read_packed(&[(time, slice)], decoded, Some(self.range.place(hash))) {
            // There may be for less than all of it.
            Err(error) if error.kind() == ErrorKind::OverBudget => return Ok(PackedShare::Some),
            read => read?,
        };
        let Some((_, records)) = read.and_then(|mut all| all.pop()) else {
            return Ok(PackedShare::Some);
        };
        let mut own = 0;
        for payload in &records.payloads {
            let mut more = |bytes: u64| -> Result<u64> {
                Err(self.account.over_budget(bytes, "a record of a packed slice"))
            };
            let mut room = DecodeMemory { bytes: decoded, more: &mut more };
            let block = match self.list_type.decode_within(payload, &mut room) {
                // An element takes more than is free for it here.
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    return Ok(PackedShare::Some);
                }
                block => block?,
            };
            let entries = (0..block.len()).filter(|at| block.key(*at) == key);
            own += entries.map(|at| block.elements(at).len() as u64).sum::<u64>();
        }
        Ok(match own {
            0 => PackedShare::Nothing,
            own if own == slice.elements => PackedShare::All,
            _ => PackedShare::Some,
        })
    }

    /// Clears what is packed of a list, or unpacks the slice. Sees to it that there is room for a note where one is needed.
    ///
    /// # Errors
    /// Those of reading, and if there is no memory: then the list has what it had, packed or not.
    pub(in crate::append_log) fn clear_or_unpack(
        &mut self,
        time: Time,
        (hash, key): (u64, KeyRef<'_>),
        room: u64,
    ) -> Result<()> {
        let known = |lists: &Self| lists.packed.as_ref().and_then(|p| p.directory.get(time));
        loop {
            let mut share = self.packed_share(time, hash, key)?;
            if share == PackedShare::Nothing && self.is_packed(time) && self.has_runs(time) {
                // A slice with a note of a key has nothing packed: what is being packed would not count.
                share = PackedShare::Some;
            }
            let left = known(self);
            let all = [time];
            let times = if share == PackedShare::Some { &all[..] } else { &[] };
            self.unpack_for(times, 0, "")?;
            if self.has_runs(time) {
                self.unpack_for(times, room, "a cleared list")?;
            }
            // Making room may have packed more of it.
            match share {
                PackedShare::Some => return Ok(()),
                _ if known(self) != left => {}
                PackedShare::Nothing if left.is_some() && self.has_runs(time) => {}
                PackedShare::Nothing => return Ok(()),
                PackedShare::All => {
                    self.forget_packed(time);
                    return Ok(());
                }
            }
        }
    }

    /// Nothing counts any more that is packed of a slice.
    fn forget_packed(&mut self, time: Time) {
        let Some(packed) = &mut self.packed else { return };
        if let Some(slice) = packed.directory.remove(time) {
            packed.book_directory();
            self.elements -= slice.elements;
            self.kept = None;
        }
    }
}
