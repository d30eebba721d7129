//! One sync of a history fails, once. Whoever is told so tries again, as the docs allow, until the
//! checkpoint is confirmed; then the device loses everything that no good sync covers.
//!
//! What this catches: a retry that only syncs again what the failed sync has lost, of any file or of
//! the directory, by any layout; a file removed that the checkpoint which comes back still needs.
//!
//! By default a share of all syncs and calls on the directory; `ALLUVIUM_LONG=1` takes each.

use alluvium::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium::{ErrorKind, Result};

use crate::dice::Dice;
use crate::everything::{Everything, Model, builder};
use crate::history::RETAINED;
use crate::long;
use crate::trouble::Trouble;

/// Checkpoints of a history.
const CHECKPOINTS: u64 = 3;
/// Times that one checkpoint is tried again before another is begun.
const TRIES: u32 = 4;

/// What fails.
#[derive(Clone, Copy, Debug)]
enum Call {
    Sync,
    Directory,
}

/// A checkpoint that is begun, tried again and begun anew until one is confirmed.
fn confirmed(all: &mut Everything, position: u64) -> Result<()> {
    loop {
        let Everything { store, trouble, .. } = &mut *all;
        let mut seal = trouble.outlast(|| store.seal(position))?;
        let mut tries = 0;
        while tries < TRIES {
            match seal.advance() {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) if trouble.is_of_it(&error) => tries += 1,
                Err(error) => return Err(error),
            }
        }
        if tries == TRIES {
            seal.abort();
            continue;
        }
        match seal.confirm() {
            Ok(_) => return Ok(()),
            Err(error) if trouble.is_of_it(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens the store again and again until it is open.
fn opened(device: &Simulated, retain: usize, met: &mut u64) -> Result<Everything> {
    loop {
        match Everything::open(builder(device).retain(retain)) {
            Err(error) if error.kind() == ErrorKind::Io => *met += 1,
            done => return done,
        }
    }
}

/// Plays the history with the `n`-th of these calls failing, if there is one. Gives the device, and
/// how many errors were lived through.
fn play(fails: Option<(Call, u64)>, retain: usize) -> (Simulated, u64) {
    let when = format!("{fails:?} fails, {retain} retained");
    let (device, mut dice) = (Simulated::new(1, Faults::none()), Dice(7));
    match fails {
        Some((Call::Sync, n)) => device.on_nth_sync(n, Fault::Error),
        Some((Call::Directory, n)) => device.on_nth_directory_operation(n, Fault::Error),
        None => {}
    }
    let (mut met, mut model) = (0, Model::default());
    let mut all = opened(&device, retain, &mut met).expect(&when);
    for number in 1..=CHECKPOINTS {
        all.trouble = Trouble::standing(&device);
        all.changes(&mut model, &mut dice, 60).expect(&when);
        confirmed(&mut all, number).expect(&when);
        let when = format!("{when}, checkpoint {number}");
        let crashed = device.crash(CrashPolicy::Nothing);
        let mut found = Everything::open(builder(&crashed).retain(retain)).expect(&when);
        assert_eq!(found.store.restored_position(), Some(number), "{when}");
        let errors = found.compare(&model, &when);
        assert!(errors.is_empty(), "{when}: {errors:?}");
        met += all.trouble.met();
        if number == 2 {
            // Also what an open does may fail.
            drop(all);
            all = opened(&device, retain, &mut met).expect(&when);
        }
    }
    (device, met)
}

/// Plays it with each of these calls failing, or with one of so many.
fn fail_each(call: Call, share: u64) {
    let (mut played, mut met) = (0, 0);
    for retain in [1, RETAINED] {
        let stats = play(None, retain).0.stats();
        let all = match call {
            Call::Sync => stats.syncs,
            Call::Directory => stats.directory_operations,
        };
        let share = if long() { 1 } else { share };
        for n in (1 + retain as u64 % share..=all).step_by(share as usize) {
            met += play(Some((call, n)), retain).1;
            played += 1;
        }
    }
    println!("{played} histories with a {call:?} that fails, {met} errors told");
    assert!(met * 2 > played, "{met} of {played}");
}

#[test]
fn a_sync_that_fails_loses_nothing_that_is_confirmed_later() {
    fail_each(Call::Sync, 3);
}

#[test]
fn a_call_on_the_directory_that_fails_loses_nothing_that_is_confirmed_later() {
    fail_each(Call::Directory, 11);
}
