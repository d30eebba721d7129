//! Reading a run block by block, forwards.
//!
//! A cursor keeps one block, decoded, and the window that it reads through. Both are booked before they are there,
//! until it rests or goes.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::block::DecodeMemory;
use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Account, Error, ErrorKind, MemoryKind, Result, SegmentReader, SegmentStore, Time,
};

use super::block::{ListBlock, ListType};
use super::element_type_unsafe::ElementSlice;
use super::key_unsafe::{KeyRef, OwnedKey, has};
use super::packed::{PagedPart, PagedSlice, PartEnd, PartStart};
use super::run::{BlockAt, RunBlocks, StoredRun, is_long, window_bytes_min};
use crate::heap::hash_range::HashRange;

/// Where cursors read.
#[derive(Clone, Debug)]
pub struct CursorSource {
    pub store: SegmentStore,
    /// Fingerprint of the state.
    pub state: u64,
    pub range: HashRange,
    pub list_type: &'static ListType,
    /// Bytes in memory at which blocks are cut.
    pub cut_bytes: usize,
}

/// Who books what a cursor takes.
pub trait CursorBooking {
    /// Books `bytes`, if they fit.
    fn reserve(&self, bytes: u64) -> Result<()>;
    /// Books the change of a quantity.
    fn adjust(&self, before: u64, after: u64);
}

impl CursorBooking for Rc<Account> {
    fn reserve(&self, bytes: u64) -> Result<()> {
        Account::reserve(self, MemoryKind::Buffers, bytes, "reading runs")
    }

    fn adjust(&self, before: u64, after: u64) {
        Account::adjust(self, MemoryKind::Buffers, before, after);
    }
}

/// Memory that was booked by upper bound.
#[derive(Debug)]
pub struct Prepaid;

impl CursorBooking for Prepaid {
    fn reserve(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn adjust(&self, _: u64, _: u64) {}
}

/// Reads a run forwards.
#[derive(Debug)]
pub struct RunCursor<B: CursorBooking = Rc<Account>> {
    pub bucket: Time,
    pub number: u64,
    /// Whether a fold visits all keys of the run, not only those that others import.
    pub drives: bool,
    source: CursorSource,
    booking: B,
    run: Arc<StoredRun>,
    cached: Option<RunBlocks>,
    /// The packed slice, if it is one that is read part by part, and the part that is there.
    paged: Option<Arc<PagedSlice>>,
    part: Option<PagedPart>,
    /// Where the part before ended, or the one before that.
    part_end: Option<PartEnd>,
    /// With its window, once something was read.
    reader: Option<SegmentReader>,
    /// The block after the one that is decoded.
    next_block: usize,
    /// The block that is decoded, if one is.
    entries: Option<Box<dyn ListBlock>>,
    /// A block that was decoded to see what it begins with.
    ahead: Option<DecodedBlock>,
    at: usize,
    /// Place of the entry at `at`, once it is known.
    place: Option<u64>,
    window_bytes: u64,
    is_long: bool,
    /// Whether it has a window only while it reads, as others have theirs then.
    reads_in_turns: bool,
    /// What a block takes at most once it is decoded, but for an element of it that expands.
    decoded_most: u64,
    /// What is booked for decoded blocks: from the first one on, for the longest.
    decoded_room: u64,
    /// What a block takes that is there beside the one that is decoded next.
    beside_bytes: u64,
    /// Blocks that were decoded, and bytes of those read from storage.
    blocks_read: u64,
    bytes_read: u64,
    /// Entries in them, since it is there.
    pub entries_read: u64,
}

/// A block that is decoded and not read yet.
#[derive(Debug)]
struct DecodedBlock {
    block: usize,
    entries: Box<dyn ListBlock>,
}

/// A place of a cursor to come back to.
#[derive(Clone, Copy, Debug)]
pub struct CursorMark {
    block: usize,
    at: usize,
}

impl<B: CursorBooking> RunCursor<B> {
    /// A cursor at the run's start, which reads `window_bytes` at a time. The caller has seen to
    /// it that there is the memory, which is booked with the first read.
    pub fn new(
        source: CursorSource,
        booking: B,
        (bucket, number): (Time, u64),
        run: Arc<StoredRun>,
        cached: Option<RunBlocks>,
        window_bytes: u64,
    ) -> Self {
        let least = window_bytes_min(&run);
        let all = run.bytes().next_multiple_of(BLOCK_BYTES as u64) + 4 * BLOCK_BYTES as u64;
        let is_long = is_long(&run);
        let window_bytes = match cached.is_some() {
            true => 0,
            false if is_long => least,
            false => window_bytes.min(all).max(least),
        };
        let (list_type, longest) = (source.list_type, run.longest());
        let decoded_most = match is_long {
            true => list_type.long_decoded_bytes(longest, source.cut_bytes),
            false => list_type.decoded_bytes_max(longest, source.cut_bytes),
        };
        Self {
            bucket,
            number,
            drives: true,
            source,
            booking,
            run,
            cached,
            paged: None,
            part: None,
            part_end: None,
            reader: None,
            next_block: 0,
            entries: None,
            ahead: None,
            at: 0,
            place: None,
            window_bytes,
            is_long,
            reads_in_turns: is_long,
            decoded_most,
            decoded_room: 0,
            beside_bytes: 0,
            blocks_read: 0,
            bytes_read: 0,
            entries_read: 0,
        }
    }

