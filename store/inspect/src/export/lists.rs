//! Lists of the append log: a line for each stretch of a key's elements in a run.
//!
//! Slices that are [packed](super::packed) have theirs in sorted runs, of which nothing is noted.
//!
//! The catalog says which records are of which run, and what notes hide or lend. A key's stretches
//! come in the order of runs, which need not be that of the list: `rank` says it. Only notes are
//! kept in memory.
//!
//! Of key groups that have left it says between which hashes their keys are. Blocks have the hash
//! of their first key only; that of the others is computed, where the hash is one that follows from
//! the type. Whether it is so is seen before anything is told: each first key has to have the hash
//! that is stored, and those behind it have to be in its order.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use alluvium_layouts::stored_internals::slices_of_page;
use alluvium_pagestore::{Error, ErrorKind, RecordBytes, Result, SegmentId, codec};

use super::packed::PackedSlices;
use super::plain::{pair, record_of};
use super::reader::{DirectoryReader, Passing};
use super::sink::LimitedWriter;
use crate::archive::{Archive, ArchiveValue, Types, Undecodable};
use crate::checkpoints::StateAt;

/// What a note's record has as its value: bucket, cut and lowest rank, then imports.
const NOTE: &str = "((i64,u64,i64,),Vec<(i64,u64,u64,i64,)>,)";

/// Newest run, and how many records of runs and of notes follow.
type CatalogHead = (u64, u64, u64);
type RunKey = (i64, u64);
type RunValue = (u64, bool, Vec<(u64, u32, u32)>);

/// A stretch of records of one run in a segment.
#[derive(Debug)]
struct RunPart {
    /// Grain of its first record.
    first: u32,
    records: u32,
    bucket: i64,
    run: u64,
    purged: bool,
}

/// What the catalog says.
#[derive(Debug, Default)]
struct ListCatalog {
    parts: HashMap<SegmentId, Vec<RunPart>>,
    /// Of a bucket and a key, the first run that is the key's.
    cuts: HashMap<(i64, String), u64>,
    /// Of a key, what its lists in other buckets have from a bucket's runs.
    imports: HashMap<(i64, String), Vec<Import>>,
    /// Of a bucket, what key groups have left behind in its runs.
    gaps: Vec<(i64, RunGap)>,
    packed: PackedSlices,
}

/// Of keys with these hashes, runs before one have nothing any more.
#[derive(Debug)]
struct RunGap {
    hashes: RangeInclusive<u64>,
    before: u64,
}

/// The types of a block and of its keys.
#[derive(Debug)]
struct BlockTypes {
    types: Types,
    of: usize,
    key: usize,
}

#[derive(Debug)]
struct Import {
    bucket: i64,
    runs: (u64, u64),
    shift: i64,
}

