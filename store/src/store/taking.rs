//! Putting into a state what the checkpoints of other stores have of it.

use std::cell::Cell;

use alluvium_layouts::{Merge, Panes, Part, StateContext, Table, trace_span};
use alluvium_pagestore::{
    Account, EntryCodec, Key, MemoryKind, Result, State, StateManifest, Time,
};

use super::Inner;
use crate::sources::SourcePart;

impl Inner {
    /// Puts what other stores' checkpoints have of a state into it, part by part. `extra` is memory
    /// that this takes beside reading.
    pub(super) fn take_parts(
        &self,
        context: &StateContext,
        asked: &StateManifest,
        extra: u64,
        mut take: impl FnMut(&SourcePart) -> Result<()>,
    ) -> Result<()> {
        let Some(sources) = &self.sources else { return Ok(()) };
        if self.checkpoints.borrow().base().is_some() {
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

/// Records that are put at once, and their bytes, unless one is larger.
const BATCH_RECORDS: usize = 64;
const BATCH_BYTES: usize = 16 << 10;

/// Memory for a batch: what a value owns is about as long as its record.
pub(super) fn batch_bytes<K, V>() -> u64 {
    (BATCH_RECORDS * size_of::<(K, V)>() + 2 * BATCH_BYTES) as u64
}

/// Puts the wanted records of a part into a table.
pub(super) fn put_records<K: Key, V: 'static>(
    part: &Part,
    codec: &EntryCodec<K, V>,
    table: &mut impl Table<K, V>,
) -> Result<()> {
    let memory = batch_bytes::<K, V>();
    let account = &part.context.account;
    account.reserve(MemoryKind::Buffers, memory, "records of another store")?;
    let (mut batch, mut bytes) = (Vec::with_capacity(BATCH_RECORDS), 0);
    let put = part.for_each_record(|record| {
        batch.push(codec.decode_record(record)?);
        bytes += record.len();
        if batch.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
            return Ok(());
        }
        bytes = 0;
        table.put_batch(&mut batch)
    });
    // Reading has just given its memory back: the table is not to grow into it.
    let reading = part.reading_bytes();
    account.charge(MemoryKind::Buffers, reading);
    let put = put.and_then(|()| table.put_batch(&mut batch));
    account.release(MemoryKind::Buffers, reading + memory);
    put
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
    let init = || acc.take().expect("taken once");
    panes.update(slice, key, init, |sum| {
        if let Some(acc) = acc.take() {
            merge(sum, &acc);
        }
    })
}
