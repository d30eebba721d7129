//! Pages on their way out: written by the helper, dropped by the helper.
//!
//! The owner freezes a frame and hands it over; the helper encodes its records one by one into a
//! page image, notes in each slot's header where the record is, and answers. A frame whose
//! entries are all on storage goes to the helper once more to drop the values that own heap.
//!
//! Both run user code, which may panic. One that panics while a page is encoded becomes the error
//! of that page, which stays in memory as one that could not be written. One that panics while it
//! is dropped may leak what is left of itself; the entries after it are dropped all the same.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use alluvium_pagestore::{
    Error, ErrorKind, Helper, Result, SegmentInfo, SegmentStore, SegmentWriter, WrittenPage,
};

use crate::checkpoint::Jobs;
use crate::hybrid_log::frame_unsafe::{Frame, FrozenFrame};
use crate::hybrid_log::log::CopyFrame;
use crate::hybrid_log::writers::Writers;
use crate::support::record_type_unsafe::ErasedTouched;
use crate::trace_span;

/// The records of some slots, in one segment: a frame whose values are long may have several.
pub struct WrittenSlots {
    pub page: WrittenPage,
    pub records: u64,
    pub slots: Range<u32>,
}

/// What the helper answers.
pub enum FlushOutcome {
    /// A frame was written, or could not be.
    Flushed {
        /// The frame's number.
        number: u32,
        /// What the helper was given.
        frozen: FrozenFrame,
        /// What was booked for a record that is longer than others.
        booked: u64,
        /// Where the records went.
        result: Result<Vec<WrittenSlots>>,
        /// Segments that were sealed on the way.
        sealed: Vec<SegmentInfo>,
    },
    /// Copies of records were written, or could not be.
    Copied {
        /// The copies.
        copies: CopyFrame,
        /// Where the records went.
        result: Result<Vec<WrittenSlots>>,
        /// Segments that were sealed on the way.
        sealed: Vec<SegmentInfo>,
    },
    /// A frame's values were dropped.
    Reaped {
        /// The frame, empty.
        frame: Frame,
        /// Heap that the values owned.
        heap_bytes: u64,
    },
    /// The open segments were sealed.
    Sealed {
        /// What it was given with.
        epoch: u32,
        /// Whether they were.
        result: Result<()>,
        /// All segments sealed since the last answer.
        sealed: Vec<SegmentInfo>,
    },
    /// The open segments were removed.
    Abandoned,
}

/// Hands frames to the helper and collects answers.
pub struct Flusher {
    jobs: Jobs<FlushOutcome>,
    store: SegmentStore,
    writers: Arc<Mutex<Writers>>,
    /// When a value was touched last, if entries expire.
    touched: Option<ErasedTouched>,
}

impl Flusher {
    /// A flusher that writes with `writers`.
    pub fn new(helper: Helper, store: SegmentStore, writers: Writers) -> Self {
        let writers = Arc::new(Mutex::new(writers));
        Self { jobs: Jobs::new(helper), store, writers, touched: None }
    }

    /// The state's writers, for the helper only.
    pub fn writers(&self) -> Arc<Mutex<Writers>> {
        self.writers.clone()
    }

    /// Segments get the latest time at which a value of theirs was touched.
    pub fn stamp_with(&mut self, touched: ErasedTouched) {
        self.touched = Some(touched);
    }

    /// Answers still to come.
    pub fn pending(&self) -> usize {
        self.jobs.pending()
    }

    /// Whether nobody waits for the helper any more.
    pub fn is_left_alone(&self) -> bool {
        self.jobs.helper().is_left_alone()
    }

    /// Has a frozen frame written, for whose longest record so many bytes are booked beside those of
    /// the writer.
    pub fn flush(&mut self, number: u32, frozen: FrozenFrame, booked: u64) {
        let (writers, touched) = (self.writers.clone(), self.touched);
        self.jobs.submit(move || {
            let (result, sealed) = write_page(&writers, number, &frozen, touched);
            if booked > 0 {
                let mut writers = writers.lock().expect("a writer's user does not panic");
                writers.for_pages().shrink_scratch(0);
            }
            FlushOutcome::Flushed { number, frozen, booked, result, sealed }
        });
    }

