//! Reading the slices of another store: records of runs, the oldest run of a slice first, then those
//! of the tables that were in memory. What was cut from a key is passed over; the cuts of the wanted
//! keys are in memory meanwhile.

use std::collections::HashMap;

use alluvium_pagestore::{
    Account, FooterEntry, Key, MemoryKind, PassedRecord, Result, SegmentImage, SegmentReader,
    State, Time, codec, fingerprint, rounded,
};
use hashbrown::HashTable;

use super::LAYOUT;
use super::checkpoint::{
    END, OF_IMAGES, OF_RUN, OF_SLICE, TableCatalog, catalog_is_wrong, ends, gaps_of,
};
use super::packed::split;
use super::tables::{CatalogTables, TableRecord};
use crate::append_log::for_each_list;
use crate::contract::table::StateContext;
use crate::restore::full_image::chunk_bytes;
use crate::restore::parts::ForeignState;
use crate::support::gaps::{GAP_BYTES, Gaps};

/// A slice of the catalog.
struct SliceAt {
    slice: Time,
    gaps: Gaps,
    runs: Vec<RunAt>,
}

struct RunAt {
    number: u64,
    first: u64,
    files: u64,
}

/// Removed keys of a slice, and the number of the first part that counts.
type CutsBySlice<K> = HashMap<Time, HashTable<(K, u64)>>;

/// Gives each wanted accumulator of a part, in pieces of which an earlier one has what came before.
pub fn for_each_part_of_a_pane<K: Key, A: State>(
    part: &ForeignState,
    pane: &mut dyn FnMut(Time, K, A) -> Result<()>,
) -> Result<()> {
    let (image, of_log) = split(&part.image);
    if let Some(image) = of_log {
        // What is open gives back all that its account has.
        let account = Account::below(&part.context.account, &part.context.name, u64::MAX);
        let context = StateContext { account, ..part.context.clone() };
        for_each_packed(&ForeignState { context, image, ..part.clone() }, pane)?;
    }
    let segments = match image.only_part(LAYOUT)? {
        Some(part) => &part.segments[..],
        None if image.entries == 0 => return Ok(()),
        None => &[],
    };
    let account = &part.context.account;
    let before = account.used_for(MemoryKind::Tables);
    let read = read(part, segments, pane);
    let taken = account.used_for(MemoryKind::Tables) - before;
    account.release(MemoryKind::Tables, taken);
    read.map_err(|error| error.with("state", &part.context.name))
}

/// Gives what the log of small slices has, which is older than all else.
fn for_each_packed<K: Key, A: State>(
    log: &ForeignState,
    pane: &mut dyn FnMut(Time, K, A) -> Result<()>,
) -> Result<()> {
    for_each_list::<K, A>(log, &mut |slice, key, list| {
        while let Some(accumulator) = list.next()? {
            pane(slice, key.clone(), accumulator.clone())?;
        }
        Ok(())
    })
}