    /// Has a window only while it reads a block: several cursors read one after the other.
    #[must_use]
    pub fn in_turns(mut self) -> Self {
        self.reads_in_turns = true;
        self.window_bytes = self.window_bytes.min(window_bytes_min(&self.run));
        self
    }

    /// A cursor at the start of a packed slice, which is read part by part. Each record is a block.
    pub fn paged(
        source: CursorSource,
        booking: B,
        name: (Time, u64),
        slice: Arc<PagedSlice>,
    ) -> Self {
        let none = Arc::new(StoredRun { files: Vec::new(), blocks: Vec::new() });
        let mut cursor = Self::new(source, booking, name, none, None, 0);
        cursor.decoded_most = slice.decoded_bytes();
        cursor.paged = Some(slice);
        cursor
    }

    /// Whether it is on a slice that is read part by part.
    pub fn is_paged(&self) -> bool {
        self.paged.is_some()
    }

    /// Where a block begins; `None` if there is none. Of a slice that is read part by part the part is read that has it.
    fn place_of(&mut self, block: usize) -> Result<Option<u64>> {
        if self.paged.is_none() {
            let range = self.source.range;
            return Ok(self.run.blocks.get(block).map(|block| range.place(block.record.hash)));
        }
        if self.part.as_ref().is_none_or(|part| !part.tells(block)) {
            self.read_part(PartStart::Nth(block))?;
        }
        let record = self.part.as_ref().and_then(|part| part.get(block));
        Ok(record.map(|(place, _)| *place))
    }

    /// Reads the part that begins there, and says with which record that is.
    fn read_part(&mut self, begin: PartStart) -> Result<usize> {
        let paged = self.paged.clone().expect("only a paged slice has parts");
        self.forget_part();
        self.booking.reserve(paged.reading_bytes())?;
        let part = paged.read(begin, self.part_end.as_ref());
        let bytes = part.as_ref().map_or(0, PagedPart::bytes);
        self.booking.adjust(paged.reading_bytes(), bytes);
        self.bytes_read += bytes;
        Ok(self.part.insert(part?).first())
    }

    fn forget_part(&mut self) {
        let Some(part) = self.part.take() else { return };
        self.booking.adjust(part.bytes(), 0);
        if let Some(end) = part.into_end() {
            self.part_end = Some(end);
        }
    }

    /// Where the next entry stands; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u64>> {
        loop {
            if self.place.is_some() {
                return Ok(self.place);
            }
            if let Some(key) = self.key_at(self.at) {
                self.place = Some(self.source.range.place(key.key_hash()));
            } else if self.place_of(self.next_block)?.is_some() {
                self.load(self.next_block)?;
            } else {
                return Ok(None);
            }
        }
    }

