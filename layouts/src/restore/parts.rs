//! Reads the records of some key groups from the checkpoint of another store.
//!
//! It never changes the other store. Footers contain key hashes, and state by key decodes only the
//! wanted records. Timers and other state whose records contain the key inside a larger one are
//! decoded to find the group. It reserves memory for one window, the footer of one image and the
//! live records of one segment, plus read-ahead buffers if they fit. A layout reserves its own
//! memory.

use std::ops::Range;

use alluvium_pagestore::{
    BlobReader, Error, ErrorKind, FooterEntry, ImagePart, Key, KeyGroup, KeyGroups, Liveness,
    MemoryKind, PassedRecord, RECORDS, RUNS, Result, SegmentImage, State, StateImage, Time, codec,
};

use crate::append_log::for_each_list;
use crate::contract::table::StateContext;
use crate::restore::full_image::{chunk_bytes, set_bytes};
use crate::restore::of_runs::{HasSameKey, read_runs, runs_bytes};
use crate::restore::passing::pass_over_live;
use crate::window_segments::for_each_part_of_a_pane;

/// One state in another store's checkpoint, and the key groups wanted from it.
#[derive(Clone, Debug)]
pub struct ForeignState {
    /// The state as the other store opened it: its segments, on a read-only device, and its key
    /// groups. Memory is reserved on this account.
    pub context: StateContext,
    /// Name of the layout that wrote the state.
    pub layout: String,
    /// The image: where the records are.
    pub image: StateImage,
    /// The key groups that the other store owns.
    pub has: KeyGroups,
    /// Key groups that the other store gave away. It may still have records of them.
    pub going: KeyGroups,
    /// The key groups that are wanted.
    pub wanted: Range<u16>,
    /// Whether a key outside `has` and `going` is an error. Otherwise it is skipped.
    pub strict: bool,
}

impl ForeignState {
    /// Returns whether a key with this hash is wanted.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the part is strict and the other store never owned the key's
    /// group. No store that takes over key groups would receive such a key.
    pub fn takes(&self, hash: u64) -> Result<bool> {
        let group = KeyGroup::of(hash, self.context.key_groups);
        let is_there = self.has.contains(group);
        if !is_there && self.strict && !self.going.contains(group) {
            let (group, has) = (group.0, &self.has);
            let message = format!(
                "a key is of group {group}, and its store owns {has}: keys of this state were not \
                 given to workers by key group"
            );
            return Err(self.error(ErrorKind::Mismatch, &message));
        }
        Ok(is_there && self.wanted.contains(&group.0))
    }

    /// Passes the wanted records of a table to `record`, as [`codec`] encodes them. A key may come twice: its later
    /// record counts. `has_same_key` says whether two records are of one key.
    ///
    /// # Errors
    /// Those of `record`, `has_same_key` and of reading; [`ErrorKind::Corrupt`] for damage.
    pub fn for_each_record(
        &self,
        has_same_key: HasSameKey<'_>,
        mut record: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (runs, _) = self.parts()?;
        for part in runs {
            // What the segments have of a key is newer.
            read_runs(self, part, has_same_key, &mut record)?;
        }
        self.read_segments(&mut |entry, reader| {
            if self.takes(entry.hash)? { record(reader.payload(entry)?) } else { Ok(()) }
        })
    }

    /// Passes each wanted entry to `entry`, where a record's key contains the key that decides the
    /// group. `hash_of` returns the hash of the inner key.
    ///
    /// # Errors
    /// Those of [`for_each_record`](ForeignState::for_each_record).
    pub fn for_each_entry<K: State, V: State>(
        &self,
        hash_of: impl Fn(&K) -> u64,
        mut entry: impl FnMut(K, V) -> Result<()>,
    ) -> Result<()> {
        self.read_records(&mut |at, reader| {
            let (key, value) = codec::decode::<K, V>(reader.payload(at)?)?;
            if self.takes(hash_of(&key))? { entry(key, value) } else { Ok(()) }
        })
    }

    /// Passes the wanted elements of lists to `element`, in order per bucket and key.
    ///
    /// # Errors
    /// Those of [`for_each_record`](ForeignState::for_each_record); [`ErrorKind::Unsupported`] if no
    /// built-in layout for lists wrote them.
    pub fn for_each_element<K: Key, E: State>(
        &self,
        mut element: impl FnMut(Time, &K, &E) -> Result<()>,
    ) -> Result<()> {
        match &*self.layout {
            "heap" => self.for_each_entry(
                |(_, key): &(Time, K)| key.key_hash(),
                |(time, key), elements: Vec<E>| {
                    elements.iter().try_for_each(|one| element(time, &key, one))
                },
            ),
            "append-log" => for_each_list::<K, E>(self, &mut |time, key, elements| {
                while let Some(one) = elements.next()? {
                    element(time, key, one)?;
                }
                Ok(())
            }),
            _ => Err(self.unknown_layout()),
        }
    }