    /// Has copies of records written.
    pub fn flush_copies(&mut self, mut copies: CopyFrame) {
        let (writers, touched) = (self.writers.clone(), self.touched);
        self.jobs.submit(move || {
            let frozen = copies.frame.freeze();
            let (result, sealed) = write_page(&writers, copies.first, &frozen, touched);
            copies.frame.thaw(frozen);
            FlushOutcome::Copied { copies, result, sealed }
        });
    }

    /// Has a frame's values dropped.
    pub fn reap(&mut self, mut frame: Frame, heap_bytes: u64) {
        self.jobs.submit(move || {
            // What panics here panics for nobody: there is no call that it belongs to.
            let _panic = drop_entries(&mut frame);
            FlushOutcome::Reaped { frame, heap_bytes }
        });
    }

    /// Has the open segments sealed and made durable; the answer has the epoch.
    pub fn seal(&mut self, epoch: u32) {
        let writers = self.writers.clone();
        self.jobs.submit(move || {
            let mut writers = writers.lock().expect("a writer's user does not panic");
            let result = writers.seal();
            let sealed = writers.take_sealed();
            FlushOutcome::Sealed { epoch, result, sealed }
        });
    }

    /// Has the open segments removed: nobody needs what is in them.
    pub fn abandon(&mut self) {
        let writers = self.writers.clone();
        self.jobs.submit(move || {
            // The writers, which are booked until the answer, are dropped before it.
            writers.lock().expect("a writer's user does not panic").abandon();
            FlushOutcome::Abandoned
        });
    }

    /// An answer, if there is one.
    pub fn poll(&mut self) -> Option<FlushOutcome> {
        self.jobs.poll()
    }

    /// Does the work of an inline helper.
    pub fn drive(&self) {
        self.jobs.helper().drive();
        self.store.device().drive();
    }

    /// Waits a moment for an answer, doing the work of an inline helper.
    pub fn wait(&mut self) -> Option<FlushOutcome> {
        let device = self.store.device();
        self.jobs.wait(|| device.drive())
    }
}

/// Drops all entries of a frame, whatever panics, and returns the first panic. Every panic takes an
/// entry out of the frame, so that this ends.
pub fn drop_entries(frame: &mut Frame) -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| frame.clear())) {
        first.get_or_insert(panic);
    }
    first
}

/// Drops a frame with its entries, whatever panics, and returns the first panic. The entries of a frozen one stay:
/// the helper may read them.
pub fn drop_frame(mut frame: Frame) -> Option<Box<dyn Any + Send>> {
    if frame.is_frozen() { None } else { drop_entries(&mut frame) }
}

fn write_page(
    writers: &Mutex<Writers>,
    number: u32,
    frozen: &FrozenFrame,
    touched: Option<ErasedTouched>,
) -> (Result<Vec<WrittenSlots>>, Vec<SegmentInfo>) {
    trace_span!(DEBUG, "flush", page = number);
    let mut writers = writers.lock().expect("a writer's user does not panic");
    // The next page is begun over what a panic leaves of this one.
    let result = catch_unwind(AssertUnwindSafe(|| write(writers.for_pages(), frozen, touched)))
        .unwrap_or_else(|_| {
            let message = "a key or value panicked while a page was encoded";
            Err(Error::new(ErrorKind::Poisoned, message))
        });
    (result, writers.take_sealed())
}

fn write(
    writer: &mut SegmentWriter,
    frozen: &FrozenFrame,
    touched: Option<ErasedTouched>,
) -> Result<Vec<WrittenSlots>> {
    let (mut parts, mut first, mut records) = (Vec::with_capacity(1), 0, 0);
    for slot in 0..frozen.slots() {
        let Some(record) = frozen.get(slot) else { continue };
        let named = |error: Error| error.with("key", record.key_text());
        let length = record.encode(writer).map_err(named)?;
        if records > 0 && !writer.has_room(length) {
            let page = writer.finish_page()?;
            parts.push(WrittenSlots { page, records, slots: first..slot });
            records = 0;
        }
        if records == 0 {
            writer.begin_page_for(length)?;
            first = slot;
        }
        let grain = writer.append(record.hash()).map_err(|error| match error.kind() {
            ErrorKind::ValueTooLarge => named(error),
            _ => error,
        })?;
        frozen.set_grain(slot, grain);
        if let Some(touched) = touched {
            writer.stamp(touched.of(record));
        }
        records += 1;
    }
    if records == 0 {
        writer.begin_page()?;
    }
    parts.push(WrittenSlots { page: writer.finish_page()?, records, slots: first..frozen.slots() });
    Ok(parts)
}
