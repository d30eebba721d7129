//! A run in memory is read around its damage: what is shown is right and in order, what is missing is told where it
//! stands, and guides never say that a hash is absent that is there.

use std::ops::Range;

use alluvium_layouts::runs_internals::{RunInfo, WholeGuides, WholeRun, verify};
use alluvium_pagestore::io::Simulated;
use alluvium_pagestore::{ErrorKind, SegmentStore};

use crate::common::*;
use crate::dice::Dice;

/// A run of several partitions, its records and bytes.
fn sample(device: &Simulated, store: &SegmentStore) -> (RunInfo, Vec<Owned>, Vec<u8>) {
    let mut dice = Dice(11);
    let records = level(&mut dice, 900, 900, 64, 0);
    let sizes = alluvium_layouts::runs_internals::RunSizes { file_bytes: u64::MAX, ..small() };
    let info = write(store, sizes, &records).unwrap().remove(0);
    let bytes = device.bytes(&info.id.file_name()).unwrap();
    assert!(info.partitions > 2 && bytes.len() as u64 == info.bytes, "{info:?}");
    (info, records, bytes)
}

/// The records that are shown, and for each damage how many were shown before it.
fn read(info: &RunInfo, state: u64, bytes: &[u8]) -> (Vec<Owned>, Vec<usize>) {
    let (mut shown, mut damage) = (Vec::new(), Vec::new());
    for found in WholeRun::open(info, state, bytes) {
        match found {
            Ok(record) => shown.push(Owned::of(&record)),
            Err(error) => {
                assert_eq!(error.context("file"), Some(info.id.file_name().as_str()), "{error:?}");
                damage.push(shown.len());
            }
        }
    }
    (shown, damage)
}

/// Checks that what is missing of the records stands where damage is told, and says how many these are.
fn check(records: &[Owned], (shown, damage): (Vec<Owned>, Vec<usize>)) -> usize {
    let mut missing = 0;
    let mut rest = records.iter();
    for (nth, one) in shown.iter().enumerate() {
        let passed = rest.position(|record| record == one).expect("it is a record, in order");
        assert!(passed == 0 || damage.contains(&nth), "{passed} lost in silence before {nth}");
        missing += passed;
    }
    let left = rest.count();
    assert!(left == 0 || damage.contains(&shown.len()), "{left} lost in silence at the end");
    missing + left
}

#[test]
fn each_bit_that_is_flipped_hides_a_chunk_at_most() {
    let device = device(1);
    let (info, records, mut bytes) = sample(&device, &store(&device));
    assert_eq!(check(&records, read(&info, STATE, &bytes)), 0);
    let longest = info.longest_chunk as usize / 4096 * 128;
    let (mut dice, mut hiding, mut told) = (Dice(3), 0, 0);
    for _ in 0..6000 {
        let (at, bit) = (dice.below(info.bytes) as usize, dice.below(8));
        bytes[at] ^= 1 << bit;
        let found = read(&info, STATE, &bytes);
        told += usize::from(!found.1.is_empty());
        let missing = check(&records, found);
        assert!(missing <= longest, "{missing} for a bit at {at}");
        hiding += usize::from(missing > 0);
        if let Some(mut guides) = WholeGuides::open(&info, &bytes) {
            let step = 1 + dice.below(20) as usize;
            for record in records.iter().step_by(step) {
                assert!(guides.may_have(record.hash), "{at}: {record:?}");
            }
        }
        bytes[at] ^= 1 << bit;
    }
    assert!(hiding > 1000 && told > hiding, "{hiding} {told}");
    let mut guides = WholeGuides::open(&info, &bytes).unwrap();
    let absent = (0..2000).filter(|_| guides.may_have(dice.below(u64::MAX))).count();
    assert!(absent < 60, "{absent}");
}

#[test]
fn stretches_of_damage_and_short_files_hide_what_they_have() {
    let device = device(2);
    let (info, records, bytes) = sample(&device, &store(&device));
    let mut dice = Dice(4);
    for _ in 0..200 {
        let mut damaged = bytes.clone();
        let from = dice.below(info.bytes) as usize;
        let to = bytes.len().min(from + dice.below(40_000) as usize);
        match dice.below(3) {
            0 => damaged[from..to].fill(0),
            1 => damaged[from..to].iter_mut().for_each(|byte| *byte = byte.wrapping_add(77)),
            _ => damaged.truncate(from),
        }
        check(&records, read(&info, STATE, &damaged));
    }
    assert_eq!(check(&records, read(&info, STATE, &[])), records.len());
}

#[test]
fn nothing_is_shown_of_another_run() {
    let device = device(3);
    let store = store(&device);
    let (info, records, bytes) = sample(&device, &store);
    let other = write(&store, small(), &level(&mut Dice(9), 900, 900, 64, 0)).unwrap().remove(0);
    let of_other = device.bytes(&other.id.file_name()).unwrap();
    for (info, state, bytes) in [
        (&RunInfo { digest: info.digest ^ 1, ..info.clone() }, STATE, &bytes),
        (&info, STATE + 1, &bytes),
        (&info, STATE, &of_other),
        (&RunInfo { id: info.id, ..other.clone() }, STATE, &of_other),
    ] {
        let (shown, damage) = read(info, state, bytes);
        assert!(shown.is_empty() && !damage.is_empty(), "{damage:?}");
    }
    assert_eq!(read(&info, STATE, &bytes).0, records);
}

/// The guides of a run: where their bytes stand.
fn guides(info: &RunInfo, bytes: &[u8]) -> Vec<Range<usize>> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let directory = info.partitions as usize * 48 + 64;
    let start = bytes.len() - directory.next_multiple_of(4096);
    let entries = (0..info.partitions as usize).map(|nth| start + nth * 48);
    let guide = |at| (word(at + 16) + word(at + 20)) * 4096..word(at + 24);
    entries.map(guide).map(|at| at.start..at.start + at.end).collect()
}

/// Gives a guide that was changed the checksum of what it is now.
fn seal(info: &RunInfo, at: &Range<usize>, bytes: &mut [u8]) {
    let place = crc32c::crc32c(&info.id.0.to_le_bytes());
    let place = crc32c::crc32c_append(place, &(at.start as u64).to_le_bytes());
    let crc = crc32c::crc32c_append(place, &bytes[at.start + 4..at.end]);
    bytes[at.start..at.start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A filter that says no to a key that is there is silent loss: no checksum knows, only a look-up of each record.
#[test]
fn verify_tells_of_a_filter_that_is_wrong_under_a_right_checksum() {
    let device = device(5);
    let store = store(&device);
    let (info, records, bytes) = sample(&device, &store);
    let name = info.id.file_name();
    verify(&store, &info).unwrap();
    let mut told = 0;
    for guide in guides(&info, &bytes) {
        // The filter is at the end, the header at the beginning.
        let from = (guide.start + 48).max(guide.end.saturating_sub(250));
        for at in (from..guide.end).step_by(9) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            seal(&info, &guide, &mut changed);
            device.place(&name, &changed);
            let mut guides = WholeGuides::open(&info, &changed).unwrap();
            let misses = records.iter().any(|record| !guides.may_have(record.hash));
            let verified = verify(&store, &info);
            // A fence that is wrong is told, too.
            assert!(verified.is_err() || !misses, "{at}");
            if let Err(error) = verified {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains("does not lead to a record"), "{error}");
                told += 1;
            }
            // No guide has a say in what is salvaged.
            assert_eq!(read(&info, STATE, &changed).0, records);
        }
    }
    assert!(told > 20, "{told}");
    device.place(&name, &bytes);
    verify(&store, &info).unwrap();
}
