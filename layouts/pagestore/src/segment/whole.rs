//! Checks a sealed segment whose bytes are all in memory, for instance a mapped file, structure by
//! structure.
//!
//! [`SegmentReader`](super::SegmentReader) stops at the first damage, as opening a state must. This
//! finds all damage: it reports a damaged structure, skips it, and still checks the structures
//! beside it. Nothing is handed out unverified, and no bytes cause a panic.

use std::ops::Range;

use super::SegmentInfo;
use super::footers::Footer;
use super::format::{
    FooterEntry, ImageInfo, RECORD_HEADER_BYTES, RecordBytes, SegmentTail, TRAILER_BYTES,
    VerifiedRecord, damaged, verify_header, verify_record,
};
use crate::io::BLOCK_BYTES;
use crate::{Error, Result};

/// A sealed segment in memory, and the damage of its own structures.
#[derive(Debug)]
pub struct WholeSegment<'a> {
    info: SegmentInfo,
    bytes: &'a [u8],
    images: Vec<ImageInfo>,
    /// Where the directory stands, if the tail says so.
    directory: Range<u64>,
    damage: Vec<Error>,
}

impl<'a> WholeSegment<'a> {
    /// Checks header, tail, directory and trailers of the segment of `state`; `bytes` are its
    /// file's. Cost: a block per image. If tail or directory are damaged, all blocks, to find the
    /// images by their trailers.
    pub fn open(info: &SegmentInfo, state: u64, bytes: &'a [u8]) -> Self {
        let (images, damage) = (Vec::new(), Vec::new());
        let mut whole = Self { info: info.clone(), bytes, images, directory: 0..0, damage };
        whole.look(state);
        whole
    }

    /// Returns the damage of header, tail, directory and trailers.
    pub fn damage(&self) -> &[Error] {
        &self.damage
    }

