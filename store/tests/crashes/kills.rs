//! Processes that are killed at any moment, with a real directory: the store is then opened elsewhere
//! and has the last checkpoint that the process has told as confirmed, or one that it was confirming.
//!
//! What this catches: what only a process has that does not come to its end. A lock that stays, files
//! left half made under real engines, a manifest between two states, an open that cannot be repeated.

use std::time::Duration;

use crate::children::{Expected, Line, Plan};
use crate::dice::{Dice, times};
use crate::job::Found;
use crate::long;

#[test]
fn a_killed_process_leaves_what_it_has_confirmed() {
    let directories = times("ALLUVIUM_KILLS", if long() { 300 } else { 2 });
    let first = times("ALLUVIUM_SEED", 1);
    let (mut kills, mut compared, mut opening, mut confirmed) = (0, 0, 0, 0);
    for seed in first..first + directories {
        let directory = tempfile::tempdir().unwrap();
        let (mut dice, mut expected) = (Dice(seed), Expected::of(seed));
        let mut found = Found::default();
        for round in 0..if long() { 8 } else { 5 } {
            let plan = Plan::by_chance(directory.path(), seed, &mut dice);
            let when = format!("seed {seed}, round {round}, {plan:?}");
            let mut running = plan.spawn(|_| {});
            // Some are killed while they open, the others at a moment near what they say.
            let lines = [0, 1, 3, 8, 20][dice.below(5) as usize];
            let (mut heard, mut is_alive) = (0, true);
            loop {
                if is_alive && heard >= lines {
                    std::thread::sleep(Duration::from_micros(dice.below(15_000)));
                    running.kill();
                    is_alive = false;
                }
                match running.line() {
                    None => break,
                    Some(Line::Opened) => {}
                    Some(Line::Told(told)) => found.told(told),
                    Some(line) => panic!("{when}: {line:?}"),
                }
                heard += 1;
            }
            opening += u64::from(heard == 0);
            confirmed += heard;
            let (status, words) = running.end();
            assert_eq!(status.code(), None, "{when}: {words}");
            kills += 1;
            compared += expected.check(&mut found, &plan, &mut dice, &when);
        }
    }
    println!(
        "{kills} kills in {directories} directories, {opening} of them while the store was opened; \
         {confirmed} lines heard; {compared} checkpoints compared"
    );
    assert!(confirmed > 0, "no process came to tell anything");
}
