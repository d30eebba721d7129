//! Reads segments from front to back, all records or many, and reads ahead meanwhile.
//!
//! A stretch is a sequence of adjacent images that fits in a buffer. There are four buffers: while
//! the records of one are used, the others are read into, across the ends of segments. An image
//! longer than a buffer is read through a window in pieces, and so are all images without memory
//! for buffers.
//!
//! Invariants: everything handed out is verified; once a pass is dropped, no device has memory of
//! it. Liveness and the meaning of records are the visitor's.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::footers::Footer;
use super::format::{FooterEntry, ImageInfo, VerifiedRecord, damaged, verify_record};
use super::reader::{SegmentDirectory, SegmentReader};
use super::{SegmentInfo, SegmentStore};
use crate::Result;
use crate::io::{IoBuffer, Operation, UnderWay};

/// Buffers of a pass that reads ahead.
const BUFFERS: usize = 4;

/// A record comes soon when there are so many before it.
const SOON: usize = 16;

/// Receives the records of segments.
pub trait PassVisitor {
    /// Called before the records of the `nth` segment.
    fn begin(&mut self, nth: usize) -> Result<()>;

    /// Announces a record that comes soon: the visitor may prefetch what it needs for it. Called
    /// only where no further read is needed. The default does nothing.
    fn soon(&mut self, entry: &FooterEntry) {
        let _ = entry;
    }

    /// Receives a record by its footer's entry. The record is verified when its payload is
    /// requested.
    fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()>;

    /// Called after all records of the `nth` segment.
    fn end(&mut self, nth: usize) -> Result<()>;

    /// Returns whether to reuse a buffer for reading ahead. Otherwise the buffer is dropped at
    /// once; after the last one, everything is read through the window. The default keeps all.
    fn keeps_buffer(&mut self) -> bool {
        true
    }
}

/// A pass over segments.
#[derive(Debug)]
pub struct SegmentPass {
    store: SegmentStore,
    reader: SegmentReader,
    buffers: usize,
    buffer_bytes: usize,
    free: Vec<IoBuffer>,
    /// What is read, or comes next, in order.
    ahead: VecDeque<ImageStretch>,
    /// The segment whose images are planned.
    planned: Option<Planned>,
    /// The footer of an image that is read through the window.
    entries: Vec<FooterEntry>,
}

#[derive(Debug)]
struct Planned {
    nth: usize,
    directory: Rc<SegmentDirectory>,
    /// The image that comes next.
    image: usize,
}

#[derive(Debug)]
struct ImageStretch {
    nth: usize,
    directory: Rc<SegmentDirectory>,
    images: Range<usize>,
    /// Being read, unless it is one image for the window.
    read: Option<UnderWay>,
}

/// A record during a pass over its segment.
#[derive(Debug)]
pub struct PassedRecord<'p>(ImageSource<'p>);

#[derive(Debug)]
enum ImageSource<'p> {
    Window(&'p mut SegmentReader, &'p SegmentInfo),
    /// The bytes that stand at an offset of the segment.
    Buffer(&'p SegmentInfo, &'p [u8], u64),
}

impl PassedRecord<'_> {
    /// Returns the payload of the record of `entry`, verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it differs from what was written; those
    /// of the device.
    #[inline]
    pub fn payload(&mut self, entry: &FooterEntry) -> Result<&[u8]> {
        let (info, bytes, start) = match &mut self.0 {
            ImageSource::Window(reader, info) => return Ok(reader.record(info, entry)?.payload),
            ImageSource::Buffer(info, bytes, start) => (*info, *bytes, *start),
        };
        let (file, offset) = (&info.file, entry.offset());
        let here = usize::try_from(offset.wrapping_sub(start)).ok().and_then(|at| bytes.get(at..));
        let verified = verify_record(file, info.id, offset, here.unwrap_or_default())?;
        match verified {
            VerifiedRecord::Record(record) if record.hash == entry.hash => Ok(record.payload),
            _ => Err(damaged(file, offset, "a record is not the one its footer tells of")),
        }
    }
}

