//! Rewriting segments whose records are mostly dead, or that are small: the live ones are copied, as bytes, to the
//! segment being written, or to that of the old generation.
//!
//! Those in memory are taken back first, for all segments that are given up together: a look at each slot is
//! cheaper than reading which records a segment has and looking for each, and often none are left. That goes
//! on while a checkpoint is taken; nothing else of a rewrite does. For the others the helper reads an image's footer; the owner asks the index which of its records are live; the
//! helper copies those; the owner points the index to the copies, each only if it still points to
//! the original. So every decision is the owner's and no step takes more than its fuel, and a frame.

use std::sync::Arc;

use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{
    Error, ErrorKind, FooterEntry, RECORD_HEADER_BYTES, Result, Rewrite, RewriteProgress,
    SegmentDirectory, SegmentId, SegmentMeta, SegmentReader, WrittenPage, fingerprint,
};

use crate::checkpoint::HelperJob;
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::core::{LogCore, stored_address};
use crate::hybrid_log::leaving::{LeavingSegments, SegmentSet};
use crate::support::booked::Booked;

/// The rewrite under way, if there is one, and the segments that are given up with it.
#[derive(Default)]
pub struct Rewriter {
    job: Option<SegmentRewrite>,
    leaving: LeavingSegments,
    /// Segments that the end of the checkpoint being taken is awaited for.
    put_off: SegmentSet,
    /// The rewrite that a checkpoint has interrupted. It goes on where it was: checkpoints in quick
    /// succession would have it begin again for ever otherwise.
    interrupted: Option<SegmentRewrite>,
    /// Whether steps wait for the helper.
    patient: bool,
    /// Copies of long records that nobody waits for any more, and their memory.
    given_up: Vec<(HelperJob<Result<CopiedEntries>>, Booked)>,
}

impl Rewriter {
    /// Gives up what is under way. The memory that the helper has for it comes back when it is through.
    fn give_up_job(&mut self) {
        let job = self.job.take();
        self.leave(job);
    }

    /// Leaves a rewrite to the helper.
    fn leave(&mut self, job: Option<SegmentRewrite>) {
        if let Some(SegmentRewrite { step: RewritePhase::Copying(copying, Some(booked)), .. }) = job
        {
            self.given_up.push((copying, booked));
        }
        self.settle();
    }

    /// As if so much was booked for a copy of a long record that nobody waits for any more.
    #[cfg(test)]
    pub(in crate::hybrid_log) fn leave_copy(
        &mut self,
        helper: &alluvium_pagestore::Helper,
        booked: Booked,
    ) {
        let copied = || Ok(CopiedEntries { entries: Vec::new(), grains: Vec::new(), page: None });
        self.given_up.push((HelperJob::submit(helper, PART, copied), booked));
    }

    /// Booked for copies that nobody waits for any more. It is given back as they end, whichever log the records are of
    /// then.
    pub(in crate::hybrid_log) fn left_bytes(&self) -> u64 {
        self.given_up.iter().map(|(_, booked)| booked.bytes()).sum()
    }

    fn settle(&mut self) {
        self.given_up.retain(|(copying, _)| matches!(copying.poll(), Ok(None)));
    }
}

struct SegmentRewrite {
    /// Number and id of the segment.
    segment: u32,
    id: SegmentId,
    /// All of its records have expired: they are removed, not copied.
    is_over: bool,
    directory: Option<Arc<SegmentDirectory>>,
    /// The next image.
    image: usize,
    step: RewritePhase,
}

/// A segment's directory, and the entries of one of its images.
type LoadedFooter = (Arc<SegmentDirectory>, Vec<FooterEntry>);

/// What the helper has of one.
const PART: &str = "a part of a rewrite";

enum RewritePhase {
    /// Frames are looked through for records of the segments that are given up.
    Sweeping,
    /// The next image's footer is to be read.
    Next,
    /// The helper reads the directory or a footer.
    Reading(HelperJob<Result<LoadedFooter>>),
    /// The owner looks which entries are live: those before `looked` that are stand at the front.
    Filtering { entries: Vec<FooterEntry>, looked: usize, live: usize },
    /// The helper copies.
    Copying(HelperJob<Result<CopiedEntries>>, Option<Booked>),
    /// The owner installs the copies from `next` on.
    Installing { copied: CopiedEntries, segment: u32, next: usize },
}

