//! Bits flipped in every kind of file that checkpoints of all layouts are made of, and whole files cut,
//! exchanged, overwritten or lost: what is read is
//! right, or the error says which file is damaged.

use std::collections::BTreeMap;

use alluvium::ErrorKind;
use alluvium::io::{BLOCK_BYTES, CrashPolicy, Device, Faults, Simulated};
use alluvium_pagestore::CheckpointImage;

use crate::dice::Dice;
use crate::everything::Model;
use crate::{long, open};

/// A directory whose last checkpoint has both sets of live records and lists of dead ones, and what
/// it holds.
fn sample() -> (Simulated, Model) {
    for seed in 1..40 {
        let device = Simulated::new(seed, Faults::none());
        let (mut model, mut dice) = (Model::default(), Dice(seed));
        let mut all = open(&device, None).unwrap();
        // More die than there is room to note, and then few.
        for changes in [1000, 250 + 30 * seed, 40] {
            all.changes(&mut model, &mut dice, changes).unwrap();
            all.store.checkpoint(0).unwrap();
        }
        let last = all.store.checkpoints().last().unwrap().checkpoint.number;
        let name = format!("checkpoint-{last:016x}");
        let image = CheckpointImage::parse(&name, &device.bytes(&name).unwrap()).unwrap();
        let has_lists = image.states.iter().any(|state| state.image.deaths().next().is_some());
        let mut segments = image.states.iter().flat_map(|state| state.image.segments());
        if has_lists && segments.any(|segment| segment.live.is_some()) {
            println!("seed {seed}");
            return (device.crash(CrashPolicy::Everything), model);
        }
    }
    panic!("no checkpoint has both sets and lists");
}

#[test]
fn flipped_bits_are_found_or_harmless_in_every_kind_of_file() {
    let (device, model) = sample();
    let mut dice = Dice(5);
    let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for file in device.list().unwrap() {
        let bytes = device.bytes(&file).unwrap();
        let offsets = (0..bytes.len()).filter(|at| bytes[*at] != 0);
        let offsets: Vec<usize> = offsets.collect();
        let share = if long() { 1 } else { (offsets.len() / 10).max(1) };
        for offset in offsets.into_iter().skip(dice.below(share as u64) as usize).step_by(share) {
            let bit = dice.below(8) as u32;
            let when = format!("{file}, byte {offset}, bit {bit}");
            let copy = device.crash(CrashPolicy::Everything);
            copy.corrupt(&file, offset as u64, bit).unwrap();
            let errors = match open(&copy, None) {
                Ok(mut all) => all.compare(&model, &when),
                Err(error) => vec![error],
            };
            for error in &errors {
                let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                assert_eq!(error.context("file"), Some(&*file), "{when}: {error:?}");
            }
            let kind = file.split('-').next().expect("a first part").to_owned();
            let (refused, harmless) = seen.entry(kind).or_default();
            *if errors.is_empty() { harmless } else { refused } += 1;
        }
    }
    println!("refused and harmless, by kind of file: {seen:?}");
    for kind in ["MANIFEST", "checkpoint", "live", "seg", "run"] {
        assert!(seen.get(kind).is_some_and(|(refused, _)| *refused > 0), "{kind}: {seen:?}");
    }
}

/// What can become of a file as a whole.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// It ends too early.
    Cut,
    /// It is another file of its kind.
    Exchanged,
    /// A block of it is zeros.
    Zeroed,
    /// A block of it is another of its blocks.
    Misplaced,
    Removed,
}

/// Does it; `None` if that would change nothing.
fn harm(harm: Harm, device: &Simulated, file: &str, dice: &mut Dice) -> Option<()> {
    let bytes = device.bytes(file).unwrap();
    let blocks = bytes.len() as u64 / BLOCK_BYTES as u64;
    let block = |n: u64| n as usize * BLOCK_BYTES..(n as usize + 1) * BLOCK_BYTES;
    let mut harmed = bytes.clone();
    match harm {
        Harm::Removed => {
            device.remove(file).unwrap();
            return Some(());
        }
        Harm::Cut => {
            device.truncate(file, dice.below(bytes.len() as u64)).unwrap();
            return Some(());
        }
        Harm::Exchanged => {
            let kind = file.split('-').next();
            let of_kind = |name: &String| name != file && name.split('-').next() == kind;
            let others: Vec<_> = device.list().unwrap().into_iter().filter(of_kind).collect();
            let other = others.get(dice.below(others.len() as u64) as usize)?;
            harmed = device.bytes(other).unwrap();
        }
        Harm::Zeroed => harmed[block(dice.below(blocks))].fill(0),
        Harm::Misplaced => {
            let (from, to) = (block(dice.below(blocks)), block(dice.below(blocks)));
            harmed.copy_within(from, to.start);
        }
    }
    if harmed == bytes {
        return None;
    }
    device.place(file, &harmed);
    Some(())
}

#[test]
fn files_that_are_cut_exchanged_overwritten_or_lost_are_named_or_harmless() {
    let (device, model) = sample();
    let (mut dice, mut seen) = (Dice(6), BTreeMap::<String, (u64, u64)>::new());
    let mut files = device.list().unwrap();
    files.sort();
    for file in &files {
        for kind in [Harm::Cut, Harm::Exchanged, Harm::Zeroed, Harm::Misplaced, Harm::Removed] {
            for _ in 0..if long() { 30 } else { 1 } {
                // Of the many segments a share, by chance.
                if !long() && file.starts_with("seg-") && dice.below(3) > 0 {
                    continue;
                }
                let copy = device.crash(CrashPolicy::Everything);
                let when = format!("{file}, {kind:?}, {}", dice.0);
                if harm(kind, &copy, file, &mut dice).is_none() {
                    continue;
                }
                let errors = match open(&copy, None) {
                    Ok(mut all) => all.compare(&model, &when),
                    Err(error) => vec![error],
                };
                for error in &errors {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion, ErrorKind::Missing];
                    assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                    assert_eq!(error.context("file"), Some(&**file), "{when}: {error:?}");
                }
                let (refused, harmless) = seen.entry(format!("{kind:?}")).or_default();
                *if errors.is_empty() { harmless } else { refused } += 1;
            }
        }
    }
    println!("{} files; refused and harmless, by harm: {seen:?}", files.len());
    assert!(seen.len() == 5 && seen.values().all(|(refused, _)| *refused > 0), "{seen:?}");
}
