//! What the store keeps for a segment is as much as `SegmentInfo::NAMED_BYTES` tells: its open file, the pin of a
//! checkpoint, and what that says of it. Which of it is booked is in `docs/design/checkpoints.md`.
//!
//! What this catches: a name, a handle or an entry of a checkpoint that takes more memory for each file.

use alluvium::Time;
use alluvium::io::{DirectIo, EngineChoice, IoOptions, open_device};
use alluvium_pagestore::{SegmentId, SegmentImage, SegmentInfo, SegmentStore};

use crate::counting::{alone, held_here};

const FILES: u64 = 200;
/// Names that memory is taken for ahead, and what opening a directory leaves.
const BESIDE_BYTES: isize = 4 << 10;

fn create(store: &SegmentStore) -> SegmentInfo {
    let id = store.next_id();
    let file = store.device().create(&id.file_name()).unwrap();
    let (bytes, records, max_record_bytes) = (4096, 1, 64);
    let (digest, latest, sealed) = (7, Time::MAX, true);
    SegmentInfo { id, file, bytes, records, max_record_bytes, digest, latest, sealed }
}

#[test]
fn a_segment_takes_no_more_than_is_told() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let options = IoOptions {
        engine: EngineChoice::Threads,
        threads: 1,
        direct: DirectIo::Off,
        open_files_max: Some(FILES as usize),
        ..IoOptions::default()
    };
    let store = SegmentStore::new(open_device(place.path(), &options).unwrap(), 1);
    let (mut segments, mut images) = (Vec::with_capacity(200), Vec::<SegmentImage>::new());
    let before = held_here();
    for _ in 0..FILES {
        segments.push(create(&store));
    }
    store.pin(segments.iter().map(|segment| segment.id.name()));
    images.extend(segments.iter().map(SegmentInfo::all_live));
    let (held, told) = (held_here() - before, (FILES * SegmentInfo::NAMED_BYTES) as isize);
    println!("{held} bytes are held for {FILES} files, {told} told");
    assert!(held <= told + BESIDE_BYTES, "{held} bytes are held, {told} told");
    // It is an upper bound that is not far from that.
    assert!(2 * held > told, "{held} bytes are held, {told} told");
    // All of it goes with the files.
    store.unpin(segments.iter().map(|segment| segment.id.name()));
    drop(images);
    let ids: Vec<SegmentId> = segments.iter().map(|segment| segment.id).collect();
    segments.clear();
    ids.into_iter().for_each(|id| store.remove(id).unwrap());
    let left = held_here() - before;
    assert!(left <= BESIDE_BYTES, "{left} bytes are left");
    drop(segments);
}
