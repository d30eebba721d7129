//! Panes of window segments: a line for each accumulator of a part of a slice.
//!
//! A key's accumulator of a slice may be in several parts, which only its own function can combine:
//! `part` is their order. What was removed is left out.

use std::collections::{BTreeMap, HashMap};

use alluvium_pagestore::{Error, ErrorKind, FooterEntry, RecordBytes, Result, Time, codec};

use super::plain::{pair, record_of};
use super::reader::{DirectoryReader, Passing};
use super::sink::LimitedWriter;
use crate::archive::{ArchiveValue, Types};
use crate::checkpoints::{SegmentAt, StateAt};

/// What the catalog says.
#[derive(Debug, Default)]
struct PaneCatalog {
    /// Slice, accumulators and cuts in its table, number of its next part.
    slices: Vec<(Time, u64, u64, u64)>,
    /// Tables in the order in which they are written.
    tables: Vec<SliceTable>,
    /// Slice, number, first segment and how many.
    runs: Vec<(Time, u64, u64, u64)>,
    /// Slice, first and last hash, and the first part of keys with these that was not removed.
    gaps: Vec<(Time, u64, u64, u64)>,
    /// Segments of runs, and of tables.
    ends: Option<(u64, u64)>,
}

/// The table of a slice as some checkpoint has written it.
#[derive(Debug)]
struct SliceTable {
    slice: Time,
    entries: u64,
    cuts: u64,
    /// Whether it still is the one of its slice.
    is_live: bool,
    /// The number that its entries have among the parts of the slice.
    part: u64,
}

/// Of a slice and a key, the first part that was not removed.
type PaneCuts = HashMap<(Time, String), u64>;

pub fn export(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    sink: &mut LimitedWriter<'_>,
) -> Result<()> {
    let segments: Vec<_> = state.segments().collect();
    if segments.is_empty() {
        return Ok(());
    }
    let catalog = read_catalog(reader, state, &segments)?;
    let (runs, tables) = catalog.ends.unwrap_or_default();
    let tables = &segments[runs as usize..(runs + tables) as usize];
    let mut types = Types::default();
    let root = record_of(&mut types, state.key(), state.value());
    let cut = record_of(&mut types, state.key(), "u64");
    let mut cuts = PaneCuts::new();
    walk_tables(reader, state, tables, &catalog, &mut |table, is_cut, payload| {
        if is_cut {
            let what = |why: crate::archive::Undecodable| {
                let what = format!(
                    "removed keys cannot be read, so it is not known what is live: {}",
                    why.0
                );
                Error::new(ErrorKind::Unsupported, what)
            };
            let [key, before] = pair(&types, cut, payload).map_err(what)?;
            if let ArchiveValue::Number(before) = before {
                let before = before.parse().unwrap_or(u64::MAX);
                cuts.insert((table.slice, format!("{key:?}")), before);
            }
        }
        Ok(false)
    })?;
    let mut tell = |slice: Time, part: u64, payload: &[u8]| match pair(&types, root, payload) {
        Ok([key, value]) => {
            if cuts.get(&(slice, format!("{key:?}"))).is_some_and(|before| part < *before) {
                return Ok(false);
            }
            let number = |number: String| ArchiveValue::Number(number);
            let (slice, part) = (number(slice.0.to_string()), number(part.to_string()));
            sink.line(
                state.name(),
                vec![("slice", slice), ("part", part), ("key", key), ("value", value)],
            )
        }
        Err(why) => {
            let text = format!("Record{{key:{},value:{},}}", state.key(), state.value());
            sink.undecoded(state.name(), text, payload, why)
        }
    };
    for &(slice, number, first, files) in &catalog.runs {
        let files = usize::try_from(first).ok().zip(first.checked_add(files));
        let files = files.and_then(|(first, end)| segments.get(first..end as usize));
        for segment in files.ok_or_else(|| wrong("lost segments"))? {
            let passing = Passing::Images;
            let enough = reader.for_each(state, *segment, passing, &mut |_, record| {
                let Some(record) = record else { return Ok(false) };
                let has = |gap: &&(Time, u64, u64, u64)| {
                    gap.0 == slice && (gap.1..=gap.2).contains(&record.hash) && number < gap.3
                };
                match catalog.gaps.iter().find(has) {
                    Some(_) => Ok(false),
                    None => tell(slice, number, record.payload),
                }
            })?;
            if enough {
                return Ok(());
            }
        }
    }
    walk_tables(reader, state, tables, &catalog, &mut |table, is_cut, payload| {
        if is_cut { Ok(false) } else { tell(table.slice, table.part, payload) }
    })
}