impl SegmentPass {
    /// Creates a pass over segments of `state`, with a window of `window_bytes` and read-ahead
    /// buffers of `buffer_bytes`, which may be 0.
    pub fn new(
        store: SegmentStore,
        state: u64,
        window_bytes: usize,
        buffer_bytes: usize,
    ) -> SegmentPass {
        let buffers = if buffer_bytes == 0 { 0 } else { BUFFERS };
        Self {
            reader: SegmentReader::new(store.clone(), state, window_bytes),
            store,
            buffers,
            buffer_bytes,
            free: (0..buffers).map(|_| IoBuffer::zeroed(buffer_bytes)).collect(),
            ahead: VecDeque::with_capacity(BUFFERS),
            planned: None,
            entries: Vec::new(),
        }
    }

    /// Returns the bytes of the buffers, without the window and the footer of an image.
    pub fn ahead_bytes(buffer_bytes: usize) -> u64 {
        (BUFFERS * buffer_bytes) as u64
    }

    /// Passes the records of `count` segments, which `open` opens one by one, to the visitor in the
    /// order written.
    ///
    /// # Errors
    /// Those of `open`, of the visitor and of the device;
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for damage.
    pub fn run(
        &mut self,
        count: usize,
        open: &mut dyn FnMut(usize) -> Result<SegmentInfo>,
        visitor: &mut dyn PassVisitor,
    ) -> Result<()> {
        let (mut next, mut begun) = (0, 0);
        loop {
            while self.ahead.len() < self.buffers.max(1) {
                let Some(stretch) = self.plan(count, &mut next, open, visitor)? else { break };
                self.ahead.push_back(stretch);
            }
            let Some(stretch) = self.ahead.pop_front() else { break };
            go_on(visitor, &mut begun, stretch.nth + 1)?;
            self.show(stretch, visitor)?;
        }
        go_on(visitor, &mut begun, count)?;
        if count > 0 { visitor.end(count - 1) } else { Ok(()) }
    }

    /// The next stretch, whose reading is begun if it is for a buffer.
    fn plan(
        &mut self,
        count: usize,
        next: &mut usize,
        open: &mut dyn FnMut(usize) -> Result<SegmentInfo>,
        visitor: &mut dyn PassVisitor,
    ) -> Result<Option<ImageStretch>> {
        while self.planned.as_ref().is_none_or(|p| p.image == p.directory.images().len()) {
            if *next == count {
                self.planned = None;
                return Ok(None);
            }
            let directory = self.reader.open(&open(*next)?)?;
            check_order(&directory)?;
            self.planned = Some(Planned { nth: *next, directory: Rc::new(directory), image: 0 });
            *next += 1;
        }
        let planned = self.planned.as_mut().expect("planned above");
        let (nth, directory) = (planned.nth, planned.directory.clone());
        let (images, first) = (directory.images(), planned.image);
        let start = images[first].offset;
        let fits =
            |image: &&ImageInfo| image.offset + image.bytes - start <= self.buffer_bytes as u64;
        let fitting = images[first..].iter().take_while(fits).count();
        while !self.free.is_empty() && !visitor.keeps_buffer() {
            self.free.pop();
            self.buffers -= 1;
        }
        // Of several that would fit, one at a time goes through the window.
        let last = first + if self.free.is_empty() { 1 } else { fitting.max(1) };
        planned.image = last;
        let read = match (fitting, self.free.pop()) {
            (1.., Some(mut buffer)) => {
                let end = images[last - 1].offset + images[last - 1].bytes;
                buffer.set_len((end - start) as usize);
                let operation = Operation::Read { offset: start };
                let device = self.store.shared_device();
                Some(UnderWay::start(device, &directory.info.file, operation, buffer))
            }
            (_, unused) => {
                self.free.extend(unused);
                None
            }
        };
        Ok(Some(ImageStretch { nth, directory, images: first..last, read }))
    }