    /// Passes the wanted accumulators to `pane`. One accumulator may come in several parts: merge
    /// them in the order of the calls.
    ///
    /// # Errors
    /// Those of [`for_each_record`](ForeignState::for_each_record); [`ErrorKind::Unsupported`] if no
    /// built-in layout for panes wrote them.
    pub fn for_each_pane<K: Key, A: State>(
        &self,
        mut pane: impl FnMut(Time, K, A) -> Result<()>,
    ) -> Result<()> {
        match &*self.layout {
            "heap" | "hybrid-log" => self.for_each_entry(
                |(_, key): &(Time, K)| key.key_hash(),
                |(slice, key), acc| pane(slice, key, acc),
            ),
            "window-segments" => for_each_part_of_a_pane(self, &mut pane),
            _ => Err(self.unknown_layout()),
        }
    }

    /// Passes all entries to `entry`, whatever their key groups: for state of the whole store.
    ///
    /// # Errors
    /// Those of [`for_each_record`](ForeignState::for_each_record).
    pub fn for_each_of_all<K: State, V: State>(
        &self,
        mut entry: impl FnMut(K, V) -> Result<()>,
    ) -> Result<()> {
        self.read_records(&mut |at, reader| {
            let (key, value) = codec::decode::<K, V>(reader.payload(at)?)?;
            entry(key, value)
        })
    }

    /// Returns the estimated number of wanted entries, by the share of key groups.
    pub fn entries_likely(&self) -> u64 {
        let wanted = self.has.count_in(&self.wanted) as u64;
        self.image.entries * wanted / self.has.len().max(1) as u64
    }

    /// Returns the least memory for reading: a window, and the footers and live records of a
    /// segment.
    pub fn reading_bytes(&self) -> u64 {
        let of_part = |part: &ImagePart| match part.layout == RUNS {
            true => runs_bytes(self, part),
            false => self.memory_bytes(part, &part.segments),
        };
        let parts = self.image.parts.iter().map(of_part);
        parts.max().unwrap_or(chunk_bytes(&self.context) as u64)
    }

    fn memory_bytes(&self, part: &ImagePart, segments: &[SegmentImage]) -> u64 {
        let of_segment = |segment: &SegmentImage| {
            segment.records * size_of::<FooterEntry>() as u64 + set_bytes(part, segment)
        };
        let segment = segments.iter().map(of_segment).max().unwrap_or(0);
        chunk_bytes(&self.context) as u64 + segment + Liveness::memory_bytes(part)
    }

    /// Calls `visit` with what the footers tell of each live record, in the order written, part
    /// after part.
    fn read_records(&self, visit: VisitPassed<'_>) -> Result<()> {
        let parts = self.image.parts_of(RECORDS);
        parts.map_err(|error| error.with("state", &self.context.name))?;
        self.read_segments(visit)
    }

    /// The same of the parts that have segments.
    fn read_segments(&self, visit: VisitPassed<'_>) -> Result<()> {
        let (_, parts) = self.parts()?;
        parts.iter().try_for_each(|part| self.read_part(part, &part.segments, visit))
    }

    /// The parts that have runs, and those that have segments of records.
    fn parts(&self) -> Result<(Vec<&ImagePart>, Vec<&ImagePart>)> {
        let (runs, records): (Vec<&ImagePart>, _) =
            self.image.parts.iter().partition(|part| part.layout == RUNS);
        let others = StateImage { entries: 0, parts: records.iter().copied().cloned().collect() };
        let checked = others.parts_of(RECORDS).map(drop);
        checked.map_err(|error| error.with("state", &self.context.name))?;
        Ok((runs, records))
    }

    /// The same of segments of a part without dead records.
    pub(crate) fn read(&self, segments: &[SegmentImage], visit: VisitPassed<'_>) -> Result<()> {
        self.read_part(&ImagePart::new(&self.layout, Vec::new(), Vec::new()), segments, visit)
    }

    fn read_part(
        &self,
        part: &ImagePart,
        segments: &[SegmentImage],
        visit: VisitPassed<'_>,
    ) -> Result<()> {
        let store = self.context.segment_store()?;
        let (account, memory) = (&self.context.account, self.memory_bytes(part, segments));
        account.reserve(MemoryKind::Buffers, memory, "reading another store's state")?;
        let read = self.liveness(part).and_then(|liveness| {
            let visit =
                &mut |_, entry: &FooterEntry, record: &mut PassedRecord<'_>| visit(entry, record);
            let source = (store, chunk_bytes(&self.context));
            pass_over_live(&self.context, source, segments, &liveness, visit)
        });
        account.release(MemoryKind::Buffers, memory);
        read
    }

    fn liveness(&self, part: &ImagePart) -> Result<Liveness> {
        let blobs = BlobReader::new(self.context.segment_store()?.shared_device());
        Liveness::load(part, Some(&blobs))
    }

    pub(crate) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message).with("state", &self.context.name)
    }

    fn unknown_layout(&self) -> Error {
        let message = format!("no layout of this build reads what \"{}\" wrote", self.layout);
        self.error(ErrorKind::Unsupported, &message)
    }
}

type VisitPassed<'v> = &'v mut dyn FnMut(&FooterEntry, &mut PassedRecord<'_>) -> Result<()>;
