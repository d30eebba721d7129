//! Room for entries that are loaded at once.

use std::cell::Cell;
use std::rc::Rc;

use crate::support::booked::Booked;

/// Room for entries of [`Table::load_batch`](crate::Table::load_batch). Their memory is booked as long as it is there.
#[derive(Debug)]
pub struct LoadRoom {
    entries: usize,
    memory: Booked,
    /// What the table knows of its bytes.
    told: Rc<Cell<u64>>,
}

impl LoadRoom {
    /// Room for so many entries, whose memory is booked.
    pub(crate) fn new(entries: usize, memory: Booked, told: Rc<Cell<u64>>) -> Self {
        told.set(memory.bytes());
        Self { entries, memory, told }
    }

    /// Returns how many entries there is room for.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Gives memory back until it has so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        self.memory.give_some_back(self.memory.bytes().saturating_sub(bytes));
        self.told.set(self.memory.bytes());
    }
}

impl Drop for LoadRoom {
    fn drop(&mut self) {
        self.told.set(0);
    }
}
