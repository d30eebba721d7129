//! Makes the fixtures of today's format. Run by hand; see the [crate](crate).

use std::collections::BTreeMap;
use std::path::Path;

use alluvium::{HybridLog, KIB, Store};

use crate::builder;
use crate::dice::Dice;
use crate::files::{folder, pack, read_directory};
use crate::moved::{self, Worker};
use crate::states::{self, Lines, States};

/// The checkpoints of the store with a state of every kind: format, number, and how far time was.
pub const EVERYTHING: [(&str, u64, i64); 6] = [
    ("format-2", 1, 168),
    ("format-2", 2, 251),
    ("format-2", 3, 255),
    ("format-5", 1, 168),
    ("format-5", 2, 251),
    ("format-5", 3, 255),
];
/// A version that no build of today reads.
pub const FUTURE: u32 = 99;

pub fn keep(name: &str, files: &BTreeMap<String, Vec<u8>>) {
    let packed = pack(files);
    println!("{name}: {} files, {} bytes", files.len(), packed.len());
    std::fs::write(folder().join(name).with_extension("files"), packed).unwrap();
}

pub fn tell(name: &str, lines: &Lines) {
    println!("{name}: {} lines", lines.len());
    std::fs::write(folder().join(name).with_extension("txt"), lines.join("\n") + "\n").unwrap();
}

/// Changes up to a checkpoint: many, of which many die again, then few. What dies before the second one is more than
/// half of a map: that one makes sets of live records.
fn play(states: &mut States, dice: &mut Dice, checkpoint: u64) -> Lines {
    let counts = [900, 500, 40];
    if checkpoint == 1 {
        states.fill().unwrap();
        states.put_more(0..450, 1).unwrap();
    }
    if checkpoint == 2 {
        states.put_more(0..270, 2).unwrap();
    }
    states.changes(dice, counts[checkpoint as usize - 1]).unwrap()
}

#[test]
#[ignore = "makes fixtures, which are kept as they are"]
fn makes_the_fixtures() {
    std::fs::create_dir_all(folder()).unwrap();
    let made = std::fs::read_dir(folder()).unwrap().next().is_some();
    assert!(!made, "fixtures of this format are there: they stay as they are");
    everything();
    moved_groups();
    future();
}

fn everything() {
    let directory = tempfile::tempdir().unwrap();
    let open = || States::open(states::builder(builder(directory.path())), false).unwrap();
    let (mut states, mut dice) = (open(), Dice(24));
    let on_heap = || {
        let builder = states::builder(Store::in_memory());
        States::open(builder, true).unwrap()
    };
    for number in 1..=3 {
        let told = play(&mut states, &mut dice, number);
        assert_eq!(states.store.checkpoint(10 * number).unwrap().number, number);
        let (mut other, mut same) = (on_heap(), Dice(24));
        let all = (1..=number).map(|number| play(&mut other, &mut same, number));
        assert_eq!(all.last().unwrap(), told, "what comes out meanwhile");
        assert_eq!(states.now, other.now);
        println!("checkpoint {number} at {}", states.now);
        tell(&format!("everything-{number}"), &other.lines().unwrap());
    }
    let mut exported = Vec::new();
    states.store.export(&mut exported).unwrap();
    keep("canonical", &BTreeMap::from([("canonical".to_owned(), exported)]));
    drop(states);
    // Removes what no checkpoint names.
    drop(open());
    keep("everything", &read_directory(directory.path()));
}

fn moved_groups() {
    let directories = [(); moved::WORKERS].map(|()| tempfile::tempdir().unwrap());
    let open = |at: usize| {
        Worker::open(moved::builder(builder(directories[at].path()), Some(at)), false).unwrap()
    };
    let mut workers: Vec<_> = (0..moved::WORKERS).map(open).collect();
    let alone = Worker::open(moved::builder(Store::in_memory(), None), true).unwrap();
    let (mut alone, mut dice, mut same) = (vec![alone], Dice(25), Dice(25));
    let mut go_on = |workers: &mut Vec<Worker>, now: i64, count: u64| {
        moved::changes(workers, now, &mut dice, count).unwrap();
        moved::changes(&mut alone, now, &mut same, count).unwrap();
        moved::advance(workers, now + 30).unwrap();
        moved::advance(&mut alone, now + 30).unwrap();
    };
    go_on(&mut workers, 0, 600);
    moved::bring(&workers, 1, 0, 1, false).unwrap();
    moved::bring(&workers, 6, 1, 0, false).unwrap();
    go_on(&mut workers, 30, 200);
    checkpoint(&workers, 1);
    go_on(&mut workers, 60, 200);
    moved::bring(&workers, 2, 0, 1, true).unwrap();
    checkpoint(&workers, 2);
    tell("moved", &moved::lines(&mut alone).unwrap());
    drop(workers);
    for (at, directory) in directories.iter().enumerate() {
        drop(open(at));
        keep(&format!("moved-{at}"), &read_directory(directory.path()));
    }
}

fn checkpoint(workers: &[Worker], position: u64) {
    for worker in workers {
        worker.store.checkpoint(position).unwrap();
    }
}

/// Gives the header of a manifest or checkpoint another version.
fn of_the_future(bytes: &mut [u8]) {
    bytes[8..12].copy_from_slice(&FUTURE.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// The same for a segment.
fn segment_of_the_future(bytes: &mut [u8]) {
    bytes[8..12].copy_from_slice(&FUTURE.to_le_bytes());
    let place = [&bytes[16..24], &0u64.to_le_bytes()].concat();
    let crc = crc32c::crc32c_append(crc32c::crc32c(&place), &bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
}

fn future() {
    let directory = tempfile::tempdir().unwrap();
    write_one_map(directory.path());
    let files = read_directory(directory.path());
    for (kind, change) in [
        ("manifest", of_the_future as fn(&mut [u8])),
        ("checkpoint", of_the_future),
        ("segment", segment_of_the_future),
    ] {
        let mut files = files.clone();
        let prefix = if kind == "segment" { "seg-" } else { kind };
        let is_it = |name: &&String| name.to_lowercase().starts_with(prefix);
        let name = files.keys().find(is_it).unwrap().clone();
        change(files.get_mut(&name).unwrap());
        keep(&format!("future-{kind}"), &files);
    }
}

fn write_one_map(directory: &Path) {
    let store = builder(directory).open().unwrap();
    let log = HybridLog::new().memory(112 * KIB);
    let mut map = store.map::<u64, u64>("map").layout(log).open().unwrap();
    for key in 0..10 {
        map.put(key, 7 * key).unwrap();
    }
    store.checkpoint(1).unwrap();
}