    fn show(&mut self, stretch: ImageStretch, visitor: &mut dyn PassVisitor) -> Result<()> {
        let ImageStretch { directory, images, read, .. } = stretch;
        let images = &directory.images()[images];
        let Some(read) = read else {
            return images
                .iter()
                .try_for_each(|image| self.show_window(&directory, image, visitor));
        };
        let (buffer, done) = read.wait();
        let (info, start) = (&directory.info, images[0].offset);
        let bytes = buffer.as_slice();
        let shown = done.and_then(|()| {
            images.iter().try_for_each(|image| show_image(info, image, bytes, start, visitor))
        });
        self.free.push(buffer);
        shown
    }

    fn show_window(
        &mut self,
        directory: &SegmentDirectory,
        image: &ImageInfo,
        visitor: &mut dyn PassVisitor,
    ) -> Result<()> {
        self.reader.footer(directory, image, &mut self.entries)?;
        for entry in &self.entries {
            let record = ImageSource::Window(&mut self.reader, &directory.info);
            visitor.record(entry, &mut PassedRecord(record))?;
        }
        Ok(())
    }
}

/// Ends the segment at hand and begins others, until so many are begun: those without images too.
fn go_on(visitor: &mut dyn PassVisitor, begun: &mut usize, until: usize) -> Result<()> {
    while *begun < until {
        if *begun > 0 {
            visitor.end(*begun - 1)?;
        }
        visitor.begin(*begun)?;
        *begun += 1;
    }
    Ok(())
}

/// Images follow each other, each with its footer inside.
fn check_order(directory: &SegmentDirectory) -> Result<()> {
    let (info, mut end) = (&directory.info, 0);
    for image in directory.images() {
        let footer_end = image.footer_offset.saturating_add(image.footer_bytes());
        let image_end = image.offset.saturating_add(image.bytes);
        let is_sound = image.offset >= end
            && image.footer_offset >= image.offset
            && footer_end <= image_end
            && image_end <= info.bytes;
        if !is_sound {
            let what = "an image is not where the next one of its segment would be";
            return Err(damaged(&info.file, image.offset, what));
        }
        end = image_end;
    }
    Ok(())
}