/// What the helper copied: entries of the old image, and their grains in the new one; [`LEFT_OUT`] of
/// those that have expired.
struct CopiedEntries {
    entries: Vec<FooterEntry>,
    grains: Vec<u32>,
    page: Option<WrittenPage>,
}

/// Slots that are looked at for what a record costs that is looked up.
const SLOTS_PER_FUEL: usize = 32;

/// Segments of less than one part in so many of a full one are small.
const SMALL_PART: u64 = 2;

/// No grain of a segment.
const LEFT_OUT: u32 = u32::MAX;

impl Rewrite for LogCore {
    fn foresee(&mut self, segments: &[u64]) {
        let Some(stored) = &self.log.stored else { return };
        let first = segments.first().and_then(|&segment| stored.number_of(SegmentId(segment)));
        if first.is_some_and(|number| self.rewriter.leaving.has(number)) {
            // Foreseen before with others, of which some are dead by now.
            return;
        }
        let numbers = segments.iter().filter_map(|&segment| stored.number_of(SegmentId(segment)));
        let expired_to = self.expired_to();
        // Nothing of those that have expired is written again.
        let mut live = numbers.filter(|&number| !stored.is_over(number, expired_to)).peekable();
        if live.peek().is_some() {
            self.rewriter.leaving = self.log.leaving(live);
        }
    }

    fn begin(&mut self, segment: u64) -> Result<()> {
        self.rewriter.give_up_job();
        let id = SegmentId(segment);
        let stored = self.log.stored.as_ref().expect("a log without segments is not rewritten");
        let Some(number) = stored.number_of(id) else {
            let message = format!("segment {segment}, which is to be rewritten, is missing");
            return Err(Error::new(ErrorKind::Missing, message));
        };
        let is_over = stored.is_over(number, self.expired_to());
        if let Some(job) = self.rewriter.interrupted.take_if(|job| job.id == id) {
            self.rewriter.job = Some(SegmentRewrite { is_over, ..job });
            return Ok(());
        }
        if !self.rewriter.leaving.has(number) {
            self.foresee(&[segment]);
        }
        let step = if self.rewriter.leaving.has(number) {
            RewritePhase::Sweeping
        } else {
            RewritePhase::Next
        };
        let job = SegmentRewrite { segment: number, id, is_over, directory: None, image: 0, step };
        self.rewriter.job = Some(job);
        Ok(())
    }

    fn be_patient(&mut self, patient: bool) {
        self.rewriter.patient = patient;
    }

    fn step(&mut self, fuel: usize) -> Result<RewriteProgress> {
        let Some(mut job) = self.rewriter.job.take() else {
            return Ok(RewriteProgress::Done { spent: 0 });
        };
        if self.is_capturing() && !matches!(job.step, RewritePhase::Sweeping | RewritePhase::Next) {
            // A checkpoint has interrupted it, and has not ended yet.
            self.rewriter.put_off.insert(job.segment);
            self.rewriter.interrupted = Some(job);
            return Ok(RewriteProgress::Done { spent: 1 });
        }
        let outcome = self.advance(&mut job, fuel.max(1));
        if !matches!(outcome, Ok(RewriteProgress::Done { .. })) {
            self.rewriter.job = Some(job);
        }
        outcome
    }

    fn unlink(&mut self, segment: u64) -> Result<()> {
        let id = SegmentId(segment);
        if self.rewriter.job.as_ref().is_some_and(|job| job.id == id) {
            self.rewriter.give_up_job();
        }
        let interrupted = self.rewriter.interrupted.take_if(|job| job.id == id);
        self.rewriter.leave(interrupted);
        let stored = self.log.stored.as_mut().expect("a log without segments has none");
        match stored.number_of(id) {
            // A checkpoint may have been confirmed since the policy saw it: it waits for that one.
            Some(number) if stored.is_committed(number) => Ok(()),
            Some(number) => {
                // Another segment may have the number.
                self.rewriter.leaving.remove(number);
                stored.unlink(number)
            }
            None => Ok(()),
        }
    }

