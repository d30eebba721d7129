//! The simulated device is stopped at every I/O step from one checkpoint to the end of the next:
//! flushes, rewrites, live sets, manifest, removals. Whatever a crash keeps of what was not synced,
//! the store opens with one of the two checkpoints, whole, over all its states.
//!
//! What this catches: a manifest durable before what it names, a segment or checkpoint file
//! removed while a crash can still bring back the manifest that names it, names of files that
//! were never synced, ids given twice after a crash, files of the crashed attempt taken for real.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::{Dice, assert_equal, entries};
use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::{AnyLayout, Count, KIB, Map, Result, Store, Time, Timers, Value};

/// The states of one store and what they should hold.
struct Everything {
    store: Store,
    plain: Map<u64, u64>,
    owning: Map<String, Vec<String>>,
    counts: Count<u16>,
    value: Value<String>,
    timers: Timers<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    plain: BTreeMap<u64, u64>,
    owning: BTreeMap<String, Vec<String>>,
    counts: BTreeMap<u16, i64>,
    value: Option<String>,
    timers: BTreeSet<(Time, u64)>,
    /// Of a state that is open until the first checkpoint only.
    carried: BTreeMap<u64, u64>,
}

fn layout_of(layout: &AnyLayout, bytes: u64) -> AnyLayout {
    match layout {
        AnyLayout::HybridLog(log) => log.clone().memory(bytes).into(),
        other => other.clone(),
    }
}

impl Everything {
    fn open(device: &Simulated, layout: &AnyLayout) -> Result<Self> {
        let store = common::open_on(Arc::new(device.clone()), layout.clone(), 1024 * KIB)?;
        Ok(Self {
            plain: store.map("plain").layout(layout_of(layout, 122 * KIB)).open()?,
            owning: store.map("owning").layout(layout_of(layout, 142 * KIB)).open()?,
            counts: store.count("counts").layout(layout_of(layout, 122 * KIB)).open()?,
            value: store.value("value").layout(layout_of(layout, 142 * KIB)).open()?,
            timers: store.timers("timers")?,
            store,
        })
    }

    /// One seeded operation on both.
    fn change(&mut self, model: &mut Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(500), dice.next());
        let word = format!("key {}", key % 90);
        match dice.below(12) {
            0..=4 => {
                self.plain.put(key, n)?;
                model.plain.insert(key, n);
            }
            5 => {
                self.plain.remove(&key)?;
                model.plain.remove(&key);
            }
            6..=7 => {
                let new = vec![word.clone(); n as usize % 40];
                self.owning.put(word.clone(), new.clone())?;
                model.owning.insert(word, new);
            }
            8 => {
                self.owning.remove(word.as_str())?;
                model.owning.remove(&word);
            }
            9 => {
                self.counts.add(&(key as u16), 3)?;
                *model.counts.entry(key as u16).or_default() += 3;
            }
            10 => {
                let timer = (Time(dice.below(50) as i64), key % 7);
                if model.timers.remove(&timer) {
                    assert!(self.timers.cancel(timer.1, timer.0));
                } else {
                    assert!(self.timers.set(timer.1, timer.0)?);
                    model.timers.insert(timer);
                }
            }
            _ => {
                self.value.set(word.clone())?;
                model.value = Some(word);
                self.store.tick(40)?;
            }
        }
        Ok(())
    }

    fn changes(&mut self, model: &mut Model, dice: &mut Dice, count: u64) -> Result<()> {
        (0..count).try_for_each(|_| self.change(model, dice))
    }

    fn assert_equal(&mut self, model: &Model, when: &str) {
        assert_equal(&mut self.plain, &model.plain, when);
        assert_equal(&mut self.owning, &model.owning, when);
        assert_equal(self.counts.as_map(), &model.counts, when);
        assert_eq!(self.value.get().unwrap().as_deref(), model.value.as_ref(), "{when}");
        assert_eq!(self.timers.len(), model.timers.len() as u64, "{when}");
        assert_eq!(self.timers.next_time(), model.timers.first().map(|t| t.0), "{when}");
    }

    /// Takes a checkpoint of what the states are now while they go on changing.
    fn checkpoint(&mut self, position: u64, now: &Model, dice: &mut Dice) -> Result<()> {
        let (mut seal, mut later) = (self.store.seal(position)?, now.clone());
        while !seal.advance()? {
            self.changes(&mut later, dice, 3)?;
        }
        self.changes(&mut later, dice, 20)?;
        seal.confirm().map(|_| ())
    }

    /// The timers can only be looked at by firing them.
    fn assert_timers(&mut self, model: &mut Model, when: &str) {
        let fired: Vec<_> = std::iter::from_fn(|| self.timers.pop_due(Time(100))).collect();
        assert!(fired.iter().copied().eq(std::mem::take(&mut model.timers)), "{when}");
    }
}

/// A history up to its second checkpoint, which the device may not survive.
struct History {
    device: Simulated,
    /// The model at each checkpoint.
    models: [Model; 2],
    /// Steps of the device between the two.
    steps: u64,
    finished: bool,
}

