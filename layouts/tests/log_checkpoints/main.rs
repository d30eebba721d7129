//! Checkpoints of a hybrid log in histories of everything at once: changes in between all steps,
//! seals given up at any step, devices that fail and fill up, segments rewritten, `clear`, helpers
//! inline and on a thread, memories so small that the lists of deaths overflow.
//!
//! What this catches: a record in a checkpoint that was written after its barrier, one that is
//! missing, dead or twice, whatever became of the checkpoints before; a file removed that one needs;
//! memory of a checkpoint that is not given back.

mod cleared;
mod crashed;
#[path = "../common/dice.rs"]
mod dice;
mod flipped;
mod given_up;
mod key_panics;
mod larger_than_memory;
mod log;
mod opened;
mod panics;
mod rewritten;
mod runs;

use log::{Log, Value};

fn long() -> bool {
    std::env::var_os("ALLUVIUM_LONG").is_some()
}

/// One history; tells how many checkpoints were compared with the model.
fn history<V: Value>(seed: u64, threads: bool) -> u64 {
    let mut log = Log::<V>::new(seed, threads);
    log.play(match threads {
        _ if cfg!(miri) => 40,
        true => 150,
        false => 400,
    });
    log.end()
}

/// Histories of so many seeds, of which each tells how many checkpoints it compared.
fn of_seeds(seeds: u64, history: impl Fn(u64) -> u64) {
    let seeds = match seeds {
        // Which takes Miri a minute.
        _ if cfg!(miri) => 1,
        seeds if long() => 60 * seeds,
        seeds => seeds,
    };
    // One seed of interest: `ALLUVIUM_SEED=7`.
    let one = std::env::var("ALLUVIUM_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut compared = 0;
    for seed in one.map_or(1..seeds + 1, |seed: u64| seed..seed + 1) {
        let history = std::panic::AssertUnwindSafe(|| history(seed));
        match std::panic::catch_unwind(history) {
            Ok(count) => compared += count,
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{seeds} histories, {compared} checkpoints compared");
    assert!(compared > seeds || one.is_some());
}

fn histories<V: Value>(seeds: u64, threads: bool) {
    of_seeds(seeds, |seed| history::<V>(seed, threads));
}

#[test]
fn of_plain_values() {
    histories::<u64>(40, false);
}

#[test]
fn of_values_that_own_heap() {
    histories::<String>(40, false);
}

#[test]
fn of_plain_values_written_by_a_thread() {
    histories::<u64>(12, true);
}

#[test]
fn of_values_that_own_heap_written_by_a_thread() {
    histories::<String>(12, true);
}