    fn segments(&self, out: &mut Vec<SegmentMeta>) {
        if let Some(stored) = &self.log.stored {
            let capturing = self.is_capturing().then_some(&self.rewriter.put_off);
            stored.metas(self.expired_to(), capturing, out);
        }
    }

    fn small_bytes(&self) -> u64 {
        self.log.sizes.segment_bytes / SMALL_PART
    }

    fn unstored_bytes(&self) -> u64 {
        self.log.unstored_bytes()
    }
}

impl LogCore {
    pub(in crate::hybrid_log) fn give_up_rewrite(&mut self) {
        self.rewriter.give_up_job();
        let interrupted = self.rewriter.interrupted.take();
        self.rewriter.leave(interrupted);
        let given_up = std::mem::take(&mut self.rewriter.given_up);
        self.rewriter = Rewriter { given_up, ..Rewriter::default() };
    }

    /// Frames that were not to be looked through while a checkpoint was taken are next time.
    pub(in crate::hybrid_log) fn forget_sweep(&mut self) {
        if self.rewriter.leaving.is_over() && self.rewriter.leaving.has_skipped() {
            self.rewriter.leaving = LeavingSegments::default();
        }
    }

    /// A checkpoint begins: of a rewrite, only what is in memory goes on.
    pub(in crate::hybrid_log) fn put_rewrite_off(&mut self) {
        self.rewriter.put_off = SegmentSet::default();
        self.forget_sweep();
        let is_put_off = |job: &mut SegmentRewrite| !matches!(job.step, RewritePhase::Sweeping);
        let Some(mut job) = self.rewriter.job.take_if(is_put_off) else { return };
        let old = job.segment;
        job.step = match job.step {
            // They are in the segment that the checkpoint ends.
            RewritePhase::Installing { copied, segment, next } => {
                (next..copied.entries.len())
                    .for_each(|nth| self.install_nth(old, &copied, segment, nth));
                self.count_rewritten(&copied);
                job.image += 1;
                RewritePhase::Next
            }
            // So are these, but nobody waits for them now: the image is begun again.
            RewritePhase::Copying(answer, booked) => {
                self.rewriter.given_up.extend(booked.map(|booked| (answer, booked)));
                RewritePhase::Next
            }
            step => step,
        };
        self.rewriter.settle();
        self.rewriter.interrupted = Some(job);
    }