/// What is called with each record of the tables of slices: its table, whether it is a cut, its
/// bytes.
type VisitTableRecord<'v> = &'v mut dyn FnMut(&SliceTable, bool, &[u8]) -> Result<bool>;

/// Walks the records of the tables, of each first accumulators and then cuts; passes over those
/// that are of no slice any more.
fn walk_tables(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    segments: &[SegmentAt<'_>],
    catalog: &PaneCatalog,
    visit: VisitTableRecord<'_>,
) -> Result<()> {
    let records = |table: &SliceTable| table.entries.saturating_add(table.cuts);
    let mut tables = catalog.tables.iter().filter(|table| records(table) > 0);
    let (mut table, mut passed) = (tables.next(), 0);
    for segment in segments {
        let enough = reader.for_each(state, *segment, Passing::Records, &mut |_, record| {
            let Some(of) = table else { return Err(wrong("more accumulators than it tells of")) };
            let is_cut = passed >= of.entries;
            passed += 1;
            if passed >= records(of) {
                (table, passed) = (tables.next(), 0);
            }
            match record {
                _ if !of.is_live => Ok(false),
                Some(record) => visit(of, is_cut, record.payload),
                None if is_cut => Err(wrong("a removed key is damaged")),
                None => Ok(false),
            }
        })?;
        if enough {
            break;
        }
    }
    Ok(())
}

fn read_catalog(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    segments: &[SegmentAt<'_>],
) -> Result<PaneCatalog> {
    let mut catalog = PaneCatalog::default();
    let last = segments.len() - 1;
    read_part(reader, state, segments[last], &mut catalog)?;
    let ends = catalog.ends.and_then(|(runs, tables)| runs.checked_add(tables));
    let Some(first) = ends.filter(|end| *end <= last as u64) else {
        return Err(wrong("it has no end"));
    };
    // The last segment has the end, the others what comes before it.
    let end = std::mem::take(&mut catalog).ends;
    for segment in &segments[first as usize..] {
        read_part(reader, state, *segment, &mut catalog)?;
    }
    catalog.ends = end;
    let known: BTreeMap<Time, u64> =
        catalog.slices.iter().map(|(slice, _, _, next)| (*slice, *next)).collect();
    if catalog.tables.is_empty() {
        // Of a build from before there were groups.
        let table = |&(slice, entries, cuts, _): &(Time, u64, u64, u64)| SliceTable {
            slice,
            entries,
            cuts,
            is_live: true,
            part: 0,
        };
        catalog.tables = catalog.slices.iter().map(table).collect();
    }
    for table in catalog.tables.iter_mut().filter(|table| table.is_live) {
        table.part = *known.get(&table.slice).ok_or_else(|| wrong("a table of no slice"))?;
    }
    if catalog.runs.iter().any(|run| !known.contains_key(&run.0)) {
        return Err(wrong("a run of no slice"));
    }
    Ok(catalog)
}

fn read_part(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    segment: SegmentAt<'_>,
    catalog: &mut PaneCatalog,
) -> Result<()> {
    let decode = &mut |_: &FooterEntry, record: Option<RecordBytes<'_>>| {
        let record = record.expect("no damage is passed over");
        let ((kind, slice), told) = codec::decode::<(u8, Time), Vec<u64>>(record.payload)?;
        match (kind, &told[..]) {
            (0, &[entries, cuts, next, ref gaps @ ..]) if gaps.len().is_multiple_of(3) => {
                catalog.slices.push((slice, entries, cuts, next));
                let gap = |gap: &[u64]| (slice, gap[0], gap[1], gap[2]);
                catalog.gaps.extend(gaps.chunks_exact(3).map(gap));
            }
            (1, &[number, _, _, first, files]) => {
                catalog.runs.push((slice, number, first, files));
            }
            // Images: all of a run are read here, one after the other.
            (2, _) => {}
            // Groups stand one behind the other, like their tables.
            (4, _) => {}
            (5, &[entries, cuts, live]) => {
                let is_live = live != 0;
                catalog.tables.push(SliceTable { slice, entries, cuts, is_live, part: 0 });
            }
            (3, &[runs, tables]) => catalog.ends = Some((runs, tables)),
            _ => return Err(wrong("a record of an unknown kind")),
        }
        Ok(false)
    };
    reader.for_each(state, segment, Passing::Nothing, decode).map(drop)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the catalog of slices is inconsistent: {what}"))
}
