//! Restoring a hybrid log from a checkpoint, and iterating over everything.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    BlobReader, Error, ErrorKind, Footer, FooterPass, ImagePart, LiveSet, Liveness, MemoryKind,
    RECORDS, RUNS, Result, SegmentImage, SegmentReader, StateImage, fingerprint,
};

use crate::contract::table::Cursor;
use crate::hybrid_log::address::{Address, Location, StoredAt};
use crate::hybrid_log::cold::ColdTier;
use crate::hybrid_log::config::LogSizes;
use crate::hybrid_log::core::{LogCore, TOO_LARGE, VisitRecords, stored_address};
use crate::hybrid_log::frame_unsafe::Frame;
use crate::hybrid_log::index::Index;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::RecordRun;

/// Records that a scan reads in the order in which they stand on storage: as many as there is room for
/// without asking for memory, of which there may be none. The entries of a segment of the index are
/// passed over once for each so many.
const SORTED: usize = 256;

/// Index entries that are on their way into the cache while a segment's records are entered, and
/// records while others are visited: each misses it otherwise.
const HINTED: usize = 16;

/// Footers are read ahead while so many times the buffers for that are free: in little memory the index
/// is to have all there is.
const AHEAD_SHARE: u64 = 8;
/// What an entry of the index takes with its part of the directory, and while segments split.
const ENTRY_BYTES_MAX: u64 = 64;

impl LogCore {
    pub(in crate::hybrid_log) fn restore(
        &mut self,
        image: &StateImage,
        blobs: &BlobReader,
    ) -> Result<()> {
        let is_runs = |part: &&ImagePart| part.layout == RUNS;
        let records = image.parts.iter().filter(|part| !is_runs(part)).cloned().collect();
        let records = StateImage { entries: image.entries, parts: records };
        // Keys that came in the order of their hashes come so again.
        self.log.expect(image.entries);
        for part in records.parts_of(RECORDS)? {
            self.restore_part(part, blobs)?;
        }
        for part in image.parts.iter().filter(is_runs) {
            self.restore_runs(part)?;
        }
        self.known_deaths = image.deaths().copied().collect();
        if self.log.len() != image.entries {
            let (found, expected) = (self.log.len(), image.entries);
            let what = format!("{found} keys in the segments, {expected} expected");
            return Err(Error::new(ErrorKind::Corrupt, what).with("state", &self.context.name));
        }
        Ok(())
    }

    /// Takes over runs, also if the layout would not write any.
    fn restore_runs(&mut self, part: &ImagePart) -> Result<()> {
        let store = self.context.segment_store()?;
        if self.log.cold.is_none() {
            ColdTier::check(&self.context, &self.log.sizes)?;
            let cold = ColdTier::new(&self.context, self.log.record_type, &self.log.sizes);
            self.log.cold = cold.map(Box::new);
        }
        let cold = self.log.cold.as_mut().expect("there is a store");
        cold.restore(part)?;
        self.named_runs.restored(store, part);
        Ok(())
    }

    fn restore_part(&mut self, part: &ImagePart, blobs: &BlobReader) -> Result<()> {
        let store = self.context.segment_store()?.for_opening();
        let account = self.log.account.clone();
        let state = fingerprint(&self.context.name);
        let window = self.log.sizes.window_bytes;
        let mut reader = SegmentReader::new(store.clone(), state, window);
        let dead_bytes = Liveness::memory_bytes(part);
        let (kind, what) = (MemoryKind::Buffers, "the lists of dead records");
        let _dead = Booked::reserve(account.clone(), kind, dead_bytes, what)?;
        let liveness = Liveness::load(part, Some(blobs))?;
        let (mut ahead, mut footers) = (None, FooterPass::new(0));
        for segment in &part.segments {
            let info = segment.open(&store)?;
            match self.has_plenty_for(segment) {
                true if ahead.is_none() => (ahead, footers) = self.footers_ahead(),
                true => {}
                false => (footers, ahead) = (FooterPass::new(0), None),
            }
            let memory = set_bytes_of(segment);
            let booked = Booked::reserve(account.clone(), kind, memory, "restoring a segment")?;
            let live = liveness.of(segment)?;
            let directory = reader.open(&info)?;
            let longest = directory.images().iter().map(|image| image.records).max();
            self.book_longer_pages(longest.unwrap_or(0))?;
            let stored = self.log.stored.as_mut().expect("a log with segments");
            let number = stored.update(&info, segment.live_records)?;
            stored.restored(number, segment.live);
            // What restoring takes is there again for pages when this segment is done.
            self.log.reserve_tables()?;
            // Segments that came after the index had grown are no reason to refuse it now.
            let floor = self.log.sizes.kept_bytes();
            self.log.index.set_floor(floor.saturating_sub(memory + dead_bytes));
            footers.run(&mut reader, &directory, |footer| {
                self.enter(number, &footer, live.as_ref())
            })?;
            drop((live, booked));
            self.log.index.set_floor(self.log.floor_bytes());
        }
        Ok(())
    }

