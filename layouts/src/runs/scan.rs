//! Showing the records of a range of hashes, from all levels at once.

use std::ops::RangeInclusive;

use alluvium_pagestore::{Error, ErrorKind, Result, RunInfo, SegmentStore};

use super::chunk::RecordView;
use super::cursor::{ChainPlace, RunChain};
use super::levels::Levels;
use super::merge::{EqualRecords, GROUP_RECORDS, first_of};

impl Levels {
    /// Bytes that a scan takes which reads so many at once from each level.
    pub fn scan_bytes(&self, read_bytes: usize) -> u64 {
        scan_bytes(&self.infos(), read_bytes)
    }

    /// [`scan`] of these.
    ///
    /// # Errors
    /// Those of [`scan`].
    pub fn scan(
        &self,
        hashes: &RangeInclusive<u64>,
        read_bytes: usize,
        visit: &mut dyn FnMut(&[RecordView<'_>]) -> Result<bool>,
    ) -> Result<()> {
        scan((self.store(), &self.infos()), hashes, read_bytes, visit)
    }
}

/// Bytes that a scan of levels takes which reads so many at once from each.
pub fn scan_bytes(levels: &[Vec<RunInfo>], read_bytes: usize) -> u64 {
    let chains = levels.iter().map(|runs| RunChain::memory_bytes(runs, read_bytes));
    chains.sum::<u64>() + EqualRecords::memory_bytes(group_bytes(levels), group_records(levels))
}

/// The longest record of each level has room at once.
fn group_bytes(levels: &[Vec<RunInfo>]) -> usize {
    let longest = |runs: &Vec<RunInfo>| runs.iter().map(|run| run.longest_chunk as usize).max();
    levels.iter().filter_map(longest).sum()
}

fn group_records(levels: &[Vec<RunInfo>]) -> usize {
    GROUP_RECORDS * levels.len()
}

/// Shows records of levels, the newest first, whose hashes are of a range: all of one hash and order at once, the newest
/// first, until `visit` says that it is enough. Takes [`scan_bytes`], which the caller has booked, and waits for the
/// device.
///
/// # Errors
/// Those of the device and of `visit`; [`ErrorKind::OverBudget`] if the records of one hash and order are longer than
/// the longest of each level, or more than 64 for each.
pub fn scan(
    (store, levels): (&SegmentStore, &[Vec<RunInfo>]),
    hashes: &RangeInclusive<u64>,
    read_bytes: usize,
    visit: &mut dyn FnMut(&[RecordView<'_>]) -> Result<bool>,
) -> Result<()> {
    scan_from((store, levels), None, hashes, read_bytes, &mut |group, _| visit(group))
}

/// Where a scan is, in each level.
pub type ScanPositions = Vec<ChainPlace>;
/// Looks at records of one hash and order, and may ask where those come that follow; says whether it goes on.
type VisitGroup<'v> =
    &'v mut dyn FnMut(&[RecordView<'_>], &dyn Fn() -> ScanPositions) -> Result<bool>;

/// [`scan`] that begins where another one of the same levels was, if that is told.
///
/// # Errors
/// Those of [`scan`].
pub fn scan_from(
    (store, levels): (&SegmentStore, &[Vec<RunInfo>]),
    from: Option<&ScanPositions>,
    hashes: &RangeInclusive<u64>,
    read_bytes: usize,
    visit: VisitGroup<'_>,
) -> Result<()> {
    let at_once = (read_bytes, false);
    let open = |(nth, runs): (usize, &Vec<RunInfo>)| match from {
        None => RunChain::open_at(store, runs, at_once, *hashes.start()),
        Some(places) => RunChain::open_at_place(store, runs, at_once, places[nth]),
    };
    let mut sources: Vec<RunChain> = levels.iter().enumerate().map(open).collect::<Result<_>>()?;
    let mut group = EqualRecords::new(group_bytes(levels), group_records(levels));
    while let Some(first) = first_of(&sources) {
        let record = sources[first].peek().expect("it has the first record");
        if !hashes.contains(&record.hash) {
            break;
        }
        group.begin(&record);
        for source in &mut sources[first..] {
            take_equal(source, &mut group)?;
        }
        let places = || {
            let all = sources.iter().zip(levels);
            let of = |source: &RunChain| source.hash().is_some_and(|hash| hashes.contains(&hash));
            let place = |(source, runs): (&RunChain, &Vec<RunInfo>)| match of(source) {
                true => source.place(runs.len()),
                false => ChainPlace::END,
            };
            all.map(place).collect()
        };
        if !visit(&group.all(), &places)? {
            break;
        }
    }
    Ok(())
}

/// Moves the records of the group from a source to it.
fn take_equal(source: &mut RunChain, group: &mut EqualRecords) -> Result<()> {
    while let Some(record) = source.peek().filter(|record| group.has_key_of(record)) {
        if !group.take(&record) {
            let message = "the records of one hash in runs do not fit the scratch of a scan";
            return Err(Error::new(ErrorKind::OverBudget, message));
        }
        source.advance()?;
    }
    Ok(())
}