pub fn export(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    sink: &mut LimitedWriter<'_>,
) -> Result<()> {
    state.is_laid_out_as("append-log")?;
    let (catalog, catalog_segments) = match read_catalog(reader, state)? {
        Ok(found) => found,
        Err(why) => {
            let what = format!(
                "notes of lists cannot be read, so it is not known what is live: {}",
                why.0
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    };
    let mut lists =
        ExportedLists { reader, state, catalog, catalog_segments, block: BlockTypes::of(state) };
    if !lists.catalog.gaps.is_empty() {
        lists.check_hashes()?;
    }
    let enough =
        lists.for_each_block(&mut |part, record| lists.export_block(part, record, sink))?;
    if enough {
        return Ok(());
    }
    let mut packed = std::mem::take(&mut lists.catalog.packed);
    packed.for_each((reader, state), &mut |slice, payload| {
        lists.export_payload(payload, sink, &mut |_, rank| vec![(slice, rank)])
    })
}

/// The lists of a state.
#[derive(Debug)]
struct ExportedLists<'d> {
    reader: &'d DirectoryReader<'d>,
    state: StateAt<'d>,
    catalog: ListCatalog,
    catalog_segments: usize,
    block: BlockTypes,
}

impl BlockTypes {
    /// A vector of entries.
    fn of(state: StateAt<'_>) -> Self {
        let mut types = Types::default();
        let (key, rank) = (types.parse(state.key()), types.parse("i64"));
        let elements = types.parse(&format!("Vec<{}>", state.value()));
        let entry = types.add_struct(&[("key", key), ("rank", rank), ("elements", elements)]);
        let of = types.add(crate::archive::Type::List(entry));
        Self { types, of, key }
    }

    /// Key, rank and elements of each entry.
    fn entries(
        &self,
        payload: &[u8],
    ) -> std::result::Result<impl Iterator<Item = (ArchiveValue, i64, ArchiveValue)>, Undecodable>
    {
        let entries = match Archive::decode(&self.types, self.of, payload)? {
            ArchiveValue::List(entries) => entries,
            other => unreachable!("a list decodes to {other:?}"),
        };
        Ok(entries.into_iter().map(|entry| {
            let ArchiveValue::Fields(fields) = entry else { unreachable!("an entry is a struct") };
            let mut fields = fields.into_iter().map(|(_, value)| value);
            let (Some(key), Some(ArchiveValue::Number(rank)), Some(elements)) =
                (fields.next(), fields.next(), fields.next())
            else {
                unreachable!("an entry has three fields")
            };
            (key, rank.parse().expect("an i64 that was decoded"), elements)
        }))
    }

    fn key_hash(&self, key: &ArchiveValue) -> Option<u64> {
        self.types.key_hash(self.key, key)
    }
}

/// What is called with each block of runs, until it says that it has enough.
type VisitBlock<'v> = &'v mut dyn FnMut(&RunPart, RecordBytes<'_>) -> Result<bool>;

impl ExportedLists<'_> {
    /// Says whether `visit` had enough.
    fn for_each_block(&self, visit: VisitBlock<'_>) -> Result<bool> {
        for segment in self.state.segments().skip(self.catalog_segments) {
            let parts = self.catalog.parts.get(&segment.id()).map_or(&[][..], |parts| parts);
            let (mut current, mut left) = (None, 0);
            let passing = Passing::Segments;
            let enough =
                self.reader.for_each(self.state, segment, passing, &mut |entry, record| {
                    if let Some(part) = parts.iter().find(|part| part.first == entry.grain) {
                        (current, left) = (Some(part), part.records);
                    }
                    // A record that the catalog does not name is of a run that is gone.
                    let Some(part) = current.filter(|_| left > 0) else { return Ok(false) };
                    left -= 1;
                    record.map_or(Ok(false), |record| visit(part, record))
                })?;
            if enough {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sees to it that the hashes of keys are those that follow from their type.
    fn check_hashes(&self) -> Result<()> {
        self.for_each_block(&mut |_, record| {
            let mut last = None;
            // What cannot be decoded is told as bytes, whoever's it is.
            for (key, ..) in self.block.entries(record.payload).into_iter().flatten() {
                let hash = self.block.key_hash(&key);
                let is_right = match last {
                    None => hash == Some(record.hash),
                    Some(last) => hash.is_some_and(|hash| hash >= last),
                };
                if !is_right {
                    let what = "key groups have left these lists and are in runs still: which of their keys \
                                are live, only a store that opens them can tell, as the keys' hash is not \
                                known";
                    return Err(Error::new(ErrorKind::Unsupported, what));
                }
                last = hash;
            }
            Ok(false)
        })
        .map(drop)
    }

    fn export_block(
        &self,
        part: &RunPart,
        record: RecordBytes<'_>,
        sink: &mut LimitedWriter<'_>,
    ) -> Result<bool> {
        self.export_payload(record.payload, sink, &mut |key, rank| {
            let first = self.catalog.first_run(part.bucket, || self.block.key_hash(key));
            self.catalog.owners(part, (key, first), rank)
        })
    }

    /// Writes a line for each bucket that has a part of a key's list in a block.
    fn export_payload(
        &self,
        payload: &[u8],
        sink: &mut LimitedWriter<'_>,
        owners: Owners<'_>,
    ) -> Result<bool> {
        let state = self.state;
        let entries = match self.block.entries(payload) {
            Ok(entries) => entries,
            Err(why) => {
                let text = format!(
                    "Vec<{{key:{},rank:i64,elements:Vec<{}>,}}>",
                    state.key(),
                    state.value()
                );
                return sink.undecoded(state.name(), text, payload, why);
            }
        };
        for (key, rank, elements) in entries {
            for (bucket, rank) in owners(&key, rank) {
                let mut line = Vec::with_capacity(4);
                if state.primitive() != "list" {
                    line.push(("slice", ArchiveValue::Number(bucket.to_string())));
                }
                line.push(("key", key.clone()));
                line.push(("rank", ArchiveValue::Number(rank.to_string())));
                line.push(("value", elements.clone()));
                if sink.line(state.name(), line)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The buckets of a key that have what a run has of it, with its rank there.
type Owners<'o> = &'o mut dyn FnMut(&ArchiveValue, i64) -> Vec<(i64, i64)>;

impl ListCatalog {
    /// The buckets in which a key has what it has in a run, with its rank there.
    fn owners(
        &self,
        part: &RunPart,
        (key, first): (&ArchiveValue, u64),
        rank: i64,
    ) -> Vec<(i64, i64)> {
        let place = (part.bucket, name_of(key));
        let mut owners = Vec::new();
        let first = self.cuts.get(&place).copied().unwrap_or(0).max(first);
        if !part.purged && part.run >= first {
            owners.push((part.bucket, rank));
        }
        for import in self.imports.get(&place).into_iter().flatten() {
            if (import.runs.0..=import.runs.1).contains(&part.run) {
                owners.push((import.bucket, rank.saturating_add(import.shift)));
            }
        }
        owners
    }
}

impl ListCatalog {
    /// The first run of a bucket that gaps leave to a key with this hash.
    fn first_run(&self, bucket: i64, hash: impl FnOnce() -> Option<u64>) -> u64 {
        let mut gaps = self.gaps.iter().filter(|(of, _)| *of == bucket).peekable();
        if gaps.peek().is_none() {
            return 0;
        }
        let Some(hash) = hash() else { return 0 };
        let gaps = gaps.filter(|(_, gap)| gap.hashes.contains(&hash));
        gaps.map(|(_, gap)| gap.before).max().unwrap_or(0)
    }
}

/// A key as text, the same for equal keys only: JSON would not tell `None` from a unit.
fn name_of(key: &ArchiveValue) -> String {
    format!("{key:?}")
}

/// Reads the catalog, and says how many segments it takes.
fn read_catalog(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
) -> Result<std::result::Result<(ListCatalog, usize), Undecodable>> {
    let mut types = Types::default();
    let note = record_of(&mut types, state.key(), NOTE);
    let mut catalog = ListCatalog::default();
    let (mut head, mut seen, mut unknown) = (None::<CatalogHead>, 0, None);
    for (number, segment) in state.segments().enumerate() {
        reader.for_each(state, segment, Passing::Nothing, &mut |_, record| {
            let record = record.expect("no damage is passed over");
            let Some((_, runs, _)) = head else {
                head = Some(codec::decode::<(), CatalogHead>(record.payload)?.1);
                return Ok(false);
            };
            if seen < runs {
                let (key, value) = codec::decode::<RunKey, RunValue>(record.payload)?;
                catalog.add_run(key, value)?;
            } else {
                match pair(&types, note, record.payload) {
                    Ok([key, value]) => catalog.add_note(&key, value),
                    Err(why) => unknown = Some(why),
                }
            }
            seen += 1;
            Ok(false)
        })?;
        if head.is_some_and(|(_, runs, notes)| runs.saturating_add(notes) <= seen) {
            return Ok(unknown.map_or(Ok((catalog, number + 1)), Err));
        }
    }
    match state.segments().count() {
        0 => Ok(Ok((catalog, 0))),
        _ => Err(Error::new(ErrorKind::Corrupt, "the catalog of runs is not complete")),
    }
}

impl ListCatalog {
    fn add_run(&mut self, key: RunKey, value: RunValue) -> Result<()> {
        if let Some(slices) = slices_of_page(key, &value)? {
            for (start, elements, since) in slices {
                self.packed.add(start.0, elements, since);
            }
            return Ok(());
        }
        let ((bucket, run), (first, purged, parts)) = (key, value);
        // What a key group has left behind is told as a run without records.
        if let [(last, 0, 0)] = parts[..] {
            self.gaps.push((bucket, RunGap { hashes: first..=last, before: run }));
            return Ok(());
        }
        for (segment, first, records) in parts {
            let part = RunPart { first, records, bucket, run, purged };
            self.parts.entry(SegmentId(segment)).or_default().push(part);
        }
        Ok(())
    }

    fn add_note(&mut self, key: &ArchiveValue, note: ArchiveValue) {
        let numbers = numbers_of(&note);
        let (Some(&bucket), Some(&cut)) = (numbers.first(), numbers.get(1)) else { return };
        let (name, bucket) = (name_of(key), bucket as i64);
        self.cuts.insert((bucket, name.clone()), cut as u64);
        for import in numbers[3..].chunks_exact(4) {
            let runs = (import[1] as u64, import[2] as u64);
            let import = (import[0] as i64, Import { bucket, runs, shift: import[3] as i64 });
            self.imports.entry((import.0, name.clone())).or_default().push(import.1);
        }
    }
}

/// The numbers of a value, from first to last.
fn numbers_of(value: &ArchiveValue) -> Vec<i128> {
    match value {
        ArchiveValue::Number(number) => number.parse().into_iter().collect(),
        ArchiveValue::List(values) => values.iter().flat_map(numbers_of).collect(),
        _ => Vec::new(),
    }
}