    /// Enters the records of an image that are live.
    fn enter(&mut self, segment: u32, footer: &Footer<'_>, live: Option<&LiveSet>) -> Result<()> {
        let mut ahead = footer.iter().skip(HINTED);
        for entry in footer.iter() {
            if let Some(ahead) = ahead.next() {
                self.log.index.prefetch(self.log.index_hash(ahead.hash));
            }
            if live.is_none_or(|live| live.contains(entry.grain)) {
                let hash = self.log.index_hash(entry.hash);
                self.log.index.prepare(hash)?;
                self.log.index.insert(hash, stored_address(segment, entry.grain));
            }
        }
        Ok(())
    }

    /// Whether there is memory for a segment's entries, by upper bound, and much more than footers that
    /// are read ahead take.
    fn has_plenty_for(&self, segment: &SegmentImage) -> bool {
        let index = ENTRY_BYTES_MAX * segment.live_records + set_bytes_of(segment);
        let needed = index + self.log.floor_bytes();
        self.log.account.available() >= needed + AHEAD_SHARE * self.ahead_bytes()
    }

    /// Reads footers ahead, into memory that is booked.
    fn footers_ahead(&self) -> (Option<Booked>, FooterPass) {
        let (account, bytes) = (self.log.account.clone(), self.ahead_bytes());
        if account.available() < bytes {
            return (None, FooterPass::new(0));
        }
        let footers = FooterPass::new(FooterPass::buffer_bytes(self.log.sizes.slots));
        (Some(Booked::buffers(account, bytes)), footers)
    }

    fn ahead_bytes(&self) -> u64 {
        FooterPass::memory_bytes(FooterPass::buffer_bytes(self.log.sizes.slots))
    }

    /// Books what it takes to read a page of so many records, and to rewrite it: a window, which is booked and idle
    /// while restoring, and its footer's entries. Another layout may have written longer pages.
    fn book_longer_pages(&mut self, records: u32) -> Result<()> {
        let sizes = &mut self.log.sizes;
        if records > sizes.page_records {
            let longer = LogSizes { page_records: records, ..sizes.clone() };
            let more = longer.rewrite_bytes() - sizes.rewrite_bytes();
            self.log.account.reserve(
                MemoryKind::Buffers,
                more,
                "longer pages of another layout",
            )?;
            self.log.sizes = longer;
            if let Some(cold) = &mut self.log.cold {
                cold.set_page_records(records as usize);
            }
        }
        Ok(())
    }

    pub(in crate::hybrid_log) fn scan_entries(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        if self.log.cold.is_some() && self.knows_hashes() {
            // The tier may have many more than the index.
            return self.scan_prefixes((0, Index::prefix_of(u64::MAX)), cursor, fuel, visit);
        }
        let mut visited = 0;
        while !cursor.done && visited < fuel.max(1) {
            let mut passed = 0;
            let next = loop {
                // Before addresses are taken: making room moves records, but no entry of the index.
                self.make_room_to_read()?;
                let (mut addresses, mut taken, mut seen) = ([Address(0); SORTED], 0, 0);
                let next = self.log.index.visit(cursor.position as u32, |address| {
                    if seen >= passed && taken < SORTED {
                        addresses[taken] = address;
                        taken += 1;
                    }
                    seen += 1;
                });
                // Records on storage in the order they stand there.
                sort_addresses(&mut addresses[..taken]);
                self.visit_addresses(&addresses[..taken], visit)?;
                passed += taken;
                if passed == seen {
                    break next;
                }
            };
            visited += passed.max(1);
            if self.log.cold.is_some() {
                self.scan_cold(
                    &self.hashes_between(cursor.position as u32, next),
                    usize::MAX,
                    visit,
                )?;
            }
            match next {
                Some(prefix) => cursor.position = u64::from(prefix),
                None => cursor.done = true,
            }
        }
        Ok(())
    }

    /// The hashes of prefixes from one to another, or to the last. Where the index does not know hashes, in tests of
    /// colliding ones, all are those of the last prefixes.
    pub(in crate::hybrid_log) fn hashes_between(
        &self,
        first: u32,
        next: Option<u32>,
    ) -> RangeInclusive<u64> {
        let none = RangeInclusive::new(1, 0);
        if !self.knows_hashes() {
            return if next.is_none() { 0..=u64::MAX } else { none };
        }
        let last = Index::prefix_of(u64::MAX);
        let hash_from = |prefix| match prefix <= last {
            true => self.log.hash_from(Index::place_of(prefix)),
            false => None,
        };
        let Some(first) = hash_from(first) else { return none };
        match next.and_then(hash_from) {
            Some(next) => first..=next - 1,
            None => first..=u64::MAX,
        }
    }

