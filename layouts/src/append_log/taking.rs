//! Reading the lists of another store: its runs are opened where they are and folded, bucket by
//! bucket, over the places of the key groups that are wanted only. Nothing is in memory but the
//! index of runs, so that nothing has to be written.

use alluvium_pagestore::{BlobReader, ErrorKind, Key, Result, State, Time};

use super::config::{AppendLog, LIST_PATIENCE};
use crate::contract::lists::{Lists, ListsLayout, VisitList, span_of};
use crate::contract::table::{Cursor, StateContext};
use crate::heap::hash_range::HashRange;
use crate::restore::parts::ForeignState;

/// Elements looked at between two steps.
const FUEL: usize = 4096;

/// Gives each wanted list of a part, bucket by bucket.
pub fn for_each_list<K: Key, E: State>(
    part: &ForeignState,
    visit: VisitList<'_, K, E>,
) -> Result<()> {
    let blobs = BlobReader::new(part.context.segment_store()?.shared_device());
    let restored = Some((part.image.clone(), blobs));
    let context = StateContext { restored, ..part.context.clone() };
    let (owned, groups) = (context.owned.clone(), context.key_groups);
    let patience = context.segment_store()?.patience().unwrap_or(LIST_PATIENCE);
    let layout = AppendLog::new().patience(patience).packs_slices(false);
    let mut lists = ListsLayout::<K, E>::open_lists(&layout, context)?;
    let range = HashRange::of(&owned, groups);
    let wanted = part.wanted.start.max(owned.start)..part.wanted.end.min(owned.end);
    if wanted.is_empty() {
        return Ok(());
    }
    let first = range.place(first_hash(wanted.start, groups));
    // The place after the last; of the last group owned there may be none.
    let end = (wanted.end < owned.end).then(|| range.place(first_hash(wanted.end, groups)));
    let mut next = lists.next_bucket(Time::MIN);
    while let Some(bucket) = next {
        let Some(span) = span_of(&lists, bucket) else {
            let message = "lists in the last bucket of time and in the one for ever";
            return Err(part.error(ErrorKind::Unsupported, message));
        };
        let mut cursor = Cursor { position: first, ..Cursor::default() };
        while !cursor.done && end.is_none_or(|end| cursor.position < end) {
            lists.fold(span.clone(), &mut cursor, FUEL, &mut |key, elements| {
                if part.takes(key.key_hash())? { visit(bucket, key, elements) } else { Ok(()) }
            })?;
        }
        next = bucket.0.checked_add(1).and_then(|after| lists.next_bucket(Time(after)));
    }
    Ok(())
}

/// The least hash of a key group.
fn first_hash(group: u16, groups: u16) -> u64 {
    (u64::from(group) << 16).div_ceil(u64::from(groups)) << 48
}
