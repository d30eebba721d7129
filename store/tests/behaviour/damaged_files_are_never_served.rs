//! Every byte of every file of a checkpointed store is damaged, one at a time; files are cut,
//! zeroed, overwritten, exchanged and lost. What is read is right, or the error says that the file
//! is damaged (or of a format this build does not read) and which file it is; nothing panics.
//!
//! By default one bit of each byte that is not zero, and of every 16th that is (mostly padding);
//! `ALLUVIUM_LONG=1` takes all bytes.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::Dice;
use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::{AnyLayout, Error, ErrorKind, Heap, KIB, Map, Store, Time};

type Plain = BTreeMap<u64, u64>;
type Owning = BTreeMap<String, Vec<String>>;

/// A checkpointed store and what is in it.
struct Sample {
    device: Simulated,
    layout: AnyLayout,
    plain: Plain,
    owning: Owning,
    timers: Vec<(Time, u64)>,
}

const MEMORY: u64 = 512 * KIB;

fn open(device: &Simulated, layout: &AnyLayout) -> Result<Store, Error> {
    common::open_on(Arc::new(device.clone()), layout.clone(), MEMORY)
}

fn sample(layout: AnyLayout) -> Sample {
    let device = Simulated::new(1, Faults::none());
    let store = open(&device, &layout).unwrap();
    let (mut plain, mut owning) = (Plain::new(), Owning::new());
    let mut map: Map<u64, u64> = store.map("plain").open().unwrap();
    let mut texts: Map<String, Vec<String>> = store.map("owning").open().unwrap();
    let mut timers = store.timers::<u64>("timers").unwrap();
    for round in 1..=2 {
        for key in 0..30 {
            map.put(key * round, key + 7).unwrap();
            plain.insert(key * round, key + 7);
            let (key, text) =
                (format!("key {key}"), vec![format!("text {round}"); key as usize % 4]);
            texts.put(key.clone(), text.clone()).unwrap();
            owning.insert(key, text);
        }
        map.remove(&round).unwrap();
        plain.remove(&round);
        store.checkpoint(round).unwrap();
    }
    timers.set(5, Time(5)).unwrap();
    timers.set(9, Time(3)).unwrap();
    store.checkpoint(3).unwrap();
    drop((store, map, texts, timers));
    // Removes what no checkpoint names.
    drop(open(&device, &layout).unwrap());
    device.sync_directory().unwrap();
    let timers = vec![(Time(3), 9), (Time(5), 5)];
    Sample { device: device.crash(CrashPolicy::Nothing), layout, plain, owning, timers }
}

fn samples() -> [Sample; 2] {
    [sample(Heap::new().into()), sample(common::tiny().into())]
}

#[derive(Default, Debug)]
struct Seen {
    refused: u64,
    harmless: u64,
}

impl Sample {
    fn files(&self) -> Vec<String> {
        let mut files = self.device.list().unwrap();
        files.sort();
        // A checkpoint of heap states has no sets of live records.
        files.retain(|file| !self.bytes(file).is_empty());
        assert!(files.iter().any(|f| f == "MANIFEST") && files.len() >= 3, "{files:?}");
        files
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        self.device.bytes(file).unwrap()
    }

    fn copy(&self) -> Simulated {
        self.device.crash(CrashPolicy::Nothing)
    }

    /// Reads everything; each error must name `file` and be of one of `kinds`.
    fn read(&self, device: &Simulated, file: &str, kinds: &[ErrorKind], when: &str) -> u64 {
        let mut refused = 0;
        let mut refuse = |error: Error| {
            assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
            assert_eq!(error.context("file"), Some(file), "{when}: {error:?}");
            refused += 1;
        };
        let store = match open(device, &self.layout) {
            Ok(store) => store,
            Err(error) => {
                refuse(error);
                return refused;
            }
        };
        assert_eq!(store.restored_position(), Some(3), "{when}");
        match store.map::<u64, u64>("plain").open() {
            Ok(mut map) => self.read_map(&mut map, &self.plain, &mut refuse, when),
            Err(error) => refuse(error),
        }
        match store.map::<String, Vec<String>>("owning").open() {
            Ok(mut map) => self.read_map(&mut map, &self.owning, &mut refuse, when),
            Err(error) => refuse(error),
        }
        match store.timers::<u64>("timers") {
            Ok(mut timers) => {
                let fired: Vec<_> = std::iter::from_fn(|| timers.pop_due(Time(99))).collect();
                assert_eq!(fired, self.timers, "{when}");
            }
            Err(error) => refuse(error),
        }
        refused
    }