    /// Takes the [`damage`](Self::damage).
    pub fn take_damage(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.damage)
    }

    /// Returns the images found, in the order of the directory.
    pub fn images(&self) -> &[ImageInfo] {
        &self.images
    }

    /// Returns the entries of an image's footer. For an image without one, returns its records'
    /// headers, each verified with its [`record`](Self::record).
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it differs from what was written.
    pub fn footer(&self, image: &ImageInfo) -> Result<Vec<FooterEntry>> {
        let Range { start, end } = image.told();
        let bytes = end.checked_sub(start).and_then(|length| self.slice(start, length));
        let bytes = bytes.ok_or_else(|| self.damaged(start, "an image's footer is not there"))?;
        let footer = match image.bare_len {
            0 => Footer::verify(&self.info, image, bytes)?,
            // Each header is told of by its record.
            _ => Footer::of(image, bytes),
        };
        Ok(footer.iter().collect())
    }

    /// Returns a record of an image, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it differs from what was written.
    pub fn record(&self, image: &ImageInfo, entry: &FooterEntry) -> Result<RecordBytes<'a>> {
        let offset = entry.offset();
        let other = || self.damaged(offset, "a record is not the one its footer tells of");
        if offset < image.offset || offset >= image.footer_offset {
            return Err(other());
        }
        let bytes = self.slice(offset, image.footer_offset - offset).ok_or_else(other)?;
        match verify_record(&self.info.file, self.info.id, offset, bytes)? {
            VerifiedRecord::Record(record)
                if record.hash == entry.hash && record.payload.len() == entry.len as usize =>
            {
                Ok(record)
            }
            _ => Err(other()),
        }
    }

    /// Returns the places where padding is not zero: the start of each such stretch, and the end of
    /// the segment if the file continues there. Nothing reads padding, and no checksum covers it.
    /// Empty for a damaged segment, whose padding is unknown. Cost: all bytes of the segment.
    pub fn changed_padding(&self) -> Vec<u64> {
        let Some(mut told) = self.told() else { return Vec::new() };
        let end = self.bytes.len() as u64;
        told.push(end..end);
        told.sort_by_key(|range| range.start);
        let (mut places, mut at) = (Vec::new(), 0);
        for Range { start, end } in told {
            let padding = start.checked_sub(at).and_then(|length| self.slice(at, length));
            let changed = padding.and_then(|bytes| bytes.iter().position(|byte| *byte != 0));
            places.extend(changed.map(|byte| at + byte as u64));
            at = at.max(end);
        }
        if end > self.info.bytes && places.last().is_none_or(|last| *last < self.info.bytes) {
            places.push(self.info.bytes);
        }
        places
    }

    /// All that is not padding; `None` if some of it is damaged.
    fn told(&self) -> Option<Vec<Range<u64>>> {
        const SHORT: u64 = TRAILER_BYTES as u64;
        let tail = self.tail_offset()?;
        let mut told = vec![0..SHORT, self.directory.clone(), tail..self.info.bytes];
        for image in &self.images {
            let end = image.offset + image.bytes;
            // Of a bare image the records tell, which are added below without what is between them.
            let footer = image.footer_offset..image.footer_offset + image.footer_bytes();
            told.extend([footer, end - SHORT..end]);
            for entry in self.footer(image).ok()? {
                let record = self.record(image, &entry).ok()?;
                let bytes = RECORD_HEADER_BYTES + record.payload.len();
                told.push(entry.offset()..entry.offset() + bytes as u64);
            }
        }
        Some(told)
    }

    fn look(&mut self, state: u64) {
        let there = self.bytes.len() as u64;
        if there < self.info.bytes {
            let what = format!("the file has {there} bytes, {} were written", self.info.bytes);
            self.tell(there, &what);
        }
        match self.slice(0, TRAILER_BYTES as u64) {
            Some(header) => {
                let header = verify_header(&self.info.file, self.info.id, state, header);
                self.damage.extend(header.err());
            }
            None => self.tell(0, "the segment has no header"),
        }
        let complete = self.read_directory();
        if !complete {
            self.find_trailers();
        }
        let records: u64 = self.images.iter().map(|image| u64::from(image.records)).sum();
        if complete && records != self.info.records {
            let what =
                format!("{records} records in the directory, {} expected", self.info.records);
            self.tell(self.tail_offset().unwrap_or(0), &what);
        }
    }

    fn tail_offset(&self) -> Option<u64> {
        self.info.bytes.checked_sub(TRAILER_BYTES as u64)
    }

    /// Takes in the images of the directory, and says whether all of it could be read.
    fn read_directory(&mut self) -> bool {
        let place = self.tail_offset().unwrap_or(0);
        let Some(tail) = self.slice(place, TRAILER_BYTES as u64) else {
            self.tell(place, "the segment has no tail");
            return false;
        };
        let tail = SegmentTail::from_bytes(&self.info.file, self.info.id, self.info.bytes, tail);
        let tail = match tail {
            Ok(tail) => tail,
            Err(error) => {
                self.damage.push(error);
                return false;
            }
        };
        let end = tail.directory_offset + u64::from(tail.images) * TRAILER_BYTES as u64;
        self.directory = tail.directory_offset..end;
        let mut complete = true;
        for number in 0..u64::from(tail.images) {
            let place = tail.directory_offset + number * TRAILER_BYTES as u64;
            match self.image_at(place).filter(|image| self.fits(image, tail.directory_offset)) {
                Some(image) => {
                    self.check_trailer(&image);
                    self.images.push(image);
                }
                None => {
                    self.tell(place, "an entry of the segment's directory is damaged");
                    complete = false;
                }
            }
        }
        complete
    }

    /// The image that the 64 bytes at `place` tell of, if they are sound.
    fn image_at(&self, place: u64) -> Option<ImageInfo> {
        let bytes = self.slice(place, TRAILER_BYTES as u64)?;
        ImageInfo::from_bytes(&self.info.file, self.info.id, bytes).ok()
    }

    /// Whether an image lies in front of `end`, and all of it inside itself.
    fn fits(&self, image: &ImageInfo, end: u64) -> bool {
        let after = image.offset.checked_add(image.bytes);
        let footer_end =
            image.footer_offset.checked_add(image.footer_bytes() + TRAILER_BYTES as u64);
        image.offset.is_multiple_of(BLOCK_BYTES as u64)
            && image.bytes.is_multiple_of(BLOCK_BYTES as u64)
            && image.footer_offset >= image.offset
            && after.is_some_and(|after| after <= end)
            && footer_end.zip(after).is_some_and(|(footer_end, after)| footer_end <= after)
    }

    fn check_trailer(&mut self, image: &ImageInfo) {
        let place = image.offset + image.bytes - TRAILER_BYTES as u64;
        if self.image_at(place) != Some(*image) {
            self.tell(place, "an image's trailer is damaged");
        }
    }

    /// Adds the images that are not known yet, from the trailers at the ends of blocks.
    fn find_trailers(&mut self) {
        let block = BLOCK_BYTES as u64;
        for end in (2..=self.bytes.len() as u64 / block).map(|blocks| blocks * block) {
            let found = self.image_at(end - TRAILER_BYTES as u64);
            let found =
                found.filter(|image| self.fits(image, end) && image.offset + image.bytes == end);
            if let Some(image) = found.filter(|image| !self.images.contains(image)) {
                self.images.push(image);
            }
        }
        self.images.sort_by_key(|image| image.offset);
    }

    /// Bytes of the segment, if it has them.
    fn slice(&self, offset: u64, length: u64) -> Option<&'a [u8]> {
        let end = usize::try_from(offset.checked_add(length)?).ok()?;
        self.bytes.get(offset as usize..end)
    }

    fn tell(&mut self, offset: u64, what: &str) {
        let error = self.damaged(offset, what);
        self.damage.push(error);
    }

    fn damaged(&self, offset: u64, what: &str) -> Error {
        damaged(&self.info.file, offset, what)
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::checksum;
    use super::super::{SegmentId, SegmentStore, SegmentWriter};
    use super::*;
    use crate::io::{Faults, IoBuffer, Operation, Simulated, run_blocking};
    use std::sync::Arc;

    /// A segment of several images with 60 records, of which every other has no footer, and its
    /// bytes.
    fn sample() -> (SegmentInfo, Vec<u8>) {
        let store = SegmentStore::new(Arc::new(Simulated::new(1, Faults::none())), 1);
        let mut writer = SegmentWriter::new(store.clone(), 7, 8 << 10, 1 << 20);
        for page in 0..6u64 {
            writer.begin_page().unwrap();
            for key in 0..10 {
                let len = if page % 2 == 1 { 11 } else { 50 };
                writer.push_encoded(page * 10 + key, &vec![page as u8; len]).unwrap();
            }
            writer.finish_page().unwrap();
        }
        writer.seal().unwrap();
        let info = writer.take_sealed().pop().unwrap();
        assert_eq!(info.id, SegmentId(1));
        let buffer = IoBuffer::zeroed(info.bytes as usize);
        let read = Operation::Read { offset: 0 };
        let (buffer, done) = run_blocking(store.device(), &info.file, read, buffer);
        done.unwrap();
        let bytes = buffer.as_slice()[..info.bytes as usize].to_vec();
        (info, bytes)
    }

    /// How many records are sound, and how many errors there are.
    fn count(info: &SegmentInfo, bytes: &[u8]) -> (u64, usize) {
        let whole = WholeSegment::open(info, 7, bytes);
        let (mut sound, mut errors) = (0, whole.damage().len());
        for image in whole.images() {
            match whole.footer(image) {
                Err(_) => errors += 1,
                Ok(entries) => entries.iter().for_each(|e| match whole.record(image, e) {
                    Ok(_) => sound += 1,
                    Err(_) => errors += 1,
                }),
            }
        }
        (sound, errors)
    }

    #[test]
    fn damage_hides_only_what_it_is_in() {
        let (info, bytes) = sample();
        assert_eq!(count(&info, &bytes), (60, 0));
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            let (sound, errors) = count(&info, &bytes);
            assert!(sound >= 50 && (sound == 60 || errors > 0), "{at}: {sound}, {errors}");
        }
    }

    #[test]
    fn segments_of_before_are_read_and_those_of_later_refused() {
        let (info, mut bytes) = sample();
        for (version, errors) in [(1, 1), (2, 0), (3, 0), (4, 1)] {
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(version));
            let crc = checksum(info.id, 0, &bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(count(&info, &bytes), (60, errors), "version {version}");
        }
    }

    #[test]
    fn a_schema_or_a_codec_that_is_not_known_is_refused() {
        let (info, bytes) = sample();
        for (at, what) in [(32, "schema 1"), (36, "codec 1")] {
            let mut bytes = bytes.clone();
            assert_eq!(bytes[at..at + 4], [0; 4]);
            bytes[at] = 1;
            let crc = checksum(info.id, 0, &bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            let whole = WholeSegment::open(&info, 7, &bytes);
            let [damage] = whole.damage() else { panic!("{what}: {:?}", whole.damage()) };
            assert!(format!("{damage:?}").contains(what), "{damage:?}");
        }
    }

    #[test]
    fn all_damage_is_told() {
        let (info, mut bytes) = sample();
        let length = bytes.len();
        let first = WholeSegment::open(&info, 7, &bytes).images()[0];
        // Header, a record of the first image, its trailer, the tail.
        for at in [9, 4096 + 20, (first.offset + first.bytes) as usize - 30, length - 30] {
            bytes[at] ^= 4;
        }
        // Without tail and trailer the first image cannot be found; the others can.
        assert_eq!(count(&info, &bytes), (50, 2));
        bytes[length - 30] ^= 4;
        assert_eq!(count(&info, &bytes), (59, 3));
    }

    #[test]
    fn damage_of_a_record_without_a_footer_hides_no_other() {
        let (info, mut bytes) = sample();
        let bare = WholeSegment::open(&info, 7, &bytes).images()[1];
        assert_eq!((bare.bare_len, bare.records), (11, 10));
        // Headers of two records, the payload of another.
        for at in [2 * 32, 7 * 32 + 9, 4 * 32 + 20] {
            bytes[bare.offset as usize + at] ^= 4;
        }
        assert_eq!(count(&info, &bytes), (57, 3));
    }

    #[test]
    fn each_changed_byte_is_damage_or_told_to_be_padding() {
        let (info, mut bytes) = sample();
        let look = |bytes: &[u8]| {
            let whole = WholeSegment::open(&info, 7, bytes);
            let is_sound = whole.damage().is_empty() && whole.told().is_some();
            (is_sound, whole.changed_padding())
        };
        assert_eq!(look(&bytes), (true, vec![]));
        let (mut damaged, mut padding) = (0, 0);
        for at in (0..bytes.len()).step_by(3) {
            bytes[at] ^= 1;
            match look(&bytes) {
                (true, places) => {
                    assert_eq!(places, [at as u64]);
                    padding += 1;
                }
                (false, _) => damaged += 1,
            }
            bytes[at] ^= 1;
        }
        assert!(damaged > 500 && padding > 500, "{damaged} {padding}");
        bytes.push(0);
        assert_eq!(look(&bytes).1, [info.bytes]);
    }

    #[test]
    fn a_file_of_any_length_is_told_of() {
        let (info, bytes) = sample();
        for length in (0..bytes.len()).step_by(61) {
            assert!(count(&info, &bytes[..length]).1 > 0, "{length}");
        }
    }
}
