//! Deaths that a checkpoint under way has to know of, and that there is no room to note: on storage, in the
//! checkpoint's own file, until it has made the sets that they belong to.
//!
//! They are kept in parts. The owner fills one; a full one goes to the helper, and the owner goes on with
//! another. If the helper has all of them the call waits, as one does that needs a page.
//!
//! What it keeps true:
//! - Memory is that of the parts, booked since the log was opened, however many deaths there are: each part
//!   on storage says where the one written before it is, so that only the last has to be known here. The
//!   bytes that go to the file and come from it are in the memory for rewriting, which rests meanwhile, on
//!   the helper's side, where a rewrite that was given up has ended before.
//! - A death that is lost, since the device fails or stands, is told to the checkpoint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alluvium_pagestore::io::Patience;
use alluvium_pagestore::{
    BlobReader, BlobRef, BlobWriter, Death, Error, ErrorKind, Helper, Result, SegmentStore,
};

use crate::checkpoint::{HelperJob, Jobs};

/// Parts that are filled or written: one, and those that the helper has.
const PARTS: usize = 3;
/// Bytes of a part on storage before its deaths: where the one before is.
const HEAD_BYTES: usize = 28;
const DEATH_BYTES: usize = 8;

/// Deaths on storage, of the checkpoint being taken.
#[derive(Debug)]
pub struct DeathSpill {
    store: SegmentStore,
    patience: Duration,
    /// Deaths in a part.
    part: usize,
    filling: Vec<Death>,
    empty: Vec<Vec<Death>>,
    /// What is read again.
    read: Vec<Death>,
    jobs: Jobs<SpillOutcome>,
    /// How many checkpoints had one: what is written for others is nobody's.
    generation: u64,
    /// While a checkpoint is taken.
    chain: Option<Arc<DeathChain>>,
    /// Whether parts were given to the helper for it.
    has_written: bool,
    /// Why deaths are lost.
    lost: Option<(ErrorKind, String)>,
}

/// The helper has written a part, which is empty again, or could not.
#[derive(Debug)]
struct SpillOutcome {
    generation: u64,
    part: Vec<Death>,
    result: Result<()>,
}

/// The parts on storage. Only the helper looks at which was the last.
#[derive(Debug)]
struct DeathChain {
    blobs: BlobWriter,
    last: Mutex<Option<BlobRef>>,
    is_given_up: AtomicBool,
}

/// Some deaths that were read again, and where those before them are.
pub struct RecalledDeaths {
    deaths: Vec<Death>,
    before: Option<BlobRef>,
}

/// Which part is read next.
#[derive(Clone, Copy, Debug)]
pub enum NextPart {
    /// The last of all that were given to the helper.
    Last,
    /// The one here.
    At(BlobRef),
}

/// The answer of a read.
pub type DeathsRead = HelperJob<(Vec<Death>, Result<Option<BlobRef>>)>;

impl DeathSpill {
    /// Nothing yet; parts of so many deaths, which the caller has booked.
    pub fn new(store: SegmentStore, helper: Helper, patience: Duration, part: usize) -> Self {
        let new = || Vec::with_capacity(part);
        Self {
            store,
            patience,
            part,
            filling: new(),
            empty: (1..PARTS).map(|_| new()).collect(),
            read: new(),
            jobs: Jobs::new(helper),
            generation: 0,
            chain: None,
            has_written: false,
            lost: None,
        }
    }

    /// What parts of so many deaths take.
    pub fn memory_bytes(part: usize) -> u64 {
        ((PARTS + 1) * part * size_of::<Death>()) as u64
    }

    /// The most deaths in a part, for so many bytes to write and read them with.
    pub fn part_max(bytes: usize) -> usize {
        // A buffer of whole blocks, and what is in it.
        (bytes / 2 - HEAD_BYTES) / DEATH_BYTES
    }

    /// A checkpoint begins, with this file.
    pub fn begin(&mut self, blobs: &BlobWriter) {
        self.end();
        self.generation += 1;
        let (blobs, last, is_given_up) = (blobs.clone(), Mutex::default(), AtomicBool::default());
        self.chain = Some(Arc::new(DeathChain { blobs, last, is_given_up }));
    }

    /// No checkpoint is being taken any more.
    pub fn end(&mut self) {
        if let Some(chain) = self.chain.take() {
            chain.is_given_up.store(true, Ordering::Relaxed);
        }
        self.filling.clear();
        (self.has_written, self.lost) = (false, None);
    }

    /// Whether a checkpoint is being taken.
    pub fn is_wanted(&self) -> bool {
        self.chain.is_some()
    }

    /// Keeps a death, unless one before it is lost: then nobody can use it.
    pub fn push(&mut self, death: Death) {
        if self.lost.is_none() && (self.filling.len() < self.part || self.begin_part()) {
            self.filling.push(death);
        }
    }

