//! The smallest memory that a store with a state of every kind opens with, and a little more: a call works,
//! or says that memory is short; and what was confirmed is read with that memory, or 64 KiB more, and with far more.

use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::{ErrorKind, KIB, MIB, StoreBuilder};

use crate::dice::{Dice, times};
use crate::everything::{Everything, builder};
use crate::job::{Found, Job, Replay};
use crate::long;
use crate::trouble::Trouble;

fn within(device: &Simulated, memory: u64, is_inline: bool) -> StoreBuilder {
    let helpers = if is_inline { Helpers::Inline } else { Helpers::Thread };
    builder(device).memory(memory).helpers(helpers)
}

/// The least memory, to a KiB, with which all states open in an empty directory.
fn least() -> u64 {
    let opens = |memory: u64| {
        let device = Simulated::new(1, Faults::none());
        match Everything::open(within(&device, memory, true)) {
            Ok(_) => true,
            Err(error) => {
                let kinds = [ErrorKind::Config, ErrorKind::OverBudget];
                assert!(kinds.contains(&error.kind()), "{memory}: {error:?}");
                false
            }
        }
    };
    let (mut short, mut enough) = (64 * KIB, 5 * MIB);
    assert!(opens(enough) && !opens(short));
    while enough - short > KIB {
        let middle = (short + enough) / 2;
        *if opens(middle) { &mut enough } else { &mut short } = middle;
    }
    enough
}

#[test]
fn the_smallest_budgets_work_or_say_that_they_are_too_small() {
    let least = least();
    let first = times("ALLUVIUM_SEED", 1);
    let seeds = times("ALLUVIUM_HISTORIES", if long() { 400 } else { 12 });
    let (mut ended, mut short, mut compared, mut changes) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let mut dice = Dice(seed);
        let memory = least + [0, 4, 16, 64, 256, 1024][dice.below(6) as usize] * KIB;
        let is_inline = dice.below(2) == 0;
        let when = format!("seed {seed}, {memory} bytes, helpers inline: {is_inline}");
        let device = Simulated::new(seed, Faults::late(2));
        let (mut found, mut replay) = (Found::default(), Replay::<Everything>::of(seed));
        let mut told = |told| found.told(told);
        let opened =
            Job::open(seed, || within(&device, memory, is_inline), Trouble::none(), &mut replay);
        let mut job = opened.unwrap_or_else(|error| panic!("{when}: {error:?}"));
        match job.run(&mut dice, 800, &mut told) {
            Ok(()) => ended += 1,
            Err(error) => {
                // Overtaken: what had to be kept for a checkpoint did not fit.
                let kinds = [ErrorKind::OverBudget, ErrorKind::Overtaken];
                assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                assert!(error.to_string().len() > 20, "{when}: {error}");
                short += 1;
            }
        }
        changes += job.position();
        drop(job);
        let left = device.crash(CrashPolicy::Nothing);
        for (nth, memory) in [memory, memory + 64 * KIB, 5 * MIB].into_iter().enumerate() {
            let copy = left.crash(CrashPolicy::Everything);
            let when = format!("{when}, read with {memory}");
            let mut found = found.clone();
            let reads = || within(&copy, memory, true);
            match Everything::open(reads()).map(drop) {
                // What was written in little memory may take a little more to be read.
                Err(error) if error.kind() == ErrorKind::OverBudget && nth == 0 => short += 1,
                _ => compared += found.check(reads, &mut replay, &mut dice, &when),
            }
        }
    }
    println!(
        "least {least} bytes; {seeds} histories of {changes} changes: {ended} ended, {short} times \
         memory was short; {compared} checkpoints compared"
    );
    assert!(ended > 0 && short > 0, "{ended} {short}");
}
