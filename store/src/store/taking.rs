//! Putting into a state what the checkpoints of other stores have of it.

use std::cell::Cell;

use alluvium_layouts::{ForeignState, HasSameKey, Merge, Panes, StateContext, Table, trace_span};
use alluvium_pagestore::{
    Account, EntryCodec, Key, MemoryKind, Result, State, StateManifest, Time,
};

use super::StoreCore;
use crate::api::batch::BookedBatch;
use crate::cells::update_rarely;
use crate::durability::sources::SourcePart;

impl StoreCore {
    /// Puts what other stores' checkpoints have of a state into it, part by part. `extra` is memory
    /// that this takes beside reading.
    pub(super) fn take_parts(
        &self,
        context: &StateContext,
        asked: &StateManifest,
        extra: u64,
        take: &mut dyn FnMut(&SourcePart) -> Result<()>,
    ) -> Result<()> {
        let Some(sources) = &self.sources else { return Ok(()) };
        let is_dropped = self.dropped.borrow().contains(&asked.name);
        if is_dropped || self.checkpoints.borrow().base().is_some() {
            return Ok(());
        }
        // Beside the state's own memory, which may be as little as it needs to work.
        let account = Account::below(&self.root, &context.name, u64::MAX);
        let parts = sources.parts(asked, context, &account);
        // Kept for reading, as what is restored may take all other memory.
        let memory = parts.iter().map(|part| part.part.reading_bytes()).max().unwrap_or(0);
        let memory = memory + extra;
        account.reserve(MemoryKind::Buffers, memory, "reading another store's state")?;
        for part in parts {
            trace_span!(INFO, "take over", state = context.name.as_str());
            // Lent to `take`, which has no more than that when it returns, and has just given it back.
            account.release(MemoryKind::Buffers, memory);
            let taken = take(&part);
            account.charge(MemoryKind::Buffers, memory);
            if let Err(error) = taken {
                account.release(MemoryKind::Buffers, memory);
                self.book_left();
                return Err(match error.context("state") {
                    Some(_) => error,
                    None => error.with("state", &context.name),
                });
            }
        }
        account.release(MemoryKind::Buffers, memory);
        sources.done_with(&asked.name);
        Ok(())
    }
}

/// Puts the wanted records of a part into a table.
pub(crate) fn put_records<K: Key, V: 'static>(
    part: &ForeignState,
    codec: &EntryCodec<K, V>,
    table: &mut impl Table<K, V>,
) -> Result<()> {
    let mut batch = BookedBatch::begin(&part.context.account)?;
    let has_same_key = |one: &[u8], other: &[u8]| {
        let (one, other) = (codec.decode_record(one)?, codec.decode_record(other)?);
        Ok(one.0 == other.0)
    };
    each_record(part, &has_same_key, &mut |record| {
        let is_enough = match record {
            Some(record) => batch.push(codec.decode_record(record)?, record.len()),
            None => true,
        };
        if is_enough { table.put_batch(&mut batch.items) } else { Ok(()) }
    })
}

/// Gives the wanted records of a part, and then none.
fn each_record(
    part: &ForeignState,
    has_same_key: HasSameKey<'_>,
    give: &mut dyn FnMut(Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    part.for_each_record(has_same_key, |record| give(Some(record)))?;
    lent_again(part, || give(None))
}

/// Reading has just given its memory back: who puts what is left is not to grow into it.
fn lent_again<R>(part: &ForeignState, put: impl FnOnce() -> R) -> R {
    let (account, reading) = (&part.context.account, part.reading_bytes());
    account.charge(MemoryKind::Buffers, reading);
    let put = put();
    account.release(MemoryKind::Buffers, reading);
    put
}

/// An accumulator on its way into a slice, until it is there.
pub(crate) type Pane<K, A> = (Time, K, Cell<Option<A>>);

/// Puts the wanted accumulators of a part into panes.
pub(crate) fn put_panes<K: Key, A: State>(
    part: &ForeignState,
    merge: &Merge<A>,
    panes: &mut impl Panes<K, A>,
) -> Result<()> {
    let mut batch = BookedBatch::<Pane<K, A>>::begin(&part.context.account)?;
    part.for_each_pane(|slice, key: K, acc: A| {
        let bytes = key.heap_bytes() + acc.heap_bytes();
        match batch.push((slice, key, Cell::new(Some(acc))), bytes) {
            true => put_all(panes, merge, &mut batch),
            false => Ok(()),
        }
    })?;
    lent_again(part, || put_all(panes, merge, &mut batch))
}

/// Adds to slices what came after what they have, in order.
pub(crate) fn put_all<K: Key, A: State>(
    panes: &mut impl Panes<K, A>,
    merge: &Merge<A>,
    batch: &mut BookedBatch<Pane<K, A>>,
) -> Result<()> {
    fn place<K, A>((slice, key, _): &Pane<K, A>) -> (Time, &K) {
        (*slice, key)
    }
    let init = |(_, _, acc): &Pane<K, A>| acc.take().expect("taken once");
    let put = panes.update_batch(&batch.items, place, init, |(_, _, acc): &Pane<K, A>, sum| {
        if let Some(acc) = acc.take() {
            merge(sum, &acc);
        }
    });
    batch.items.clear();
    put.map_err(|failed| failed.error)
}

/// Adds to a slice what came after what it has.
pub(crate) fn put<K: Key, A: State>(
    panes: &mut impl Panes<K, A>,
    merge: &Merge<A>,
    slice: Time,
    key: &K,
    acc: A,
) -> Result<()> {
    let acc = Cell::new(Some(acc));
    let init = &mut || acc.take().expect("taken once");
    update_rarely(panes, (slice, key), init, &mut |sum| {
        if let Some(acc) = acc.take() {
            merge(sum, &acc);
        }
    })
}
