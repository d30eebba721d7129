//! Any bit of a run may be wrong: what is shown is right, or an error names the file.

use alluvium_layouts::runs_internals::{RunInfo, RunSizes, SortedRun, SortedRunCursor, verify};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{ErrorKind, Result, SegmentStore};

use crate::common::*;
use crate::dice::Dice;

/// Reads all there is in each way. Gives the errors.
fn read_all(
    store: &SegmentStore,
    info: &RunInfo,
    records: &[Owned],
) -> Vec<alluvium_pagestore::Error> {
    let mut errors = Vec::new();
    errors.extend(verify(store, info).err());
    errors.extend(walk(store, info, records).err());
    let account = account();
    let mut run = match SortedRun::open(store.clone(), info.clone(), &account) {
        Ok(run) => run,
        Err(error) => {
            errors.push(error);
            return errors;
        }
    };
    for record in records.iter().step_by(3) {
        match find(std::slice::from_mut(&mut run), record.hash) {
            Ok(found) => assert!(found.contains(record), "{record:?} is lost"),
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// All records of a run.
fn all(store: &SegmentStore, info: &RunInfo) -> Vec<Owned> {
    let mut cursor = SortedRunCursor::open(store.clone(), info, 8 << 10).unwrap();
    let mut records = Vec::new();
    while let Some(record) = cursor.peek() {
        records.push(Owned::of(&record));
        cursor.advance().unwrap();
    }
    records
}

fn walk(store: &SegmentStore, info: &RunInfo, records: &[Owned]) -> Result<()> {
    let mut cursor = SortedRunCursor::open(store.clone(), info, 8 << 10)?;
    let mut nth = 0;
    while let Some(record) = cursor.peek() {
        assert_eq!(Owned::of(&record), records[nth]);
        nth += 1;
        cursor.advance()?;
    }
    assert_eq!(nth, records.len());
    Ok(())
}

#[test]
fn each_bit_that_is_flipped_is_told_or_means_nothing() {
    let mut dice = Dice(1);
    let device = device(1);
    let store = store(&device);
    let records = level(&mut dice, 400, 400, 64, 0);
    let sizes = RunSizes { file_bytes: u64::MAX, groups_each: 8, ..small() };
    let infos = write(&store, sizes, &records).unwrap();
    let [info] = &infos[..] else { panic!("{infos:?}") };
    assert!(read_all(&store, info, &records).is_empty());
    let name = info.id.file_name();
    let (mut told, mut blocks_told) = (0, std::collections::BTreeSet::new());
    for _ in 0..1500 {
        let (offset, bit) = (dice.below(info.bytes), dice.below(8) as u32);
        device.corrupt(&name, offset, bit).unwrap();
        let errors = read_all(&store, info, &records);
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert_eq!(error.context("file"), Some(name.as_str()), "{error:?}");
        }
        if !errors.is_empty() {
            told += 1;
            blocks_told.insert(offset / 4096);
        }
        device.corrupt(&name, offset, bit).unwrap();
    }
    println!("{told} of 1500 flipped bits were told, in {} blocks", blocks_told.len());
    assert!(told > 1000, "{told}");
    assert!(read_all(&store, info, &records).is_empty());
}

#[test]
fn a_run_that_is_cut_short_or_is_another_is_refused() {
    let device = device(2);
    let store = store(&device);
    let mut dice = Dice(2);
    let sizes = RunSizes { file_bytes: u64::MAX, ..small() };
    let mut runs =
        [0, 1].map(|_| write(&store, sizes, &level(&mut dice, 300, 300, 64, 0)).unwrap());
    let (one, other) = (runs[0].remove(0), runs[1].remove(0));
    let account = account();
    let open = |info: &RunInfo| SortedRun::open(store.clone(), info.clone(), &account).map(|_| ());
    // A file of the other one's name.
    let bytes = device.bytes(&one.id.file_name()).unwrap();
    device.place(&other.id.file_name(), &bytes);
    assert_eq!(open(&other).unwrap_err().kind(), ErrorKind::Corrupt);
    let as_other = RunInfo { id: other.id, ..one.clone() };
    assert_eq!(open(&as_other).unwrap_err().kind(), ErrorKind::Corrupt);
    // A run of the same id, of another history.
    let changed = RunInfo { digest: one.digest ^ 1, ..one.clone() };
    let error = open(&changed).unwrap_err();
    assert!(error.to_string().contains("another one than"), "{error}");
    device.truncate(&one.id.file_name(), one.bytes - 4096).unwrap();
    assert!(open(&one).is_err());
    device.remove(&one.id.file_name()).unwrap();
    assert_eq!(open(&one).unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn a_merge_does_not_copy_what_is_damaged() {
    let device = device(3);
    let store = store(&device);
    let mut dice = Dice(3);
    let sizes = RunSizes { file_bytes: u64::MAX, ..small() };
    let records = [0, 1].map(|_| level(&mut dice, 300, 300, 64, 0));
    let levels = [0, 1].map(|nth: usize| write(&store, sizes, &records[nth]).unwrap());
    let wanted = expected(&records, true);
    let files = device.list().unwrap().len();
    let info = &levels[1][0];
    let mut refused = 0;
    for block in 0..info.bytes / 4096 {
        let (name, offset) = (info.id.file_name(), block * 4096 + dice.below(1024));
        device.corrupt(&name, offset, 3).unwrap();
        match merge(&store, sizes, &levels, true, 10_000) {
            Err(error) => {
                assert_eq!(error.context("file"), Some(name.as_str()));
                refused += 1;
            }
            // What is wrong is nothing that it copies.
            Ok(merged) => {
                let shown: Vec<Owned> = merged.iter().flat_map(|info| all(&store, info)).collect();
                assert!(shown == wanted, "block {block}: {} of {}", shown.len(), wanted.len());
                merged.iter().for_each(|info| device.remove(&info.id.file_name()).unwrap());
            }
        }
        assert_eq!(device.list().unwrap().len(), files, "nothing is left over");
        device.corrupt(&name, offset, 3).unwrap();
    }
    // Guides are not read by a merge, nor is the header.
    assert!(refused * 2 > info.bytes / 4096, "{refused}");
}
