//! Lists of dead records and sets of live ones: any bytes are read or refused, and what was written
//! is read back; nothing panics.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{
    BlobReader, BlobWriter, Death, GRAIN_BYTES, ImagePart, LiveSet, Liveness, RECORDS, SegmentId,
    SegmentImage,
};
use libfuzzer_sys::fuzz_target;

/// Records of a segment, each of one grain.
const COUNT: u64 = 64;

fn segment(id: u64) -> SegmentImage {
    SegmentImage {
        id: SegmentId(id),
        bytes: COUNT * GRAIN_BYTES,
        records: COUNT,
        max_record_bytes: GRAIN_BYTES,
        live_records: COUNT,
        digest: None,
        latest: None,
        live: None,
    }
}

fuzz_target!(|input: (Vec<Vec<u8>>, Option<Vec<u8>>, u64, Vec<(u8, u8)>)| {
    let (lists, set, live_records, deaths) = input;
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let blobs = BlobWriter::new(device.clone(), 1, 4096);
    let reader = BlobReader::new(device);

    // Whatever the bytes are.
    let live = set.map(|set| blobs.append(&set).unwrap());
    let deaths_of = lists.iter().map(|list| blobs.append(list).unwrap()).collect();
    let segments = vec![SegmentImage { live, live_records, ..segment(1) }, segment(2)];
    let part = ImagePart::new(RECORDS, segments, deaths_of);
    if let Ok(liveness) = Liveness::load(&part, Some(&reader)) {
        for segment in &part.segments {
            if let Ok(Some(set)) = liveness.of(segment) {
                assert!(set.len() >= segment.live_records.min(COUNT), "{segment:?}");
            }
        }
    }

    // What was written is read: the dead of two lists, of segments that are named and one that is
    // not, some twice; segment 1 goes on from a set.
    let mut dead: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut written = Vec::new();
    for half in deaths.chunks(deaths.len() / 2 + 1) {
        let one = |(id, grain): &(u8, u8)| (u64::from(id % 3) + 1, u32::from(*grain) % 64);
        dead.entry(1).or_default();
        for (id, grain) in half.iter().map(one) {
            dead.entry(id).or_default().insert(grain);
        }
        let mut half: Vec<Death> =
            half.iter().map(one).map(|(id, grain)| Death::of(SegmentId(id), grain)).collect();
        written.extend(Death::write(&mut half, |id| id.0 != 3, &blobs).unwrap());
    }
    let mut base = LiveSet::new(COUNT * GRAIN_BYTES);
    for grain in (0..COUNT as u32).filter(|grain| grain % 5 != 0) {
        base.insert(grain);
    }
    let expected = |id: u64, grain: u32| {
        (id != 1 || grain % 5 != 0) && !dead.get(&id).is_some_and(|dead| dead.contains(&grain))
    };
    let live_of = |id| (0..COUNT as u32).filter(|grain| expected(id, *grain)).count() as u64;
    let segments = vec![
        SegmentImage {
            live: Some(base.write(&blobs).unwrap()),
            live_records: live_of(1),
            ..segment(1)
        },
        SegmentImage { live_records: live_of(2), ..segment(2) },
    ];
    let part = ImagePart::new(RECORDS, segments, written);
    let liveness = Liveness::load(&part, Some(&reader)).unwrap();
    for segment in &part.segments {
        let set = liveness.of(segment).unwrap();
        for grain in 0..COUNT as u32 {
            let lives = set.as_ref().is_none_or(|set| set.contains(grain));
            assert_eq!(lives, expected(segment.id.0, grain), "{:?}, grain {grain}", segment.id);
        }
    }
});