    fn read_map<K, V>(
        &self,
        map: &mut Map<K, V>,
        model: &BTreeMap<K, V>,
        refuse: &mut impl FnMut(Error),
        when: &str,
    ) where
        K: alluvium::Key + Ord,
        V: alluvium::State + PartialEq + std::fmt::Debug,
    {
        assert_eq!(map.len().unwrap(), model.len() as u64, "{when}");
        for (key, value) in model {
            match map.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(value), "{when}"),
                Err(error) => refuse(error),
            }
        }
        let mut seen = 0;
        let scanned = map.for_each(|key, value| {
            assert_eq!(model.get(key), Some(value), "{when}");
            seen += 1;
            Ok(())
        });
        match scanned {
            Ok(()) => assert_eq!(seen, model.len(), "{when}"),
            Err(error) => refuse(error),
        }
    }

    fn damage(&self, file: &str, seen: &mut Seen, when: &str, damage: impl FnOnce(&Simulated)) {
        let device = self.copy();
        damage(&device);
        let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
        match self.read(&device, file, &kinds, when) {
            0 => seen.harmless += 1,
            _ => seen.refused += 1,
        }
    }
}

fn flip_bytes(sample: Sample) {
    let seed = 3;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    assert_eq!(sample.read(&sample.copy(), "", &[], "undamaged"), 0);
    for file in sample.files() {
        let mut seen = Seen::default();
        for (offset, byte) in sample.bytes(&file).into_iter().enumerate() {
            if byte == 0 && offset % 16 != 0 && !common::long() {
                continue;
            }
            let bit = dice.below(8) as u32;
            let when = format!("{file}, byte {offset}, bit {bit}");
            sample.damage(&file, &mut seen, &when, |device| {
                device.corrupt(&file, offset as u64, bit).unwrap();
            });
        }
        println!("{file}: {seen:?}");
        assert!(seen.refused > 0, "{file}: {seen:?}");
    }
}

#[test]
fn flipped_bits_on_the_heap() {
    flip_bytes(samples().into_iter().next().unwrap());
}

#[test]
fn flipped_bits_in_a_log() {
    flip_bytes(samples().into_iter().nth(1).unwrap());
}

#[test]
fn files_cut_or_overwritten() {
    for sample in samples() {
        let mut dice = Dice(4);
        for file in sample.files() {
            let bytes = sample.bytes(&file);
            let mut cut = Seen::default();
            for len in (0..bytes.len()).step_by(512) {
                let when = format!("{file} cut to {len} of {} bytes", bytes.len());
                sample.damage(&file, &mut cut, &when, |device| {
                    device.truncate(&file, len as u64).unwrap();
                });
            }
            assert_eq!(cut.harmless, 0, "{file}: {cut:?}");
            let mut overwritten = Seen::default();
            for start in (0..bytes.len()).step_by(512) {
                let mut fill = |what: &str, with: &mut dyn FnMut(usize) -> u8| {
                    let mut wrong = bytes.clone();
                    (start..start + 512).for_each(|at| wrong[at] = with(at));
                    let when = format!("{file}, {what} at {start}");
                    sample.damage(&file, &mut overwritten, &when, |device| {
                        device.place(&file, &wrong);
                    });
                };
                fill("zeroes", &mut |_| 0);
                fill("ones", &mut |_| 0xFF);
                fill("noise", &mut |_| dice.next() as u8);
                let other = dice.below(bytes.len() as u64 / 512) as usize * 512;
                fill("another sector", &mut |at| bytes[other + at - start]);
            }
            println!("{file}: cut {cut:?}, overwritten {overwritten:?}");
            assert!(overwritten.refused > 0, "{file}");
        }
    }
}

