//! How far windowed state has come: part of every checkpoint.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use alluvium_layouts::{
    CheckpointOutcome, Heap, HeapTable, Layout, StateContext, Table, TableStats,
};
use alluvium_pagestore::{BlobWriter, Error, ErrorKind, Result, StateImage, Time};

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
            table: RefCell::new(table),
        }))
    }
}

impl Hooks for ProgressCell {
    fn poisoned(&self) -> bool {
        false
    }

    fn checkpoint(&self, blobs: &mut BlobWriter) -> Result<StateImage> {
        if self.busy.get() {
            let message = "windows are being fired; advance until that is done, then checkpoint";
            return Err(Error::new(ErrorKind::InUse, message).with("state", &self.name));
        }
        let fired = self.fired.get().map(super::clipped);
        let mut table = self.table.borrow_mut();
        table.put((), (self.watermark.get(), self.settled.get(), fired))?;
        table.checkpoint(blobs)
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
