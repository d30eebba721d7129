//! How far windowed state has come: part of every checkpoint.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use alluvium_layouts::{
    CheckpointOutcome, Heap, HeapTable, Layout, Part, StateContext, Table, TableStats,
};
use alluvium_pagestore::{
    BlobWriter, Encoded, Error, ErrorKind, KeyHash, Result, StateImage, Time,
};

use crate::export::{Entry, Visit};
use crate::state_cell::Hooks;

/// What has been done: the watermark; the watermark for which all was done; the end of the last
/// window that fired, where there was one.
pub(crate) type Record = (Time, Time, Option<Time>);

/// A [`Record`], and whether something is half done, which no checkpoint can hold.
#[derive(Debug)]
pub(crate) struct ProgressCell {
    name: String,
    pub(crate) watermark: Cell<Time>,
    pub(crate) settled: Cell<Time>,
    /// May be after the end of time.
    pub(crate) fired: Cell<Option<i128>>,
    pub(crate) busy: Cell<bool>,
    /// Whether a record of another store was joined.
    joined: Cell<bool>,
    table: RefCell<HeapTable<(), Record>>,
}

impl ProgressCell {
    pub(crate) fn open(name: &str, context: StateContext) -> Result<Rc<Self>> {
        let mut table: HeapTable<(), Record> = Heap::new().open(context)?;
        let (watermark, settled, fired) =
            table.get(&())?.copied().unwrap_or((Time::MIN, Time::MIN, None));
        Ok(Rc::new(Self {
            name: name.into(),
            watermark: Cell::new(watermark),
            settled: Cell::new(settled),
            fired: Cell::new(fired.map(|end| i128::from(end.0))),
            busy: Cell::new(false),
            joined: Cell::new(false),
            table: RefCell::new(table),
        }))
    }

    /// How far all is done; an error in the middle of something.
    fn record(&self) -> Result<Record> {
        if self.busy.get() {
            let message = "windows are being fired; advance until that is done, then checkpoint";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.name));
        }
        Ok((self.watermark.get(), self.settled.get(), self.fired.get().map(super::clipped)))
    }

    /// Joins what another store's checkpoint says, of which this store takes keys over.
    pub(crate) fn take(&self, part: &Part) -> Result<()> {
        // It is not a key's: whoever takes any key of the windows goes on from it.
        part.for_each_of_all(|(), record: Record| self.join(record))
    }

    /// Goes on from this record too: all windows that had fired there have fired.
    ///
    /// The watermark must be the same. With different ones no single record would do: from the
    /// earlier one, windows would come out again for keys of the store that was ahead; from the later
    /// one, windows of the other that had not fired would never come out. Checkpoints that were taken
    /// at one frontier have the same watermark. The last window that fired may differ, as windows
    /// without anything do not fire: of the same watermark the latest is right, since what did not
    /// fire before it was empty.
    pub(crate) fn join(&self, (watermark, settled, fired): Record) -> Result<()> {
        let fired = fired.map(|end| i128::from(end.0));
        if !self.joined.replace(true) && self.watermark.get() == Time::MIN {
            self.watermark.set(watermark);
            self.settled.set(settled);
            self.fired.set(fired);
            return Ok(());
        }
        if (watermark, settled) != (self.watermark.get(), self.settled.get()) {
            let (here, there) = (self.watermark.get().0, watermark.0);
            let message = format!(
                "windows at the watermarks {here} and {there} cannot be joined: the checkpoints were \
                 not taken at one frontier"
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with("state", &self.name));
        }
        self.fired.set(self.fired.get().max(fired));
        Ok(())
    }
}

impl Hooks for ProgressCell {
    fn poisoned(&self) -> bool {
        false
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        let record = self.record()?;
        let mut table = self.table.borrow_mut();
        table.put((), record)?;
        table.checkpoint(blobs)
    }

    fn begin_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        let record = self.record()?;
        let mut table = self.table.borrow_mut();
        table.put((), record)?;
        table.begin_checkpoint(blobs)
    }

    fn continue_checkpoint(&self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.table.borrow_mut().continue_checkpoint(blobs)
    }

    fn export(&self, visit: Visit<'_>) -> Result<()> {
        let mut encoded = Encoded::default();
        encoded.set(&(), &self.record()?)?;
        let Encoded { key, value } = &encoded;
        visit(Entry { hash: ().key_hash(), order: 0, key, value })
    }

    fn import(&self, entry: Entry<'_>) -> Result<()> {
        let ((), record) = Encoded::get::<(), Record>(entry.key, entry.value)?;
        self.join(record)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) {
        self.table.borrow_mut().checkpointed(outcome);
    }

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        Ok(self.table.borrow().stats())
    }
}