    /// What has died cannot be told any more. Whoever waits for what passes would wait for nothing: the checkpoint is
    /// overtaken.
    pub fn lose(&mut self, kind: ErrorKind, why: impl Into<String>) {
        let kind = match kind {
            ErrorKind::Backpressure | ErrorKind::OverBudget => ErrorKind::Overtaken,
            kind => kind,
        };
        self.lost.get_or_insert((kind, why.into()));
    }

    /// The error of deaths that are lost, also of those whose part is found not to have been written only now:
    /// what was read after that was tried has a gap.
    pub fn check(&mut self) -> Result<()> {
        self.take_answers();
        self.lost.as_ref().map_or(Ok(()), |(kind, why)| Err(Error::new(*kind, why.as_str())))
    }

    /// Gives the full part to the helper; says whether there is another.
    #[cold]
    fn begin_part(&mut self) -> bool {
        let Some(empty) = self.wait_for_empty() else { return false };
        let mut part = std::mem::replace(&mut self.filling, empty);
        let Some(chain) = self.chain.clone() else { return false };
        self.has_written = true;
        let generation = self.generation;
        self.jobs.submit(move || {
            let result = chain.write(&part);
            part.clear();
            SpillOutcome { generation, part, result }
        });
        true
    }

    /// An empty part; none if the device does nothing, or cannot write.
    fn wait_for_empty(&mut self) -> Option<Vec<Death>> {
        let mut patience = None;
        loop {
            self.take_answers();
            if self.lost.is_some() {
                return None;
            }
            if let Some(part) = self.empty.pop() {
                return Some(part);
            }
            let device = self.store.device();
            let patience = patience.get_or_insert_with(|| Patience::new(self.patience, device));
            if let Some(written) = self.jobs.wait(|| device.drive()) {
                self.take(written);
            } else if patience.is_over(device) {
                let error = patience.error("deaths are still being written; begin it again");
                self.lose(error.kind(), error.message());
            }
        }
    }

    fn take_answers(&mut self) {
        while let Some(written) = self.jobs.poll() {
            self.take(written);
        }
    }

    fn take(&mut self, written: SpillOutcome) {
        self.empty.push(written.part);
        if let (Err(error), true) = (written.result, written.generation == self.generation) {
            let why = format!(
                "a list of deaths of the checkpoint could not be written; begin it again: {error}"
            );
            self.lose(error.kind(), why);
        }
    }

    /// Those that the helper was not given.
    pub fn in_memory(&self) -> &[Death] {
        &self.filling
    }

    /// Whether some are on storage.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Begins to read a part again.
    pub fn start_reading(&mut self, next: NextPart) -> Option<DeathsRead> {
        let chain = self.chain.clone()?;
        let mut deaths = std::mem::take(&mut self.read);
        let reader = BlobReader::new(self.store.shared_device());
        Some(HelperJob::submit(self.jobs.helper(), "what has died", move || {
            let read = chain.read(&reader, next, &mut deaths);
            (deaths, read)
        }))
    }

    /// The part that was read, if it was; `None` while it is not.
    pub fn take_read(&mut self, reading: &DeathsRead) -> Option<Result<RecalledDeaths>> {
        let read = reading.poll().transpose()?;
        Some(read.and_then(|(deaths, before)| match before {
            Ok(before) => Ok(RecalledDeaths { deaths, before }),
            Err(error) => {
                self.read = deaths;
                Err(error)
            }
        }))
    }

    /// Takes back what was read, when it is used; gives where those before it are.
    pub fn give_back(&mut self, recalled: RecalledDeaths) -> Option<BlobRef> {
        self.read = recalled.deaths;
        recalled.before
    }
}

impl RecalledDeaths {
    /// The deaths.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }
}

