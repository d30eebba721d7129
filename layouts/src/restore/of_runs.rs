//! Reads records from the sorted runs of a checkpoint: those of some key groups, of another store's, or all of a state's
//! own, for a layout that takes them into memory.
//!
//! Records stand in the order of their hashes, and a key group is a range of them: what stands before and behind it is
//! not read, but for the partitions at its ends.
//!
//! What it keeps true: of a key the newest record is shown, unless it is a tombstone. What segments have of the key is
//! newer still.

use std::ops::RangeInclusive;

use alluvium_pagestore::{ImagePart, KeyGroup, MemoryKind, Result, SegmentStore};

use super::full_image::chunk_bytes;
use super::parts::ForeignState;
use crate::contract::table::StateContext;
use crate::hybrid_log::TOMBSTONE;
use crate::runs::{RecordView, scan, scan_bytes};
use crate::support::booked::Booked;

/// Whether two encoded records are of one key, by `Eq`.
pub type HasSameKey<'a> = &'a dyn Fn(&[u8], &[u8]) -> Result<bool>;

/// Bytes that reading a part takes.
pub(super) fn runs_bytes(part: &ForeignState, runs: &ImagePart) -> u64 {
    scan_bytes(&runs.levels, chunk_bytes(&part.context))
}

/// Shows the wanted records of a part.
pub(super) fn read_runs(
    part: &ForeignState,
    runs: &ImagePart,
    has_same_key: HasSameKey<'_>,
    record: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if part.wanted.is_empty() {
        return Ok(());
    }
    let context = &part.context;
    let hashes_of = |group| KeyGroup(group).hashes(context.key_groups);
    let wanted = *hashes_of(part.wanted.start).start()..=*hashes_of(part.wanted.end - 1).end();
    let store = context.segment_store()?;
    scan_newest((context, store), runs, &wanted, &mut |group| {
        if part.takes(group[0].hash)? { newest(group, has_same_key, record) } else { Ok(()) }
    })
}

/// Shows the records of a state's own runs to a layout that takes them into memory. What the state's segments have of a
/// key is newer. What has expired and is in runs still is shown, too.
pub(crate) fn read_own_runs(
    context: &StateContext,
    runs: &ImagePart,
    has_same_key: HasSameKey<'_>,
    record: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let store = context.segment_store()?.for_opening();
    scan_newest((context, &store), runs, &(0..=u64::MAX), &mut |group| {
        newest(group, has_same_key, record)
    })
}

/// Shows the records of a range of hashes, all of one hash together.
fn scan_newest(
    (context, store): (&StateContext, &SegmentStore),
    runs: &ImagePart,
    hashes: &RangeInclusive<u64>,
    visit: &mut dyn FnMut(&[RecordView<'_>]) -> Result<()>,
) -> Result<()> {
    let read_bytes = chunk_bytes(context);
    let (account, bytes) = (context.account.clone(), scan_bytes(&runs.levels, read_bytes));
    let what = "reading the sorted runs of a checkpoint";
    let _booked = Booked::reserve(account, MemoryKind::Buffers, bytes, what)?;
    scan((store, &runs.levels), hashes, read_bytes, &mut |group| visit(group).map(|()| true))
}

/// Shows the newest record of each key among those of one hash, the newest first.
fn newest(
    group: &[RecordView<'_>],
    has_same_key: HasSameKey<'_>,
    record: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for (nth, one) in group.iter().enumerate() {
        let mut is_newest = true;
        for newer in &group[..nth] {
            is_newest &= !has_same_key(one.payload, newer.payload)?;
        }
        if is_newest && one.mark != TOMBSTONE {
            record(one.payload)?;
        }
    }
    Ok(())
}