fn read<K: Key, A: State>(
    part: &ForeignState,
    segments: &[SegmentImage],
    pane: &mut dyn FnMut(Time, K, A) -> Result<()>,
) -> Result<()> {
    let (runs, tables) = {
        let (store, account) = (part.context.segment_store()?.clone(), &part.context.account);
        let window = chunk_bytes(&part.context);
        account.reserve(MemoryKind::Buffers, window as u64, "the catalog of slices")?;
        let state = fingerprint(&part.context.name);
        let mut reader = SegmentReader::new(store.clone(), state, window);
        let found = ends(&mut reader, &store, segments);
        account.release(MemoryKind::Buffers, window as u64);
        found?
    };
    let (slices, listed) = read_catalog(part, &segments[tables..], tables - runs)?;
    let tables = &segments[runs..tables];
    let mut cuts = CutsBySlice::<K>::new();
    for_each_of_tables(part, &listed, tables, &mut |of, entry, record| {
        if !of.is_cut {
            return Ok(());
        }
        let (key, before) = codec::decode::<K, u64>(record.payload(entry)?)?;
        // Twice, for the table that grows.
        let bytes = 4 * (size_of::<(K, u64)>() + 1) + rounded(key.heap_bytes());
        let account = &part.context.account;
        account.reserve(MemoryKind::Tables, bytes as u64 + 64, "the removed keys of slices")?;
        let of_slice = cuts.entry(of.slice).or_default();
        of_slice.insert_unique(entry.hash, (key, before), |(key, _)| key.key_hash());
        Ok(())
    })?;
    for slice in &slices {
        let cuts = cuts.get(&slice.slice);
        for run in &slice.runs {
            let files = run.first as usize..run.first.saturating_add(run.files) as usize;
            let files =
                segments[..runs].get(files).ok_or_else(|| catalog_is_wrong("lost files"))?;
            part.read(files, &mut |entry, record| {
                if !part.takes(entry.hash)? {
                    return Ok(());
                }
                let (key, acc) = codec::decode::<K, A>(record.payload(entry)?)?;
                if run.number < slice.gaps.first_part(entry.hash) {
                    return Ok(());
                }
                let cut = cuts.and_then(|cuts| cuts.find(entry.hash, |(known, _)| *known == key));
                match cut {
                    Some((_, before)) if run.number < *before => Ok(()),
                    _ => pane(slice.slice, key, acc),
                }
            })?;
        }
    }
    for_each_of_tables(part, &listed, tables, &mut |of, entry, record| {
        if of.is_cut {
            return Ok(());
        }
        let (key, acc) = codec::decode::<K, A>(record.payload(entry)?)?;
        pane(of.slice, key, acc)
    })
}

/// The slices, and their tables, which are in so many segments.
fn read_catalog(
    part: &ForeignState,
    segments: &[SegmentImage],
    tables: usize,
) -> Result<(Vec<SliceAt>, CatalogTables)> {
    let account = &part.context.account;
    let (mut slices, mut catalog) = (Vec::<SliceAt>::new(), TableCatalog::default());
    part.read(segments, &mut |entry, record| {
        let ((kind, slice), numbers) =
            codec::decode::<(u8, Time), Vec<u64>>(record.payload(entry)?)?;
        if catalog.take_in(account, kind, slice, &numbers)? {
            return Ok(());
        }
        // Twice, for vectors that grow.
        let bytes = 2 * (size_of::<SliceAt>() + size_of::<RunAt>()) as u64;
        account.reserve(MemoryKind::Tables, bytes, "the catalog of slices")?;
        match (kind, &numbers[..]) {
            (OF_SLICE, &[_, _, _, ref gaps @ ..]) => {
                let bytes = GAP_BYTES * gaps.len() as u64;
                account.reserve(MemoryKind::Tables, bytes, "the catalog of slices")?;
                let (gaps, runs) = (gaps_of(gaps)?.collect(), Vec::new());
                slices.push(SliceAt { slice, gaps, runs });
            }
            (OF_RUN, &[number, _, _, first, files]) => {
                let of = slices.last_mut().filter(|last| last.slice == slice);
                let of = of.ok_or_else(|| catalog_is_wrong("a run of no slice"))?;
                of.runs.push(RunAt { number, first, files });
            }
            (OF_IMAGES | END, _) => {}
            _ => return Err(catalog_is_wrong("a record of an unknown kind")),
        }
        Ok(())
    })?;
    catalog.tables.check(&catalog.slices, tables)?;
    Ok((slices, catalog.tables))
}

type VisitTable<'v> =
    &'v mut dyn FnMut(TableRecord, &FooterEntry, &mut PassedRecord<'_>) -> Result<()>;

/// Visits the records of the tables of slices: accumulators, then cuts, table by table.
fn for_each_of_tables(
    part: &ForeignState,
    listed: &CatalogTables,
    tables: &[SegmentImage],
    visit: VisitTable<'_>,
) -> Result<()> {
    let mut records = listed.records();
    part.read(tables, &mut |entry, record| {
        let of = records.next()?;
        if !of.is_live || !part.takes(entry.hash)? {
            return Ok(());
        }
        visit(of, entry, record)
    })?;
    records.end()
}