impl DeathChain {
    /// Writes a part behind the others.
    fn write(&self, deaths: &[Death]) -> Result<()> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::with_capacity(HEAD_BYTES + DEATH_BYTES * deaths.len());
        // A blob of no bytes is none.
        let before = last.map_or((0, 0, 0, 0), |b| (b.file, b.offset, b.len, b.crc));
        bytes.extend_from_slice(&before.0.to_le_bytes());
        bytes.extend_from_slice(&before.1.to_le_bytes());
        bytes.extend_from_slice(&before.2.to_le_bytes());
        bytes.extend_from_slice(&before.3.to_le_bytes());
        deaths.iter().for_each(|death| bytes.extend_from_slice(&death.to_le_bytes()));
        *last = Some(self.blobs.append(&bytes)?);
        Ok(())
    }

    /// Reads a part; gives where the one before it is.
    fn read(
        &self,
        reader: &BlobReader,
        next: NextPart,
        deaths: &mut Vec<Death>,
    ) -> Result<Option<BlobRef>> {
        deaths.clear();
        let last = || *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match next {
            NextPart::Last => last(),
            NextPart::At(at) => Some(at),
        };
        let Some(at) = at else { return Ok(None) };
        let bytes = reader.read(&at)?;
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
        let crc = u32::from_le_bytes(head[24..].try_into().expect("four"));
        let before = BlobRef { file: word(0), offset: word(8), len: word(16), crc };
        let read = rest.chunks_exact(DEATH_BYTES).map(|b| b.try_into().expect("eight"));
        deaths.extend(read.map(Death::from_le_bytes));
        Ok((before.len > 0).then_some(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::SegmentId;
    use alluvium_pagestore::io::{Fault, Faults, Simulated};

    fn spill(device: &Simulated, patience: Duration) -> DeathSpill {
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let mut spill = DeathSpill::new(store, Helper::inline(), patience, 32);
        spill.begin(&BlobWriter::new(Arc::new(device.clone()), 1, 4096));
        spill
    }

    fn recall(spill: &mut DeathSpill) -> Result<Vec<u32>> {
        let mut all: Vec<u32> = spill.in_memory().iter().map(|death| death.grain()).collect();
        let mut next = spill.has_written().then_some(NextPart::Last);
        while let Some(at) = next {
            let reading = spill.start_reading(at).expect("a checkpoint is being taken");
            let recalled = loop {
                spill.jobs.helper().drive();
                if let Some(read) = spill.take_read(&reading) {
                    break read?;
                }
            };
            all.extend(recalled.deaths().iter().map(|death| death.grain()));
            next = spill.give_back(recalled).map(NextPart::At);
        }
        all.sort_unstable();
        Ok(all)
    }

    #[test]
    fn however_many_die_all_are_recalled_and_again_and_memory_stays() {
        let device = Simulated::new(7, Faults::late(3));
        let mut spill = spill(&device, Duration::from_secs(5));
        for count in [0, 20, 1000] {
            let known = recall(&mut spill).unwrap().len() as u32;
            (known..count).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
            assert_eq!(recall(&mut spill).unwrap(), (0..count).collect::<Vec<_>>());
            assert_eq!(recall(&mut spill).unwrap(), (0..count).collect::<Vec<_>>());
        }
        let parts = spill.empty.iter().chain([&spill.filling, &spill.read]);
        assert!(parts.clone().all(|part| part.capacity() == 32));
        assert!(parts.count() <= PARTS + 1);
        // What another checkpoint has kept is none of this one's.
        let blobs = BlobWriter::new(Arc::new(device.clone()), 2, 4096);
        spill.begin(&blobs);
        assert_eq!(recall(&mut spill).unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn a_part_that_is_missing_is_told_by_who_reads_the_others() {
        let device = Simulated::new(7, Faults { write_errors: 1.0, ..Faults::none() });
        let mut spill = spill(&device, Duration::from_secs(5));
        // Nobody waits for the first part: it is the only one.
        (0..40).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
        assert!(recall(&mut spill).unwrap().len() < 40);
        let error = spill.check().unwrap_err();
        assert!(error.to_string().contains("begin it again"), "{error}");
    }

    /// A device that stands: who asks again would wait for what is lost, so that it is not told as what passes.
    #[test]
    fn what_was_not_written_in_time_does_not_come_with_more_time() {
        let device = Simulated::new(7, Faults::none());
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let patience = Duration::from_millis(20);
        let mut spill = DeathSpill::new(store, Helper::thread().unwrap(), patience, 32);
        spill.begin(&BlobWriter::new(Arc::new(device.clone()), 1, 64));
        device.on_nth_write(1, Fault::Stuck);
        // The first part is with the device, however late its helper comes, before anybody waits for it.
        (0..40).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
        while device.stuck() == 0 {
            std::thread::yield_now();
        }
        (40..1000).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
        let in_time = spill.check();
        device.release_stuck();
        for told in [in_time, spill.check()] {
            assert_eq!(told.unwrap_err().kind(), ErrorKind::Overtaken);
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_until_the_next_checkpoint() {
        let device = Simulated::new(7, Faults { write_errors: 1.0, ..Faults::none() });
        let mut spill = spill(&device, Duration::from_secs(5));
        for number in 2..6 {
            (0..1000).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
            for _ in 0..2 {
                let error = spill.check().unwrap_err();
                assert!(error.to_string().contains("begin it again"), "{error}");
            }
            spill.begin(&BlobWriter::new(Arc::new(device.clone()), number, 4096));
        }
        device.set_faults(Faults::none());
        spill.begin(&BlobWriter::new(Arc::new(device.clone()), 6, 4096));
        (0..1000).for_each(|grain| spill.push(Death::of(SegmentId(3), grain)));
        spill.check().unwrap();
        assert_eq!(recall(&mut spill).unwrap().len(), 1000);
    }
}
