//! Random histories of three stores between which key groups move: they are closed, or lose power, and are
//! opened again with another configuration, from the last checkpoint, from an older one or from one that
//! nobody has confirmed; they are made anew from checkpoints, or from canonical files. Whatever came before,
//! together they have what the model has.
//!
//! What this catches: what any two of these do to each other that none does alone. A checkpoint that an open
//! or a restore removes though it may be asked for; an open in another branch than the last; chunks of a run
//! before that are taken for those of this one; a group in two stores, or in none; entries of groups that
//! have left and that come back by an export.
//!
//! By default a few histories. The long run:
//!
//! ```text
//! ALLUVIUM_LONG=1 cargo test --release -p alluvium --test rescale histories_of -- --nocapture
//! ```
//!
//! `ALLUVIUM_SEED` sets the first history.

use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Simulated};
use alluvium::moving::Source;
use alluvium::{AnyLayout, Heap, HybridLog, KIB, MIB, Result, Store, StoreBuilder};

use crate::dice::{Dice, times};
use crate::moving_job::{Job, Model, Worker, device, layouts, open_as};

/// Checkpoints of all stores at one moment.
#[derive(Clone)]
struct Snapshot {
    numbers: Vec<u64>,
    model: Model,
    owners: Vec<usize>,
    is_confirmed: bool,
}

#[derive(Debug, Default)]
struct Met {
    went_back: u64,
    unconfirmed: u64,
    plain: u64,
    divided: u64,
    imported: u64,
    moved: u64,
}

struct History {
    /// What lists are kept by, too: that stays as it is.
    layout: AnyLayout,
    devices: Vec<Simulated>,
    job: Job,
    /// Those that can be restored, as far as is known.
    snapshots: Vec<Snapshot>,
    /// What an open without a number goes on from.
    last: Option<Snapshot>,
    dice: Dice,
    met: Met,
}

/// The numbers of the checkpoints that a store has.
fn listed(store: &Store) -> Vec<u64> {
    store.checkpoints().iter().map(|all| all.checkpoint.number).collect()
}

impl History {
    fn new(layout: &AnyLayout, seed: u64) -> Self {
        let devices: Vec<_> = (0..3).map(|at| device(seed + at)).collect();
        let workers = devices.iter().enumerate().map(|(at, device)| {
            open_as(layout, at as u64, 3, device, |builder| builder.retain(3)).unwrap()
        });
        let job = Job::of(workers.collect(), Model::default(), seed);
        let (layout, dice) = (layout.clone(), Dice(!seed));
        let (snapshots, last, met) = Default::default();
        Self { layout, devices, job, snapshots, last, dice, met }
    }

    /// Opens all stores again, as `restore` says, with another configuration.
    fn open(
        &mut self,
        workers: u64,
        devices: &[Simulated],
        restore: impl Fn(usize, StoreBuilder) -> StoreBuilder,
    ) -> Result<Vec<Worker>> {
        let memory = (2 + self.dice.below(3)) * MIB;
        let helpers = [Helpers::Inline, Helpers::Thread][self.dice.below(2) as usize];
        let retain = 2 + self.dice.below(3) as usize;
        let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
        // Maps and counters read each other's layouts.
        let maps: AnyLayout = match self.dice.below(2) {
            0 => Heap::new().into(),
            _ => log.memory(320 * KIB).into(),
        };
        let opened = devices.iter().enumerate().map(|(at, device)| {
            open_as(&self.layout, at as u64, workers, device, |builder| {
                let builder = builder.memory(memory).helpers(helpers).retain(retain);
                restore(at, builder.layout(maps.clone()))
            })
        });
        opened.collect()
    }

    /// The job goes on with these workers, which have what `snapshot` says.
    fn go_on(&mut self, workers: Vec<Worker>, model: Model, when: &str) {
        let (seed, stale) = (self.dice.next(), std::mem::take(&mut self.job.stale));
        self.met.moved += self.job.moved;
        self.job = Job::of(workers, model, seed);
        self.job.stale = stale;
        self.job.check(when);
    }