    fn advance(&mut self, job: &mut SegmentRewrite, fuel: usize) -> Result<RewriteProgress> {
        let (mut spent, patient) = (0, self.rewriter.patient);
        loop {
            // On an error the image is begun again.
            let step = std::mem::replace(&mut job.step, RewritePhase::Next);
            match step {
                // Notes that there is no room for would be written to storage.
                RewritePhase::Sweeping if self.is_capturing() && !self.log.has_room_to_note() => {}
                RewritePhase::Sweeping => {
                    let slots = (fuel - spent).saturating_mul(SLOTS_PER_FUEL);
                    let leaving = &mut self.rewriter.leaving;
                    let looked = self.log.take_back_step(leaving, slots);
                    // What a whole frame is worth beyond what there is, is paid for later.
                    spent += looked.div_ceil(SLOTS_PER_FUEL);
                    if !leaving.is_over() {
                        job.step = RewritePhase::Sweeping;
                        return Ok(RewriteProgress::Working { spent });
                    }
                }
                RewritePhase::Next => {
                    // Nothing on storage is live any more: frames in memory had the rest.
                    if self.log.stored.as_ref().is_none_or(|s| s.live_of(job.segment) == 0) {
                        return Ok(RewriteProgress::Done { spent: spent + 1 });
                    }
                    if self.is_capturing() {
                        let Rewriter { put_off, leaving, .. } = &mut self.rewriter;
                        put_off.insert(job.segment);
                        put_off.insert_all(leaving.segments());
                        return Ok(RewriteProgress::Done { spent: spent + 1 });
                    }
                    if job.directory.as_ref().is_some_and(|d| d.images().len() == job.image) {
                        return Ok(RewriteProgress::Done { spent });
                    }
                    job.step = RewritePhase::Reading(self.start_reading(job));
                }
                RewritePhase::Reading(answer) => {
                    match answer.poll_driving(&self.context.helper, patient)? {
                        Some(read) => {
                            let (directory, entries) = read?;
                            job.directory = Some(directory);
                            job.step = RewritePhase::Filtering { entries, looked: 0, live: 0 };
                        }
                        None => {
                            job.step = RewritePhase::Reading(answer);
                            return Ok(RewriteProgress::Working { spent });
                        }
                    }
                }
                RewritePhase::Filtering { mut entries, mut looked, mut live } => {
                    let end = entries.len().min(looked + fuel - spent);
                    spent += end - looked;
                    if job.is_over {
                        for entry in &entries[looked..end] {
                            self.leave_to_rewrite(job.segment, entry);
                        }
                        self.remove_expired(job.segment, &entries[looked..end]);
                        looked = end;
                    }
                    while looked < end {
                        if self.leave_to_rewrite(job.segment, &entries[looked]) {
                            entries.swap(live, looked);
                            live += 1;
                        }
                        looked += 1;
                    }
                    if looked < entries.len() {
                        job.step = RewritePhase::Filtering { entries, looked, live };
                        return Ok(RewriteProgress::Working { spent });
                    }
                    entries.truncate(live);
                    if live == 0 {
                        job.image += 1;
                    } else {
                        let booked = self.book_longest(&entries)?;
                        let answer = self.start_copying(job.segment, entries);
                        job.step = RewritePhase::Copying(answer, booked);
                    }
                }
                RewritePhase::Copying(answer, booked) => {
                    match answer.poll_driving(&self.context.helper, patient)? {
                        Some(copied) => {
                            let copied = copied?;
                            let stored = self.log.stored.as_mut().expect("a log with segments");
                            let segment = match &copied.page {
                                Some(page) => stored.update(&page.segment, 0)?,
                                None => job.segment,
                            };
                            job.step = RewritePhase::Installing { copied, segment, next: 0 };
                        }
                        None => {
                            job.step = RewritePhase::Copying(answer, booked);
                            return Ok(RewriteProgress::Working { spent });
                        }
                    }
                }
                RewritePhase::Installing { copied, segment, mut next } => {
                    let end = copied.entries.len().min(next + fuel - spent);
                    spent += end - next;
                    while next < end {
                        self.install_nth(job.segment, &copied, segment, next);
                        next += 1;
                    }
                    if next < copied.entries.len() {
                        job.step = RewritePhase::Installing { copied, segment, next };
                        return Ok(RewriteProgress::Working { spent });
                    }
                    self.count_rewritten(&copied);
                    job.image += 1;
                }
            }
            if spent >= fuel {
                return Ok(RewriteProgress::Working { spent });
            }
        }
    }

    fn reader(&self) -> SegmentReader {
        let store = self.context.segments.clone().expect("a log with segments");
        SegmentReader::new(store, fingerprint(&self.context.name), self.log.sizes.window_bytes)
    }

    fn start_reading(&self, job: &SegmentRewrite) -> HelperJob<Result<LoadedFooter>> {
        let (mut reader, image, known) = (self.reader(), job.image, job.directory.clone());
        let info = self.log.stored.as_ref().expect("a log with segments").info(job.segment).clone();
        HelperJob::submit(&self.context.helper, PART, move || {
            let directory = match known {
                Some(directory) => directory,
                None => Arc::new(reader.open(&info)?),
            };
            let mut entries = Vec::new();
            if let Some(image) = directory.images().get(image) {
                reader.footer(&directory, image, &mut entries)?;
            }
            Ok((directory, entries))
        })
    }