    /// Makes room for a value that is read from storage, if there are any.
    pub(in crate::hybrid_log) fn make_room_to_read(&mut self) -> Result<()> {
        let stored = self.log.stored.as_ref().is_some_and(|stored| stored.live_records() > 0);
        if stored { self.log.make_headroom() } else { Ok(()) }
    }

    pub(in crate::hybrid_log) fn visit_addresses(
        &mut self,
        addresses: &[Address],
        visit: VisitRecords<'_>,
    ) -> Result<()> {
        let stored_from = addresses.partition_point(|address| address.is_memory());
        let (resident, stored) = addresses.split_at(stored_from);
        let slot_bytes = Frame::slot_bytes(self.log.record_type);
        let log = &self.log;
        let records = resident.iter().enumerate().map(|(nth, address)| {
            if let Some(ahead) = resident.get(nth + HINTED) {
                log.frames.prefetch(slot_bytes, ahead.0);
            }
            let (number, slot) = log.slot_of(address.0);
            log.frame(number).get(slot).expect("an indexed slot")
        });
        RecordRun::show(self.log.record_type, records, visit)?;
        let mut rest = stored;
        while !rest.is_empty() {
            let segments = self.log.stored.as_mut().expect("a log with segments");
            // Fetches keep buffers, but always leave one; reads that were left may keep all.
            segments.ensure_buffer()?;
            let free = segments.free_buffers().min(rest.len());
            let group;
            (group, rest) = rest.split_at(free);
            let places: Vec<StoredAt> = group.iter().map(|&a| place_of(a)).collect();
            let mut started = 0;
            let mut failed = Ok(());
            for (i, &place) in places.iter().enumerate() {
                match segments.start(place, i as u64) {
                    Some(Ok(())) => started += 1,
                    Some(Err(error)) => failed = Err(error),
                    None => unreachable!("{free} buffers were free"),
                }
            }
            for _ in 0..started {
                let segments = self.log.stored.as_mut().expect("a log with segments");
                let mut read = match segments.wait(|nth| places[nth as usize]) {
                    Ok((_, read)) => read,
                    // None of the others is waited for.
                    Err(error) => return Err(error),
                };
                // What was free may be taken by now, by `visit` for other states. Records in memory
                // were visited before, and those on storage do not move.
                failed = failed.and_then(|()| self.make_room_to_read());
                let segments = self.log.stored.as_mut().expect("a log with segments");
                // A header that is damaged may say anything.
                let longest = segments.info(read.at.segment).max_record_bytes;
                let longer = self.log.beyond_usual(read.record_bytes().min(longest));
                if longer > 0 {
                    failed = failed.and_then(|()| self.log.make_free((longer, TOO_LARGE)));
                }
                let account = self.log.account.clone();
                let segments = self.log.stored.as_mut().expect("a log with segments");
                // Keys and values are the user's: how they are decoded and dropped may panic too.
                let shown = catch_unwind(AssertUnwindSafe(|| {
                    failed?;
                    let record = segments.verify(&mut read)?;
                    self.log.stats.codec_calls += 1;
                    // The value's half, so that `visit` takes none of it for other states.
                    let value_bytes = longer / 2;
                    let kind = MemoryKind::Values;
                    let _booked = Booked::reserve(account, kind, value_bytes, TOO_LARGE)?;
                    self.log
                        .record_type
                        .decode(record.payload, &mut |record| visit(&RecordRun::of(record)))
                }));
                segments.recycle(read);
                failed = shown.unwrap_or_else(|panic| {
                    segments.leave_all();
                    resume_unwind(panic)
                });
            }
            failed?;
        }
        Ok(())
    }
}

/// The set of a segment's live records, read as a whole into a buffer and copied.
fn set_bytes_of(segment: &SegmentImage) -> u64 {
    if segment.live.is_none() && segment.live_records == segment.records {
        return 0;
    }
    2 * LiveSet::memory_bytes(segment.bytes) + BLOCK_BYTES as u64
}

/// Not inlined: compiled once.
#[inline(never)]
pub(in crate::hybrid_log) fn sort_addresses(addresses: &mut [Address]) {
    addresses.sort_unstable_by_key(|address| address.0);
}

fn place_of(address: Address) -> StoredAt {
    match address.place() {
        Location::Stored(at) => at,
        Location::Memory(_) => unreachable!("addresses in memory were visited before"),
    }
}