    /// A checkpoint of all stores, which is confirmed, or kept for somebody to decide, or given up.
    fn checkpoint(&mut self) {
        self.job.settle();
        let seal = |worker: &Worker| {
            let mut seal = worker.store.seal(1).unwrap();
            while !seal.advance().unwrap() {}
            seal
        };
        let seals: Vec<Seal> = self.job.workers.iter().map(seal).collect();
        let mut snapshot = Snapshot {
            is_confirmed: false,
            numbers: seals.iter().map(Seal::number).collect(),
            model: self.job.model.clone(),
            owners: self.job.owners.clone(),
        };
        match self.dice.below(6) {
            0 => seals.into_iter().for_each(Seal::abort),
            1..=3 => {
                seals.into_iter().for_each(|mut seal| seal.keep());
                self.snapshots.push(snapshot);
            }
            _ => {
                for seal in seals {
                    seal.confirm().unwrap();
                }
                snapshot.is_confirmed = true;
                self.last = Some(snapshot.clone());
                self.snapshots.push(snapshot);
                self.forget_removed();
            }
        }
    }

    /// Checkpoints that the stores have not any more cannot be restored.
    fn forget_removed(&mut self) {
        let listed: Vec<_> = self.job.workers.iter().map(|worker| listed(&worker.store)).collect();
        self.snapshots.retain(|snapshot| {
            let mut numbers = listed.iter().zip(&snapshot.numbers);
            numbers.all(|(listed, number)| listed.contains(number))
        });
    }

    /// All stores go down, and on from the last checkpoint, or another one.
    fn reopen(&mut self, when: &str) {
        if self.dice.below(2) == 0 {
            self.job.settle();
        }
        self.job.workers.clear();
        if self.dice.below(2) == 0 {
            self.devices =
                self.devices.iter().map(|device| device.crash(CrashPolicy::Nothing)).collect();
        }
        let devices = self.devices.clone();
        let count = devices.len() as u64;
        // Those that nobody has confirmed are soon gone.
        let wants_unconfirmed = self.dice.below(2) == 0;
        let unconfirmed =
            self.snapshots.iter().filter(|one| !one.is_confirmed && wants_unconfirmed);
        let mut choice: Vec<_> = unconfirmed.collect();
        if choice.is_empty() && self.dice.below(2) == 0 {
            choice.extend(&self.snapshots);
        }
        let chosen = match choice.len() as u64 {
            0 => None,
            count => Some(choice[self.dice.below(count) as usize].clone()),
        };
        let Some(chosen) = chosen else {
            let workers = self.open(count, &devices, |_, builder| builder).unwrap();
            self.met.plain += 1;
            let last = self.last.clone();
            let model = last.as_ref().map(|last| last.model.clone()).unwrap_or_default();
            self.go_on(workers, model, &format!("{when}, the last"));
            if let Some(last) = &last {
                assert_eq!(self.job.owners, last.owners, "{when}");
            }
            // What nobody has confirmed is gone.
            self.forget_removed();
            return;
        };
        let number = |at: usize| chosen.numbers[at];
        let workers = self.open(count, &devices, |at, builder| builder.restore(number(at)));
        let workers =
            workers.unwrap_or_else(|error| panic!("{when}, {:?}: {error:?}", chosen.numbers));
        // No other is removed, and each can be asked for.
        for snapshot in &self.snapshots {
            for (worker, number) in workers.iter().zip(&snapshot.numbers) {
                let there = listed(&worker.store);
                assert!(there.contains(number), "{when}: {number} of {there:?}");
            }
        }
        self.met.went_back += 1;
        self.met.unconfirmed += u64::from(!chosen.is_confirmed);
        self.go_on(workers, chosen.model.clone(), &format!("{when}, {:?}", chosen.numbers));
        assert_eq!(self.job.owners, chosen.owners, "{when}");
        self.last = Some(chosen);
    }

