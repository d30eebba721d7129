//! Checkpoints of a hybrid log (fold-over: everything is sealed and written), restoring, and
//! iterating over everything.

use std::collections::HashMap;
use std::ops::Range;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    BlobReader, BlobWriter, Error, ErrorKind, FooterEntry, Key, LiveSet, MemoryKind, Result,
    SegmentImage, SegmentReader, State, StateImage, codec, fingerprint,
};

use super::address::{Address, Place, StoredAt};
use super::frames_unsafe::Stage;
use super::stored::Stored;
use super::table::{HybridLogTable, stored_address};
use crate::table::{CheckpointOutcome, Cursor};

impl<K: Key, V: State> HybridLogTable<K, V> {
    pub(super) fn take_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        self.context.segment_store()?;
        self.give_up_rewrite();
        // The error of a page that could not be written before now: it is tried again.
        let _ = self.log.poll();
        self.log.write_all()?;
        let stored = self.log.stored.as_ref().expect("a log with segments");
        let mut numbers: Vec<u32> = stored.numbers().collect();
        numbers.sort_by_key(|&number| stored.info(number).id);
        let mut image = StateImage { entries: self.log.index.len(), segments: Vec::new() };
        let mut next = 0;
        while next < numbers.len() {
            // As many segments per pass over the index as half of the free memory has room for.
            let allowance = self.log.account.available() / 2;
            let mut bytes = 0;
            let mut end = next;
            while end < numbers.len() {
                let more = self.set_bytes(numbers[end]);
                if end > next && bytes + more > allowance {
                    break;
                }
                bytes += more;
                end += 1;
            }
            while self.log.account.available() < bytes {
                // Everything is written, so that frames can go at once.
                self.log.free_a_frame()?;
            }
            self.log.account.charge(MemoryKind::Buffers, bytes);
            let written = self.write_live_sets(&numbers, next..end, blobs, &mut image);
            self.log.account.release(MemoryKind::Buffers, bytes);
            written?;
            next = end;
        }
        let live: u64 = image.segments.iter().map(|segment| segment.live_records).sum();
        assert_eq!(live, image.entries, "every key has one live record");
        self.taken = image.segments.iter().map(|segment| segment.id).collect();
        Ok(image)
    }

    fn set_bytes(&self, number: u32) -> u64 {
        let stored = self.log.stored.as_ref().expect("a log with segments");
        LiveSet::memory_bytes(stored.info(number).bytes) + 64
    }

    /// Where a record is on storage; all are, once everything is written.
    fn stored_at(&self, address: Address) -> StoredAt {
        match address.place() {
            Place::Stored(at) => at,
            Place::Memory(address) => {
                let (number, slot) = self.log.slot_of(address);
                let state = self.log.frames.state(number);
                assert_eq!(state.stage, Stage::Clean, "frame {number} is not written");
                StoredAt { segment: state.segment, grain: self.log.frame(number).grain(slot) }
            }
        }
    }

    fn write_live_sets(
        &self,
        numbers: &[u32],
        range: Range<usize>,
        blobs: &mut BlobWriter,
        image: &mut StateImage,
    ) -> Result<()> {
        let stored = self.log.stored.as_ref().expect("a log with segments");
        let numbers = &numbers[range];
        let mut sets: HashMap<u32, LiveSet> = numbers
            .iter()
            .map(|&number| (number, LiveSet::new(stored.info(number).bytes)))
            .collect();
        let mut from = Some(0);
        while let Some(prefix) = from {
            from = self.log.index.visit(prefix, |address| {
                let at = self.stored_at(address);
                if let Some(set) = sets.get_mut(&at.segment) {
                    set.insert(at.grain);
                }
            });
        }
        for number in numbers {
            let (set, info) = (&sets[number], stored.info(*number));
            let live_records = set.len();
            if live_records == 0 {
                continue;
            }
            assert!(info.sealed, "segment {:?} is not sealed", info.id);
            let live = if live_records == info.records { None } else { Some(set.write(blobs)?) };
            image.segments.push(SegmentImage { live_records, live, ..info.all_live() });
        }
        Ok(())
    }

    pub(super) fn decide_checkpoint(&mut self, outcome: CheckpointOutcome) {
        let taken = std::mem::take(&mut self.taken);
        let Some(stored) = &mut self.log.stored else { return };
        match outcome {
            CheckpointOutcome::Committed => stored.set_committed(taken.into_iter(), false),
            CheckpointOutcome::Unknown => stored.set_committed(taken.into_iter(), true),
            CheckpointOutcome::Abandoned => {}
        }
    }

    pub(super) fn restore(&mut self, image: &StateImage, blobs: &BlobReader) -> Result<()> {
        let store = self.context.segment_store()?.clone();
        let account = self.log.account.clone();
        let state = fingerprint(&self.context.name);
        let window = self.log.sizes.window_bytes;
        let mut reader = SegmentReader::new(store.clone(), state, window);
        let mut entries = Vec::new();
        for segment in &image.segments {
            let info = segment.open(&store)?;
            let mut memory = set_bytes_of(segment);
            account.reserve(MemoryKind::Buffers, memory, "restoring a segment")?;
            let restored: Result<()> = (|| {
                let live = LiveSet::load(segment, Some(blobs))?;
                let directory = reader.open(&info)?;
                let longest = directory.images().iter().map(|image| image.records).max();
                let more = self.footer_bytes_unbooked(longest.unwrap_or(0));
                account.reserve(MemoryKind::Buffers, more, "restoring a segment")?;
                memory += more;
                let stored = self.log.stored.as_mut().expect("a log with segments");
                let number = stored.update(&info, segment.live_records)?;
                // What restoring takes is there again for pages when this segment is done.
                self.log.reserve_tables()?;
                // Segments that came after the index had grown are no reason to refuse it now.
                let floor = self.log.sizes.floor_bytes(0);
                self.log.index.set_floor(floor.saturating_sub(memory));
                for image in directory.images() {
                    reader.footer(&directory, image, &mut entries)?;
                    for entry in &entries {
                        if live.as_ref().is_none_or(|live| live.contains(entry.grain)) {
                            let hash = self.log.index_hash(entry.hash);
                            self.log.index.prepare(hash)?;
                            self.log.index.insert(hash, stored_address(number, entry.grain));
                        }
                    }
                }
                Ok(())
            })();
            account.release(MemoryKind::Buffers, memory);
            self.log.index.set_floor(self.log.floor_bytes());
            restored?;
        }
        if self.log.index.len() != image.entries {
            let what = format!(
                "{} keys in the segments, {} expected",
                self.log.index.len(),
                image.entries
            );
            return Err(Error::new(ErrorKind::Corrupt, what).with("state", &self.context.name));
        }
        let ids = image.segments.iter().map(|segment| segment.id);
        self.log.stored.as_mut().expect("a log with segments").set_committed(ids, false);
        Ok(())
    }

    /// What a footer of so many records takes beyond the memory for rewriting, which is booked and
    /// idle while restoring: a window, and the footer entries of a page twice. Another layout may
    /// have written longer pages.
    fn footer_bytes_unbooked(&self, records: u32) -> u64 {
        let entry = size_of::<FooterEntry>() as u64;
        2 * entry * u64::from(records.saturating_sub(self.log.sizes.slots))
    }

    pub(super) fn scan_entries(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let memory = (self.log.sizes.buckets * 7 * size_of::<Address>()) as u64;
        let mut visited = 0;
        while !cursor.done && visited < fuel.max(1) {
            self.log.account.charge(MemoryKind::Buffers, memory);
            // Before addresses are taken: making room moves records.
            if let Err(error) = self.make_room_to_read() {
                self.log.account.release(MemoryKind::Buffers, memory);
                return Err(error);
            }
            let mut addresses = Vec::with_capacity(self.log.sizes.buckets * 7);
            let next = self.log.index.visit(cursor.position as u32, |a| addresses.push(a));
            visited += addresses.len().max(1);
            // Records on storage in the order they stand there.
            addresses.sort_unstable_by_key(|address| address.0);
            let done = self.visit_addresses(&addresses, visit);
            self.log.account.release(MemoryKind::Buffers, memory);
            done?;
            match next {
                Some(prefix) => cursor.position = u64::from(prefix),
                None => cursor.done = true,
            }
        }
        Ok(())
    }

    /// Makes room for a value that is read from storage, if there are any.
    fn make_room_to_read(&mut self) -> Result<()> {
        let stored = self.log.stored.as_ref().is_some_and(|stored| stored.live_records() > 0);
        if stored { self.log.make_headroom() } else { Ok(()) }
    }

    fn visit_addresses(
        &mut self,
        addresses: &[Address],
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        let stored_from = addresses.partition_point(|address| address.is_memory());
        let (resident, stored) = addresses.split_at(stored_from);
        for address in resident {
            let (number, slot) = self.log.slot_of(address.0);
            let (key, value) = self.log.frame(number).get(slot).expect("an indexed slot");
            visit(key, value)?;
        }
        // Fetches keep buffers, but always leave one.
        let free = self.log.stored.as_ref().map_or(1, Stored::free_buffers);
        for group in stored.chunks(free) {
            let segments = self.log.stored.as_mut().expect("a log with segments");
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
                let (_, mut read) = segments.wait(|token| places[token as usize]);
                // What was free may be taken by now, by `visit` for other states. Records in memory
                // were visited before, and those on storage do not move.
                failed = failed.and_then(|()| self.make_room_to_read());
                let segments = self.log.stored.as_mut().expect("a log with segments");
                if failed.is_ok() {
                    failed = segments.verify(&mut read).and_then(|record| {
                        self.log.stats.codec_calls += 1;
                        let (key, value) = codec::decode::<K, V>(record.payload)?;
                        visit(&key, &value)
                    });
                }
                segments.recycle(read);
            }
            failed?;
        }
        Ok(())
    }
}

/// The set of a segment's live records, read as a whole into a buffer and copied.
fn set_bytes_of(segment: &SegmentImage) -> u64 {
    match segment.live {
        Some(_) => 2 * LiveSet::memory_bytes(segment.bytes) + BLOCK_BYTES as u64,
        None => 0,
    }
}

fn place_of(address: Address) -> StoredAt {
    match address.place() {
        Place::Stored(at) => at,
        Place::Memory(_) => unreachable!("addresses in memory were visited before"),
    }
}