    /// The key of an entry of the block that is decoded.
    fn key_at(&self, at: usize) -> Option<KeyRef<'_>> {
        self.entries.as_ref().filter(|entries| at < entries.len()).map(|entries| entries.key(at))
    }

    /// The block of the entry that was peeked, and where it stands there.
    ///
    /// # Panics
    /// If there is none.
    pub fn entry_mut(&mut self) -> (&mut dyn ListBlock, usize) {
        (&mut **self.entries.as_mut().expect("an entry was peeked"), self.at)
    }

    fn entry(&self) -> (&dyn ListBlock, usize) {
        (&**self.entries.as_ref().expect("an entry was peeked"), self.at)
    }

    /// The key of the entry that was peeked.
    ///
    /// # Panics
    /// If there is none.
    pub fn key(&self) -> KeyRef<'_> {
        let (entries, at) = self.entry();
        entries.key(at)
    }

    /// Its rank.
    ///
    /// # Panics
    /// If there is none.
    pub fn rank(&self) -> i64 {
        let (entries, at) = self.entry();
        entries.rank(at)
    }

    /// Its elements.
    ///
    /// # Panics
    /// If there is none.
    pub fn elements(&self) -> ElementSlice<'_> {
        let (entries, at) = self.entry();
        entries.elements(at)
    }

    /// Goes on to the entry after the one that was peeked.
    pub fn advance(&mut self) {
        self.at += 1;
        self.place = None;
    }

    /// Goes on to the first entry at or after `place`.
    pub fn seek(&mut self, place: u64) -> Result<()> {
        if self.place.is_some_and(|here| here >= place) {
            return Ok(());
        }
        let first = match self.paged.is_some() {
            true => self.part_at(place)?,
            false => {
                let range = self.source.range;
                let after = self.run.blocks.partition_point(|b| range.place(b.record.hash) < place);
                // The block before may end with the place.
                after.saturating_sub(1)
            }
        };
        if first >= self.next_block {
            self.forget();
            self.next_block = first;
        }
        while self.peek()?.is_some_and(|here| here < place) {
            self.advance();
        }
        Ok(())
    }

    /// The first record at or after a place, of a slice that is read part by part; its part is read, if it is another.
    fn part_at(&mut self, place: u64) -> Result<usize> {
        match self.part.as_ref().and_then(|part| part.at_or_after(place)) {
            Some(first) => Ok(first),
            None => self.read_part(PartStart::Place(place)),
        }
    }

    /// Blocks decoded, and bytes read from storage, since this was last asked.
    pub fn take_counts(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.blocks_read), std::mem::take(&mut self.bytes_read))
    }

    /// Where it stands.
    pub fn mark(&self) -> CursorMark {
        CursorMark { block: self.next_block, at: self.at }
    }

    /// Goes back to a mark.
    pub fn rewind(&mut self, mark: CursorMark) -> Result<()> {
        if self.next_block != mark.block {
            match mark.block.checked_sub(1) {
                Some(block) => self.load(block)?,
                None => self.forget(),
            }
        }
        self.next_block = mark.block;
        self.at = mark.at;
        self.place = None;
        Ok(())
    }

    /// Adds the keys that stand where it stands, each once, and stays there. Reads on if there may be more
    /// than the block has; the block after it is kept, as lists are cut where blocks end.
    pub fn keys_here(&mut self, out: &mut Vec<OwnedKey>) -> Result<()> {
        let Some(place) = self.peek()? else { return Ok(()) };
        let mark = self.mark();
        if !self.may_go_on(place, out)? {
            (self.at, self.place) = (mark.at, None);
            return Ok(());
        }
        let mut block = self.next_block;
        if self.has_room_beside() {
            debug_assert!(self.ahead.as_ref().is_none_or(|ahead| ahead.block == block));
            let here = self.entries.take();
            self.beside_bytes = here.as_ref().map_or(0, |here| here.bytes());
            let loaded = self.load(block);
            let goes_on = loaded.and_then(|()| self.may_go_on(place, out));
            let ahead = std::mem::replace(&mut self.entries, here);
            (self.next_block, self.at, self.place) = (mark.block, mark.at, None);
            self.beside_bytes = ahead.as_ref().map_or(0, |ahead| ahead.bytes());
            self.ahead = ahead.map(|entries| DecodedBlock { block, entries });
            if !goes_on? {
                return Ok(());
            }
            block += 1;
        }
        self.load(block)?;
        while self.may_go_on(place, out)? {
            block += 1;
            self.load(block)?;
        }
        self.rewind(mark)
    }

    /// Books what the next block takes beside the one that is there, and says whether there is as much.
    fn has_room_beside(&mut self) -> bool {
        let here = self.entries.as_ref().map_or(0, |here| here.bytes());
        let next = self.ahead.as_ref().map_or(self.decoded_most, |ahead| ahead.entries.bytes());
        let needed = self.decoded_room.max(here + next);
        self.book_decoded(needed).is_ok()
    }

    /// Books so much for decoded blocks.
    fn book_decoded(&mut self, bytes: u64) -> Result<()> {
        match bytes.checked_sub(self.decoded_room) {
            Some(more) => self.booking.reserve(more)?,
            None => self.booking.adjust(self.decoded_room, bytes),
        }
        self.decoded_room = bytes;
        Ok(())
    }

    /// Adds the keys that stand at a place in the block, from where it stands on; says whether the next
    /// block may have more.
    fn may_go_on(&mut self, place: u64, out: &mut Vec<OwnedKey>) -> Result<bool> {
        let range = self.source.range;
        while let Some(key) = self.key_at(self.at) {
            if range.place(key.key_hash()) != place {
                return Ok(false);
            }
            if !has(out, key) {
                out.push(key.to_owned());
            }
            self.at += 1;
        }
        Ok(self.place_of(self.next_block)? == Some(place))
    }

    /// Decodes a block.
    fn load(&mut self, block: usize) -> Result<()> {
        self.forget();
        if let Some(ahead) = self.ahead.take() {
            self.beside_bytes = 0;
            if ahead.block == block {
                self.entries = Some(ahead.entries);
                self.next_block = block + 1;
                return Ok(());
            }
        }
        self.book_decoded(self.beside_bytes + self.decoded_most)?;
        if self.paged.is_some() {
            return self.load_of_part(block);
        }
        let BlockAt { file, record } = self.run.blocks[block];
        let info = self.run.files.get(file as usize);
        let (blocks, is_long) = (self.source.list_type, self.is_long);
        let mut more = booking_more(&self.booking, &mut self.decoded_room, self.beside_bytes);
        let mut room = DecodeMemory { bytes: self.decoded_most, more: &mut more };
        let mut decode = |payload: &[u8]| match is_long {
            true => blocks.decode_long(payload, &mut room),
            false => blocks.decode_within(payload, &mut room),
        };
        let entries = match &self.cached {
            Some(cached) => decode(&cached[block]),
            None => {
                self.bytes_read += u64::from(record.len);
                let reader = match &mut self.reader {
                    Some(reader) => reader,
                    None => {
                        self.booking.reserve(self.window_bytes)?;
                        let CursorSource { store, state, .. } = self.source.clone();
                        let window = self.window_bytes as usize;
                        self.reader.insert(SegmentReader::new(store, state, window))
                    }
                };
                let info = info.expect("a block on storage is in a file");
                decode(reader.record(info, &record)?.payload)
            }
        }
        .map_err(|e| match info {
            Some(info) => e.with("file", info.file.name()).with("offset", record.offset()),
            None => e,
        })?;
        drop(more);
        if self.reads_in_turns && self.reader.take().is_some() {
            self.booking.adjust(self.window_bytes, 0);
        }
        self.has_decoded(block, entries);
        Ok(())
    }

    /// Decodes a record of a slice that is read part by part.
    fn load_of_part(&mut self, block: usize) -> Result<()> {
        self.place_of(block)?;
        let record = self.part.as_ref().and_then(|part| part.get(block));
        let Some((_, record)) = record else {
            return Err(Error::new(ErrorKind::Corrupt, "a packed slice has lost a record"));
        };
        let mut more = booking_more(&self.booking, &mut self.decoded_room, self.beside_bytes);
        let mut room = DecodeMemory { bytes: self.decoded_most, more: &mut more };
        let decoded = self.source.list_type.decode_within(record, &mut room);
        drop(more);
        self.has_decoded(block, decoded?);
        Ok(())
    }

    fn has_decoded(&mut self, block: usize, entries: Box<dyn ListBlock>) {
        self.blocks_read += 1;
        self.entries_read += entries.len() as u64;
        self.entries = Some(entries);
        self.next_block = block + 1;
    }

    /// Gives its memory back. What comes next is read again when it is sought.
    pub fn rest(&mut self) {
        if self.entries.as_ref().is_some_and(|entries| entries.len() > 0) {
            self.next_block -= 1;
        }
        self.forget();
        self.ahead = None;
        self.beside_bytes = 0;
        self.booking.adjust(std::mem::take(&mut self.decoded_room), 0);
        self.forget_part();
        if self.reader.take().is_some() {
            self.booking.adjust(self.window_bytes, 0);
        }
    }

    fn forget(&mut self) {
        self.entries = None;
        (self.at, self.place) = (0, None);
    }
}

/// Books what a block takes beside so much, of whom so much is booked.
fn booking_more<'b>(
    booking: &'b impl CursorBooking,
    booked: &'b mut u64,
    beside: u64,
) -> impl FnMut(u64) -> Result<u64> + 'b {
    move |bytes| {
        booking.reserve((beside + bytes).saturating_sub(*booked))?;
        *booked = (*booked).max(beside + bytes);
        Ok(bytes)
    }
}

impl<B: CursorBooking> Drop for RunCursor<B> {
    fn drop(&mut self) {
        let window = if self.reader.is_some() { self.window_bytes } else { 0 };
        let part = self.part.as_ref().map_or(0, PagedPart::bytes);
        self.booking.adjust(window + self.decoded_room + part, 0);
    }
}