/// Shows an image of the bytes that stand at `start`.
fn show_image(
    info: &SegmentInfo,
    image: &ImageInfo,
    bytes: &[u8],
    start: u64,
    visitor: &mut dyn PassVisitor,
) -> Result<()> {
    let at = |offset: u64| (offset - start) as usize;
    let (records, told) = (&bytes[..at(image.footer_offset)], &bytes[at(image.told().start)..]);
    let footer = Footer::verify(info, image, told)?;
    let mut soon = footer.iter().skip(SOON);
    for entry in footer.iter() {
        if let Some(soon) = soon.next() {
            visitor.soon(&soon);
        }
        visitor.record(&entry, &mut PassedRecord(ImageSource::Buffer(info, records, start)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Device, Faults, Simulated};
    use crate::segment::SegmentWriter;
    use crate::{ErrorKind, SegmentId};
    use std::sync::Arc;

    const STATE: u64 = 7;

    /// Writes segments of several images, some of them longer than a small buffer, and gives them;
    /// the last is not sealed.
    fn written(store: &SegmentStore) -> (Vec<SegmentInfo>, SegmentWriter) {
        let mut writer = SegmentWriter::new(store.clone(), STATE, 16 << 10, 32 << 10);
        let (mut hash, mut open) = (1u64, None);
        for page in 0..24u64 {
            writer.begin_page().unwrap();
            for record in 0..(page * 37) % 90 + 1 {
                hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) + record;
                let long = if hash % 61 == 0 { 9000 } else { 300 };
                // Some pages have no footer.
                let len = if page % 5 == 2 { 12 } else { (hash >> 20) as usize % long };
                let payload = vec![hash as u8; len];
                writer.push_encoded(hash, &payload).unwrap();
            }
            open = Some(writer.finish_page().unwrap().segment);
        }
        let mut segments = writer.take_sealed();
        assert!(segments.len() > 3 && segments.iter().all(|segment| segment.sealed));
        segments.push(open.unwrap());
        (segments, writer)
    }

    #[derive(Default)]
    struct Seen {
        calls: Vec<(usize, char)>,
        records: Vec<(u64, Vec<u8>)>,
        /// Buffers are kept until there are so many records.
        keeps_until: Option<usize>,
        given_up: usize,
    }

    impl PassVisitor for Seen {
        fn begin(&mut self, nth: usize) -> Result<()> {
            self.calls.push((nth, 'b'));
            Ok(())
        }

        fn record(&mut self, entry: &FooterEntry, record: &mut PassedRecord<'_>) -> Result<()> {
            // Not all are asked for.
            let payload = if entry.hash % 3 == 0 { &[] } else { record.payload(entry)? };
            self.records.push((entry.hash, payload.to_vec()));
            Ok(())
        }

        fn end(&mut self, nth: usize) -> Result<()> {
            self.calls.push((nth, 'e'));
            Ok(())
        }

        fn keeps_buffer(&mut self) -> bool {
            let keeps = self.keeps_until.is_none_or(|until| self.records.len() < until);
            self.given_up += usize::from(!keeps);
            keeps
        }
    }

    fn passed(store: &SegmentStore, segments: &[SegmentInfo], buffer: usize) -> Result<Seen> {
        passed_by((store, 8 << 10), segments, buffer)
    }

    fn passed_by(
        (store, window): (&SegmentStore, usize),
        segments: &[SegmentInfo],
        buffer: usize,
    ) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut open = |nth: usize| Ok(segments[nth].clone());
        let mut pass = SegmentPass::new(store.clone(), STATE, window, buffer);
        pass.run(segments.len(), &mut open, &mut seen)?;
        Ok(seen)
    }

    #[test]
    fn buffers_of_any_size_and_none_show_the_same_records() {
        let device = Arc::new(Simulated::new(3, Faults::late(3)));
        let store = SegmentStore::new(device.clone(), 1);
        let (segments, _writer) = written(&store);
        let mut expected = Vec::new();
        let mut reader = SegmentReader::new(store.clone(), STATE, 8 << 10);
        for segment in &segments {
            let all = reader.for_each(segment, None, |entry, record| {
                let payload = if entry.hash % 3 == 0 { &[] } else { record.payload };
                expected.push((entry.hash, payload.to_vec()));
                Ok(())
            });
            all.unwrap();
        }
        let calls: Vec<_> = (0..segments.len()).flat_map(|n| [(n, 'b'), (n, 'e')]).collect();
        for buffer in [0, 4 << 10, 16 << 10, 40 << 10, 1 << 20] {
            let before = device.stats().reads;
            let seen = passed(&store, &segments, buffer).unwrap();
            assert!(seen.records == expected, "{buffer}");
            assert_eq!(seen.calls, calls, "{buffer}");
            let reads = device.stats().reads - before;
            // Header, tail and directory of each, the trailers of the open one, and the stretches.
            assert!(buffer < 1 << 20 || reads <= 4 * segments.len() as u64 + 24, "{reads} reads");
        }
        assert!(passed(&store, &[], 16 << 10).unwrap().calls.is_empty());
    }

    #[test]
    fn buffers_are_given_up_at_any_time() {
        let device = Arc::new(Simulated::new(3, Faults::late(3)));
        let store = SegmentStore::new(device, 1);
        let (segments, _writer) = written(&store);
        let expected = passed(&store, &segments, 0).unwrap();
        let mut open = |nth: usize| Ok(segments[nth].clone());
        for buffer in [4 << 10, 16 << 10, 40 << 10] {
            for until in (0..expected.records.len()).step_by(40) {
                let mut seen = Seen { keeps_until: Some(until), ..Seen::default() };
                let mut pass = SegmentPass::new(store.clone(), STATE, 8 << 10, buffer);
                pass.run(segments.len(), &mut open, &mut seen).unwrap();
                assert!(seen.records == expected.records, "{buffer} {until}");
                assert_eq!(seen.calls, expected.calls, "{buffer} {until}");
                let left = pass.free.len();
                assert_eq!(seen.given_up + left, BUFFERS, "{buffer} {until}");
                assert!(until > 0 || left == 0, "{buffer}");
            }
        }
    }

    #[test]
    fn a_window_with_bytes_of_the_next_segment_has_none_of_this_one() {
        let device = Arc::new(Simulated::new(4, Faults::none()));
        let store = SegmentStore::new(device, 1);
        // Each an image of the same length, longer than a buffer, and directories at the same place.
        let mut writer = SegmentWriter::new(store.clone(), STATE, 16 << 10, 16 << 10);
        let mut expected = Vec::new();
        for record in 0..240u64 {
            if record % 80 == 0 {
                writer.begin_page().unwrap();
            }
            expected.push((record * 3 + 1, vec![record as u8; 200]));
            let (hash, payload) = expected.last().unwrap();
            writer.push_encoded(*hash, payload).unwrap();
            if record % 80 == 79 {
                writer.finish_page().unwrap();
            }
        }
        writer.seal().unwrap();
        let segments = writer.take_sealed();
        assert_eq!(segments.len(), 3);
        for (buffer, window) in [(0, 8 << 10), (8 << 10, 32 << 10), (12 << 10, 128 << 10)] {
            let seen = passed_by((&store, window), &segments, buffer).unwrap();
            assert!(seen.records == expected, "{buffer} {window}");
        }
    }

    #[test]
    fn damage_is_told_by_file_and_offset_whatever_the_buffer() {
        let device = Arc::new(Simulated::new(5, Faults::none()));
        let store = SegmentStore::new(device.clone(), 1);
        let (segments, _writer) = written(&store);
        let clean = passed(&store, &segments, 40 << 10).unwrap().records;
        let (mut dice, mut told) = (1u64, 0);
        for round in 0..150 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            let segment = &segments[(dice >> 33) as usize % segments.len()];
            let at = ((dice >> 20) % segment.bytes).max(16);
            flip(&*device, segment.id, at);
            for buffer in [0, 16 << 10, 1 << 20] {
                match passed(&store, &segments, buffer) {
                    // Padding, or a record that nobody asked for.
                    Ok(seen) => assert!(seen.records == clean, "{at} of {segment:?}, {buffer}"),
                    Err(error) => {
                        told += 1;
                        assert_eq!(error.kind(), ErrorKind::Corrupt);
                        assert_eq!(
                            error.context("file"),
                            Some(&*segment.id.file_name()),
                            "{error}"
                        );
                        assert!(error.context("offset").is_some(), "{error}");
                    }
                }
            }
            flip(&*device, segment.id, at);
        }
        assert!(told > 100, "{told}");
        assert!(passed(&store, &segments, 40 << 10).unwrap().records == clean);
    }

    /// Changes a bit of a byte.
    fn flip(device: &dyn Device, id: SegmentId, at: u64) {
        use crate::io::{BLOCK_BYTES, run_blocking};
        let file = device.open(&id.file_name()).unwrap();
        let offset = at / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let block = IoBuffer::zeroed(BLOCK_BYTES);
        let (mut block, done) = run_blocking(device, &file, Operation::Read { offset }, block);
        done.unwrap();
        block.as_mut_slice()[(at - offset) as usize] ^= 4;
        run_blocking(device, &file, Operation::Write { offset }, block).1.unwrap();
    }
}
