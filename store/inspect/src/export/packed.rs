//! Lists of slices that an append log has packed: blocks of one entry in sorted runs.
//!
//! The catalog's directory has the slices. A record of a slice counts if it is not of an older run
//! than the slice, and no other record has a say in that. So runs are read one after the other, and
//! damage hides nothing but what it is in. Memory has 40 bytes of each slice.

use std::collections::BTreeMap;

use alluvium_layouts::stored_internals::{RecordView, slice_and_run_of};
use alluvium_pagestore::{Error, ErrorKind, Result};

use super::levels::MappedLevels;
use super::reader::DirectoryReader;
use crate::checkpoints::StateAt;

/// The slices of a state, by their start.
#[derive(Debug, Default)]
pub struct PackedSlices(BTreeMap<i64, PackedTotals>);

#[derive(Debug)]
struct PackedTotals {
    elements: u64,
    /// The first run that counts.
    since: u64,
    found: u64,
}

/// What is called with the slice and the payload of each record that counts, until it says that it
/// has enough.
pub type VisitPacked<'v> = &'v mut dyn FnMut(i64, &[u8]) -> Result<bool>;

impl PackedSlices {
    /// Adds a slice of so many elements, with the first run that counts.
    pub fn add(&mut self, start: i64, elements: u64, since: u64) {
        self.0.insert(start, PackedTotals { elements, since, found: 0 });
    }

    /// Shows the records of the state's runs that count.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] at the first damage, unless it is salvaged; at the end, if a slice has
    /// not all of its elements.
    pub fn for_each(
        &mut self,
        (reader, state): (&DirectoryReader<'_>, StateAt<'_>),
        visit: VisitPacked<'_>,
    ) -> Result<()> {
        let mut is_whole = true;
        for part in state.parts_of_runs() {
            let levels = MappedLevels::open(reader, state, &part.levels)?;
            for run in levels.runs() {
                let Some(records) = run.records(state) else {
                    is_whole = false;
                    continue;
                };
                for record in records {
                    match record {
                        Ok(record) => {
                            let Some(start) = self.counts(&record) else { continue };
                            if visit(start, record.payload)? {
                                return Ok(());
                            }
                        }
                        Err(error) => {
                            is_whole = false;
                            reader.pass_over(error, state, true)?;
                        }
                    }
                }
            }
        }
        // What damage hides was told.
        if is_whole { self.check(reader, state) } else { Ok(()) }
    }

    /// The slice of a record, if it counts.
    fn counts(&mut self, record: &RecordView<'_>) -> Option<i64> {
        let (start, run) = slice_and_run_of(record)?;
        let slice = self.0.get_mut(&start.0).filter(|slice| run >= slice.since)?;
        slice.found += u64::from(record.mark);
        Some(start.0)
    }

    fn check(&self, reader: &DirectoryReader<'_>, state: StateAt<'_>) -> Result<()> {
        let wrong = self.0.iter().find(|(_, slice)| slice.found != slice.elements);
        let Some((start, PackedTotals { elements, found, .. })) = wrong else { return Ok(()) };
        let what =
            format!("the packed slice {start} has {found} elements in runs, {elements} are told");
        reader.pass_over(Error::new(ErrorKind::Corrupt, what), state, true)
    }
}