    /// Books what the longest record takes beyond the window that others are read through.
    fn book_longest(&mut self, entries: &[FooterEntry]) -> Result<Option<Booked>> {
        self.rewriter.settle();
        let longest = entries.iter().map(|entry| u64::from(entry.len)).max().unwrap_or(0);
        let more = match self.expiry {
            // Decoded, to know when it was touched.
            Some(_) => self.log.beyond_usual(longest),
            None => self.log.beyond_usual(longest) / 2,
        };
        if more == 0 {
            return Ok(None);
        }
        let more = more + 2 * BLOCK_BYTES as u64;
        self.log.make_free((more, "rewriting a value that is larger than max_value"))?;
        Ok(Some(Booked::buffers(self.log.account.clone(), more)))
    }

    fn start_copying(
        &self,
        segment: u32,
        entries: Vec<FooterEntry>,
    ) -> HelperJob<Result<CopiedEntries>> {
        let mut reader = self.reader();
        let info = self.log.stored.as_ref().expect("a log with segments").info(segment).clone();
        let writers = self.log.flusher.as_ref().expect("a log with segments").writers();
        let (expiry, record_type) = (self.expiry, self.log.record_type);
        HelperJob::submit(&self.context.helper, PART, move || {
            let mut writers = writers.lock().expect("a writer's user does not panic");
            let writer = writers.for_copies();
            let mut copy = || {
                let (mut grains, mut begun) = (Vec::with_capacity(entries.len()), false);
                // All of them stood in one segment; a quarter of a block may be padding.
                let bytes = |entry: &FooterEntry| RECORD_HEADER_BYTES + 16 + entry.len as usize;
                let all: usize = entries.iter().map(bytes).sum();
                let all = all + all / 3;
                for entry in &entries {
                    let record = reader.record(&info, entry)?;
                    let touched = match &expiry {
                        Some(expiry) => Some(expiry.touched(record_type, &info, record.payload)?),
                        None => None,
                    };
                    if expiry.zip(touched).is_some_and(|(e, touched)| touched < e.to) {
                        grains.push(LEFT_OUT);
                        continue;
                    }
                    if !std::mem::replace(&mut begun, true) {
                        writer.begin_page_for(all)?;
                    }
                    grains.push(writer.push_encoded(record.hash, record.payload)?);
                    touched.into_iter().for_each(|touched| writer.stamp(touched));
                }
                Ok((grains, begun.then(|| writer.finish_page()).transpose()?))
            };
            // Segments that this has sealed are left to the answer of the next flush: this answer is
            // dropped if the rewrite is given up, and may be taken before those to flushes whose
            // records are in them.
            let copied = copy();
            // The memory of the reader, which goes first, may be given back with the answer.
            copied.map(|(grains, page)| CopiedEntries { entries, grains, page })
        })
    }

    /// Says whether a record is to be copied. One that is in memory is marked to be written again from there.
    fn leave_to_rewrite(&mut self, segment: u32, entry: &FooterEntry) -> bool {
        let at = StoredAt { segment, grain: entry.grain };
        self.log.leave_to_rewrite(self.log.index_hash(entry.hash), at)
    }

    /// Points the index to a copy, or removes what has expired.
    fn install_nth(&mut self, old: u32, copied: &CopiedEntries, segment: u32, nth: usize) {
        let entry = &copied.entries[nth];
        match copied.grains[nth] {
            LEFT_OUT => self.remove_expired(old, &[*entry]),
            grain => self.install(old, entry, segment, grain),
        }
    }

    /// All copies of an image are installed.
    fn count_rewritten(&mut self, copied: &CopiedEntries) {
        let records = copied.grains.iter().filter(|g| **g != LEFT_OUT).count() as u64;
        self.log.stats.rewritten += records;
        let state = &*self.context.name;
        crate::trace_event!(DEBUG, "page rewritten", state = state, records = records);
    }

    fn install(&mut self, old: u32, entry: &FooterEntry, new: u32, grain: u32) {
        let hash = self.log.index_hash(entry.hash);
        let (from, to) = (stored_address(old, entry.grain), stored_address(new, grain));
        let replaced = self.log.index.replace(hash, from, to);
        let stored = self.log.stored.as_mut().expect("a log with segments");
        let copy = StoredAt { segment: new, grain };
        if replaced {
            stored.record_died(StoredAt { segment: old, grain: entry.grain });
            stored.record_lives(new);
        } else {
            stored.copy_is_dead(copy);
        }
    }
}