fn history(layout: &AnyLayout, seed: u64, crash_at: Option<u64>) -> History {
    let device = Simulated::new(seed, Faults::late(2));
    let mut dice = Dice(seed);
    let mut model = Model::default();
    let mut all = Everything::open(&device, layout).unwrap();
    let mut carried: Map<u64, u64> =
        all.store.map("carried").layout(layout_of(layout, 122 * KIB)).open().unwrap();
    for key in 0..300 {
        carried.put(key, dice.next()).unwrap();
        carried.remove(&(key / 2)).unwrap();
    }
    model.carried = entries(&mut carried).unwrap();
    all.changes(&mut model, &mut dice, 300).unwrap();
    // What changes while it is taken is not in it.
    all.checkpoint(1, &model, &mut dice).unwrap();
    drop((carried, all));
    let mut all = Everything::open(&device, layout).unwrap();
    all.changes(&mut model, &mut dice, 200).unwrap();
    all.store.checkpoint(1).unwrap();
    let first = model.clone();
    drop(all);

    let mut all = Everything::open(&device, layout).unwrap();
    let start = device.steps();
    if let Some(steps) = crash_at {
        device.fail_after(steps);
    }
    let done =
        all.changes(&mut model, &mut dice, 500).and_then(|()| all.checkpoint(2, &model, &mut dice));
    if crash_at.is_none() {
        let rewritten = all.store.stats().unwrap().total().rewritten;
        assert!(rewritten > 0 || matches!(layout, AnyLayout::Heap(_)), "nothing was rewritten");
    }
    let finished = done.is_ok();
    History { steps: device.steps() - start, device, models: [first, model], finished }
}

fn check(image: &Simulated, layout: &AnyLayout, crashed: &History, when: &str) -> u64 {
    let before: BTreeSet<String> = image.list().unwrap().into_iter().collect();
    let mut all = Everything::open(image, layout).unwrap_or_else(|e| panic!("{when}: {e}"));
    let after: BTreeSet<String> = image.list().unwrap().into_iter().collect();
    assert!(after.is_subset(&before), "{when}: {after:?} of {before:?}");
    assert_eq!(all.store.leftovers(), (before.len() - after.len()) as u64, "{when}");
    let position = all.store.restored_position().unwrap_or_else(|| panic!("{when}: no checkpoint"));
    assert!(position == 2 || !crashed.finished, "{when}: a finished checkpoint is gone");
    let mut model = crashed.models[position as usize - 1].clone();
    all.assert_equal(&model, when);

    // Life goes on, and so does what nobody opened.
    let mut dice = Dice(position);
    all.changes(&mut model, &mut dice, 30).unwrap_or_else(|e| panic!("{when}: {e}"));
    all.store.checkpoint(3).unwrap_or_else(|e| panic!("{when}: {e}"));
    drop(all);
    let mut all = Everything::open(image, layout).unwrap();
    assert_eq!(all.store.restored_position(), Some(3), "{when}");
    all.assert_equal(&model, when);
    all.assert_timers(&mut model, when);
    let mut carried: Map<u64, u64> =
        all.store.map("carried").layout(layout_of(layout, 122 * KIB)).open().unwrap();
    assert_equal(&mut carried, &model.carried, when);
    position
}

fn crash_everywhere(layout: AnyLayout) {
    let seeds = if common::long() { 10 } else { 1 };
    for seed in 1..=seeds {
        let whole = history(&layout, seed, None);
        println!("seed {seed}: {} steps", whole.steps);
        assert!(whole.finished && whole.steps > 10, "{} steps", whole.steps);
        let mut seen = [0; 2];
        // Late steps are the checkpoint's; of the many before, the short run takes a share.
        let share = if common::long() { 1 } else { (whole.steps / 12).max(1) };
        for at in 0..=whole.steps + 1 {
            if at + 38 < whole.steps && at % share != seed % share {
                continue;
            }
            let crashed = history(&layout, seed, Some(at));
            // The last steps remove what is not needed any more, and may fail.
            assert!(crashed.finished || at < whole.steps, "step {at}");
            let chance = seed * 10_000 + at;
            let policies = [
                CrashPolicy::Nothing,
                CrashPolicy::Everything,
                CrashPolicy::Prefix { seed: chance },
                CrashPolicy::Subset { seed: chance },
                CrashPolicy::Torn { seed: chance },
            ];
            for (i, policy) in policies.into_iter().enumerate() {
                if !common::long() && (i as u64 + at) % 4 != 0 {
                    continue;
                }
                let image = crashed.device.crash(policy);
                let when = format!("seed {seed}, crash at step {at}, {policy:?}");
                seen[check(&image, &layout, &crashed, &when) as usize - 1] += 1;
            }
        }
        println!("seed {seed}: {} times the first checkpoint, {} the second", seen[0], seen[1]);
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

#[test]
fn on_the_heap() {
    crash_everywhere(common::durable_layouts().remove(0).1);
}

#[test]
fn in_a_tiny_log() {
    crash_everywhere(common::durable_layouts().remove(1).1);
}

#[test]
fn in_a_tiny_log_whose_hashes_collide() {
    crash_everywhere(common::durable_layouts().remove(2).1);
}

#[test]
fn in_a_tiny_log_of_two_generations() {
    crash_everywhere(common::durable_layouts().remove(3).1);
}

/// Opening after a crash removes files; a crash while it does loses nothing either.
#[test]
fn a_crash_while_opening_after_a_crash() {
    for (name, layout) in common::durable_layouts() {
        let whole = history(&layout, 3, None);
        let crashed = history(&layout, 3, Some(whole.steps - 3));
        let policy = CrashPolicy::Everything;
        let left = {
            let all = Everything::open(&crashed.device.crash(policy), &layout).unwrap();
            all.store.leftovers()
        };
        assert!(left > 0, "{name}: nothing is left over");
        for at in 0..left {
            let image = crashed.device.crash(policy);
            image.fail_after(at);
            assert!(Everything::open(&image, &layout).is_err(), "{name}: opened at {at}");
            for seed in 0..4 {
                let when = format!("{name}: opening stopped at step {at}, seed {seed}");
                check(&image.crash(CrashPolicy::Subset { seed }), &layout, &crashed, &when);
            }
        }
    }
}
