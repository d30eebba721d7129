//! The catalog of a checkpoint, written a record at a time.
//!
//! Slices in order of time, each with its runs and their images; then the groups of tables, each with
//! its tables in the order in which they are written; then the end.

use std::rc::Rc;

use alluvium_pagestore::{Result, Time};

use super::checkpoint::{END, IMAGES_PER_RECORD, OF_GROUP, OF_IMAGES, OF_RUN, OF_SLICE, OF_TABLE};
use super::run::ImageAt;
use super::slice_checkpoint::SliceBefore;
use super::tables::TableGroup;
use crate::checkpoint::{BatchWriter, GivenBatches};

/// What of the catalog comes next.
#[derive(Clone, Copy, Debug, Default)]
pub struct CatalogPosition {
    slice: usize,
    run: usize,
    image: usize,
    /// Segments of the runs that were written.
    segments: u64,
    group: usize,
    table: usize,
}

impl CatalogPosition {
    /// Fills the batch, and has it written.
    pub fn write_batch(
        &mut self,
        (slices, groups): (&[SliceBefore], &[Rc<TableGroup>]),
        own: &mut BatchWriter,
    ) -> Result<GivenBatches> {
        while own.has_room() {
            if let Some(before) = slices.get(self.slice) {
                self.write_slice(before, own)?;
            } else if let Some(group) = groups.get(self.group) {
                self.write_group(group, slices, own)?;
            } else {
                let tables: usize = groups.iter().map(|group| group.segments.len()).sum();
                // The last record is alone in its segment if the one before is full, but there.
                own.push(0, &(END, Time::MAX), &vec![self.segments, tables as u64])?;
                return Ok(GivenBatches::All);
            }
        }
        own.submit();
        Ok(GivenBatches::Some)
    }

    fn write_slice(&mut self, before: &SliceBefore, own: &mut BatchWriter) -> Result<()> {
        let time = before.table.slice;
        if (self.run, self.image) == (0, 0) {
            let mut numbers = vec![before.table.entries, before.table.cuts, before.next_number];
            numbers.extend(before.gaps.iter().flat_map(|g| [g.first, g.last, g.before]));
            own.push(0, &(OF_SLICE, time), &numbers)?;
        }
        let Some(found) = before.runs.get(self.run) else {
            (self.slice, self.run, self.image) = (self.slice + 1, 0, 0);
            return Ok(());
        };
        if self.image == 0 {
            let files = found.segments.len() as u64;
            let numbers =
                vec![found.number, found.level.into(), found.records, self.segments, files];
            own.push(0, &(OF_RUN, time), &numbers)?;
            self.segments += files;
        }
        let end = found.images.len().min(self.image + IMAGES_PER_RECORD);
        let of_image = |image: &ImageAt| {
            let blocks = u64::from(image.block) << 32 | u64::from(image.blocks);
            [image.first, image.segment.into(), blocks]
        };
        let numbers: Vec<u64> = found.images[self.image..end].iter().flat_map(of_image).collect();
        if !numbers.is_empty() {
            own.push(0, &(OF_IMAGES, time), &numbers)?;
        }
        self.image = end;
        if end == found.images.len() {
            (self.run, self.image) = (self.run + 1, 0);
            if self.run == before.runs.len() {
                (self.slice, self.run) = (self.slice + 1, 0);
            }
        }
        Ok(())
    }

    fn write_group(
        &mut self,
        group: &TableGroup,
        slices: &[SliceBefore],
        own: &mut BatchWriter,
    ) -> Result<()> {
        if self.table == 0 {
            own.push(0, &(OF_GROUP, Time(0)), &vec![group.segments.len() as u64])?;
        }
        if let Some(table) = group.tables.get(self.table) {
            let of = slices.binary_search_by_key(&table.slice, |before| before.table.slice);
            let is_live = of.is_ok_and(|of| slices[of].group == group.number);
            let numbers = vec![table.entries, table.cuts, is_live.into()];
            own.push(0, &(OF_TABLE, table.slice), &numbers)?;
            self.table += 1;
        }
        if self.table == group.tables.len() {
            (self.group, self.table) = (self.group + 1, 0);
        }
        Ok(())
    }
}