    /// Other stores are made of one of the checkpoints.
    fn divide(&mut self, when: &str) {
        let Some(last) = self.last.clone() else { return };
        self.job.workers.clear();
        let old = self.devices.clone();
        let (workers, seed) = (1 + self.dice.below(4), self.dice.next());
        let devices: Vec<_> = (0..workers).map(|at| device(seed + at)).collect();
        let opened = self.open(workers, &devices, |_, builder| {
            let source = |(device, number): (&Simulated, &u64)| {
                let device: Arc<dyn Device> = Arc::new(device.clone());
                Source::device(device).checkpoint(*number)
            };
            builder.restore_from(old.iter().zip(&last.numbers).map(source))
        });
        let opened = opened
            .unwrap_or_else(|error| panic!("{when}, {workers} of {:?}: {error:?}", last.numbers));
        self.met.divided += 1;
        self.begin_anew(devices, opened, last.model, &format!("{when}, {workers} workers"));
    }

    /// Other stores take what these export.
    fn import(&mut self, when: &str) {
        self.job.settle();
        let files: Vec<Vec<u8>> = self
            .job
            .workers
            .iter()
            .map(|worker| {
                let mut file = Vec::new();
                worker.store.export(&mut file).unwrap();
                file
            })
            .collect();
        let model = self.job.model.clone();
        self.job.workers.clear();
        let (workers, seed) = (1 + self.dice.below(4), self.dice.next());
        let devices: Vec<_> = (0..workers).map(|at| device(seed + at)).collect();
        let opened = self.open(workers, &devices, |_, builder| builder).unwrap();
        for worker in &opened {
            assert!(files.iter().all(|file| worker.store.import(&file[..]).is_ok()), "{when}");
        }
        self.met.imported += 1;
        self.begin_anew(devices, opened, model, &format!("{when}, imported by {workers}"));
    }

    /// Goes on in new directories, which have no checkpoint yet.
    fn begin_anew(
        &mut self,
        devices: Vec<Simulated>,
        workers: Vec<Worker>,
        model: Model,
        when: &str,
    ) {
        (self.devices, self.last) = (devices, None);
        self.snapshots.clear();
        self.go_on(workers, model, when);
        while self.last.is_none() {
            self.checkpoint();
        }
    }

    fn play(&mut self, rounds: u64, when: &str) {
        for round in 0..rounds {
            let when = format!("{when}, round {round}");
            for _ in 0..self.dice.below(60) {
                self.job.step();
                self.job.repeat_stale();
            }
            match self.dice.below(10) {
                0..=3 => self.checkpoint(),
                4..=7 => self.reopen(&when),
                8 => self.divide(&when),
                _ => self.import(&when),
            }
        }
        self.job.settle();
        self.job.check(when);
        self.met.moved += self.job.moved;
    }
}

#[test]
fn stores_have_what_the_model_has_whatever_came_before() {
    let long = std::env::var_os("ALLUVIUM_LONG").is_some();
    let (histories, first) = (if long { 500 } else { 2 }, times("ALLUVIUM_SEED", 1));
    for (name, layout) in layouts() {
        let mut all = Met::default();
        for seed in first..first + histories {
            let when = format!("{name}, seed {seed}");
            let mut history = History::new(&layout, seed << 20);
            history.play(if long { 60 } else { 30 }, &when);
            let Met { went_back, unconfirmed, plain, divided, imported, moved } = history.met;
            all.went_back += went_back;
            all.unconfirmed += unconfirmed;
            all.plain += plain;
            all.divided += divided;
            all.imported += imported;
            all.moved += moved;
        }
        println!("{name}: {all:?}");
        let Met { went_back, unconfirmed, plain, divided, imported, moved } = all;
        let rare = [went_back, unconfirmed, plain, divided, imported, moved];
        assert!(rare.iter().all(|count| *count > 0), "{name}: {all:?}");
    }
}
