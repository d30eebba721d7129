//! Which records of a key stay where levels are merged.

use std::fmt;

use alluvium_pagestore::Result;

use super::TOMBSTONE;
use super::touches::ExpiredTouches;
use crate::runs::{Judge, RecordView};
use crate::support::record_type_unsafe::RecordType;

/// Keeps the newest record of each key, unless the index has an entry of the key, or the record has expired and none of an
/// older level can show; and a tombstone as long as an older level may have its key.
pub struct NewestRecords<H> {
    pub record_type: &'static RecordType,
    /// Whether no level is older than those that are merged.
    pub is_last: bool,
    /// Whether the index is known to have an entry of a record's key: what levels have of it is dead.
    pub is_hot: H,
    /// What has expired, if entries do: it is not there and does not count.
    pub gone: Option<ExpiredTouches>,
}

impl<H> NewestRecords<H> {
    fn has_expired(&self, record: &RecordView<'_>) -> bool {
        let gone = self.gone.filter(|_| self.is_last);
        // What cannot be decoded is left to the call that needs it, which meets the error.
        gone.is_some_and(|gone| gone.has(self.record_type, record.payload).unwrap_or(false))
    }
}

/// For a merge on a helper's thread, which does not see the index: dead copies of keys that have an entry stay. They are
/// only space, as look-ups ask the index first.
pub fn is_never_hot(_: &RecordView<'_>) -> Result<bool> {
    Ok(false)
}

impl<H> fmt::Debug for NewestRecords<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewestRecords(last: {})", self.is_last)
    }
}

impl<H: FnMut(&RecordView<'_>) -> Result<bool>> Judge for NewestRecords<H> {
    fn judge(&mut self, group: &[RecordView<'_>], stays: &mut [bool]) -> Result<()> {
        for (nth, record) in group.iter().enumerate() {
            let is_over = match record.mark {
                TOMBSTONE => self.is_last,
                // Older levels may have a copy as well: it is dead too, and is buried if the key is deleted.
                _ => (self.is_hot)(record)? || self.has_expired(record),
            };
            stays[nth] =
                !(is_over || has_key_among(self.record_type, record.payload, &group[..nth])?);
        }
        Ok(())
    }
}

/// Whether one of the records has the key of a payload.
pub fn has_key_among(
    record_type: &'static RecordType,
    payload: &[u8],
    records: &[RecordView<'_>],
) -> Result<bool> {
    for other in records {
        if has_same_key(record_type, payload, other.payload)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two payloads are of one key, by `Eq`.
pub fn has_same_key(record_type: &'static RecordType, one: &[u8], other: &[u8]) -> Result<bool> {
    let mut is_same = false;
    record_type.decode(one, &mut |one| {
        record_type.decode(other, &mut |other| {
            is_same = one.has_key_of(other);
            Ok(())
        })
    })?;
    Ok(is_same)
}
