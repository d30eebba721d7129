//! A crash at each step of the device, while records move to sorted runs, runs are merged and a checkpoint that names runs
//! is taken.
//!
//! What this catches: a run that a merge removes although the last checkpoint names it; a checkpoint that is confirmed
//! before its runs are synced; a record that came to a run after the barrier.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use alluvium_layouts::{CheckpointOutcome, Upkeep};
use alluvium_pagestore::StateImage;
use alluvium_pagestore::io::CrashPolicy;

use crate::log::{Model, restored};
use crate::runs::{KEYS, Run};

/// The checkpoint that was confirmed last, and the crashes that it was looked for after.
#[derive(Default)]
struct Last {
    confirmed: Option<(StateImage, Model<u64>)>,
    /// Steps that were seen of each kind, and crashes at one.
    steps: BTreeMap<String, (u64, u64)>,
}

impl Last {
    /// Of a kind of step one in so many is a crash: of what is done most the fewest.
    fn is_chosen(&mut self, words: &str) -> bool {
        let kind = kind_of(words);
        let one_in = match kind.as_str() {
            "write run" => 30,
            "write seg" => 20,
            _ => 6,
        };
        let (seen, taken) = self.steps.entry(kind).or_default();
        *seen += 1;
        let is_chosen = *seen % one_in == 1;
        *taken += u64::from(is_chosen);
        is_chosen
    }
}

/// What a step does to which kind of file: `write run`.
fn kind_of(words: &str) -> String {
    let mut words = words.split(' ');
    let does = words.next().unwrap_or_default();
    let file = words.next().unwrap_or_default();
    format!("{does} {}", file.split('-').next().unwrap_or_default())
}

fn policies(seed: u64) -> [CrashPolicy; 5] {
    [
        CrashPolicy::Nothing,
        CrashPolicy::Subset { seed },
        CrashPolicy::Everything,
        CrashPolicy::Torn { seed },
        CrashPolicy::Prefix { seed },
    ]
}

/// Names the crash after which something is wrong.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the crash: {}", self.0);
        }
    }
}

/// Has each chosen step be a crash, after which the checkpoint that was confirmed last is there, and none of its keys
/// has an older value.
fn watch(run: &Run, last: &Arc<Mutex<Last>>) {
    let (last, layout) = (last.clone(), run.layout.clone());
    run.device.watch(move |moment| {
        if std::thread::panicking() {
            return;
        }
        let last = &mut *last.lock().unwrap_or_else(PoisonError::into_inner);
        if !last.is_chosen(moment.words()) {
            return;
        }
        let (image, model) = last.confirmed.as_ref().expect("one is confirmed");
        let at = moment.step();
        let policy = policies(at)[(at / 3) as usize % 5];
        let _told = Told(format!("step {at}, {}, {policy:?}", moment.words()));
        restored(&moment.crash(policy), &layout, image, model);
    });
}

/// Changes keys of all.
fn change(run: &mut Run, key: &mut u64, count: u64) {
    for _ in 0..count {
        *key = (*key + 104_729) % KEYS;
        match *key % 4 {
            0 => run.take(*key),
            _ => run.put(*key, *key + count),
        }
    }
}

#[test]
fn at_any_step_of_moves_and_merges_the_last_checkpoint_is_whole() {
    let mut run = Run::new();
    let last = Arc::new(Mutex::new(Last::default()));
    let confirmed = run.checkpoint(CheckpointOutcome::Committed, |_| ());
    assert!(confirmed.0.runs().count() > 0, "records have moved");
    last.lock().unwrap().confirmed = Some(confirmed);
    let before = run.table.stats().runs;
    watch(&run, &last);
    let mut key = 0;
    for round in 0..4 {
        change(&mut run, &mut key, 8_000);
        let sealed = run.seal(|run| change(run, &mut key, 400));
        let outcome = match round {
            1 => CheckpointOutcome::Abandoned,
            _ => {
                last.lock().unwrap().confirmed = Some(sealed);
                CheckpointOutcome::Committed
            }
        };
        run.table.checkpointed(outcome);
    }
    change(&mut run, &mut key, 8_000);
    run.device.watch(|_| ());
    let after = run.table.stats().runs;
    let last = last.lock().unwrap();
    println!("{:?}\n{before:?}\n{after:?}", last.steps);
    assert!(after.moved > before.moved + 10_000 && after.merged_bytes > before.merged_bytes);
    for kind in ["create run", "write run", "sync run", "remove run"] {
        let taken = last.steps.get(kind).map_or(0, |(_, taken)| *taken);
        assert!(taken > 1, "{taken} crashes at {kind}: {:?}", last.steps);
    }
}