#[test]
fn files_lost_or_exchanged() {
    for sample in samples() {
        let files = sample.files();
        for file in files.iter().filter(|file| *file != "MANIFEST") {
            let device = sample.copy();
            device.remove(file).unwrap();
            assert!(sample.read(&device, file, &[ErrorKind::Missing], &format!("no {file}")) > 0);
            // Another file of ours under this name: not the same segment or state.
            for other in files.iter().filter(|other| *other != file) {
                let mut seen = Seen::default();
                let when = format!("{other} in the place of {file}");
                sample.damage(file, &mut seen, &when, |device| {
                    device.place(file, &sample.bytes(other));
                });
            }
        }
    }
}

#[test]
fn foreign_and_newer_files_are_refused_by_name() {
    for sample in samples() {
        for file in sample.files() {
            let bytes = sample.bytes(&file);
            if file.starts_with("live-") {
                continue; // Plain bytes, vouched for by the manifest.
            }
            let device = sample.copy();
            device.place(&file, &b"PK\x03\x04 not one of ours ".repeat(bytes.len() / 20));
            assert!(sample.read(&device, &file, &[ErrorKind::Corrupt], "a foreign file") > 0);
            let device = sample.copy();
            let mut newer = bytes.clone();
            newer[8..12].copy_from_slice(&9u32.to_le_bytes());
            device.place(&file, &newer);
            let newer = format!("{file} of format 9");
            assert!(sample.read(&device, &file, &[ErrorKind::FormatVersion], &newer) > 0);
            // A refusal removes nothing.
            assert_eq!(device.list().unwrap(), sample.device.list().unwrap());
        }
    }
}

/// Storage that lies: writes torn, lost, misdirected or flipped without an error. A checkpoint may
/// be damaged by that, and says so when it is read.
#[test]
fn silently_wrong_writes_are_found_out() {
    let seeds = if common::long() { 400 } else { 40 };
    let (mut right, mut refused) = (0, 0);
    for (seed, layout, memory) in (1..=seeds).flat_map(|seed| {
        [(Heap::new().into(), 512 * KIB), (common::tiny().into(), 128 * KIB)]
            .map(|(layout, memory): (AnyLayout, u64)| (seed, layout, memory))
    }) {
        let device = Simulated::new(seed, Faults::none());
        let liar = Faults {
            torn_writes: 0.01,
            lost_writes: 0.01,
            misdirected_writes: 0.01,
            flipped_bits: 0.01,
            ..Faults::none()
        };
        let mut dice = Dice(seed);
        let mut versions: Vec<Plain> = vec![Plain::new()];
        let mut model = Plain::new();
        device.set_faults(liar);
        let mut check = |error: Error| {
            let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion, ErrorKind::Io];
            assert!(kinds.contains(&error.kind()), "seed {seed}: {error:?}");
            refused += 1;
        };
        {
            let small = common::open_on(Arc::new(device.clone()), layout.clone(), memory);
            let store = small.unwrap();
            let mut map: Map<u64, u64> = store.map("m").open().unwrap();
            for step in 1..1500 {
                let key = dice.below(600);
                match map.put(key, step) {
                    Ok(_) => drop(model.insert(key, step)),
                    Err(rejected) => check(rejected.error),
                }
                if step % 500 == 0 {
                    match store.checkpoint(versions.len() as u64) {
                        Ok(_) => versions.push(model.clone()),
                        Err(error) => check(error),
                    }
                }
            }
        }
        device.set_faults(Faults::none());
        let store = match common::open_on(Arc::new(device.clone()), layout, memory) {
            Ok(store) => store,
            Err(error) => {
                check(error);
                continue;
            }
        };
        let position = store.restored_position().unwrap_or(0) as usize;
        let mut map: Map<u64, u64> = match store.map("m").open() {
            Ok(map) => map,
            Err(error) => {
                check(error);
                continue;
            }
        };
        for key in 0..600 {
            match map.get(&key) {
                Ok(found) => {
                    assert_eq!(found.as_deref(), versions[position].get(&key), "seed {seed}");
                    right += 1;
                }
                Err(error) => check(error),
            }
        }
    }
    println!("{right} reads right, {refused} refused");
    assert!(right > 1000 && refused > 10, "{right} {refused}");
}
