//! Checkpoints of stores between which key groups move, committed together: whatever was going on when
//! power was lost, what is restored is what the job had when the checkpoint was sealed, each key in one
//! store.
//!
//! What this catches: groups that two checkpoints say they have, or none; entries of a group that had
//! left and was not removed in full; a checkpoint of a group that is on its way; what was forgotten or
//! installed while a checkpoint was written; a restart on other workers that looks for a group in the
//! store that owned it first.

use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::io::{CrashPolicy, Device, Simulated};
use alluvium::moving::{KeyGroup, KeyGroups, Source, Standing};
use alluvium::{AnyLayout, ErrorKind, Heap};

use crate::dice::{Dice, times};
use crate::job::GROUPS;
use crate::moving_job::{CHUNK, Job, Model, WORKERS, device, layouts, open, open_as};

/// What the job has committed: as its record would, in one step.
struct Record {
    /// Of each store.
    numbers: Vec<u64>,
    model: Model,
    owners: Vec<usize>,
}

struct Sealing {
    seals: Vec<Seal>,
    record: Option<Record>,
}

/// A job on devices that lose power.
struct Run {
    layout: AnyLayout,
    devices: Vec<Simulated>,
    job: Job,
    sealing: Option<Sealing>,
    record: Option<Record>,
    dice: Dice,
    refused: u64,
    /// Checkpoints taken of a job some of whose groups were not where they began.
    away: u64,
    /// The same, while a group was being forgotten.
    going: u64,
}

impl Run {
    fn new(layout: &AnyLayout, seed: u64) -> Self {
        let devices: Vec<_> = (0..WORKERS).map(|at| device(seed + at)).collect();
        let workers =
            (0..WORKERS).zip(&devices).map(|(at, device)| open(layout, at, WORKERS, device));
        let job = Job::of(workers.map(Result::unwrap).collect(), Model::default(), seed);
        let (sealing, record, dice) = (None, None, Dice(!seed));
        let layout = layout.clone();
        Self { layout, devices, job, sealing, record, dice, refused: 0, away: 0, going: 0 }
    }

    /// Begins a checkpoint of all stores, unless a group is on its way.
    fn seal(&mut self) {
        let mut seals = Vec::new();
        for worker in &self.job.workers {
            match worker.store.seal(1) {
                Ok(seal) => seals.push(seal),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                    assert!(error.to_string().contains("is on its way"), "{error}");
                    self.refused += 1;
                    return;
                }
            }
        }
        let has = |worker: &crate::moving_job::Worker, standing| {
            let mut all = (0..GROUPS).map(KeyGroup);
            all.any(|group| worker.mover.standing(group).unwrap() == standing)
        };
        self.away +=
            u64::from(self.job.workers.iter().any(|w| !w.store.moved_units().unwrap().is_empty()));
        self.going += u64::from(self.job.workers.iter().any(|w| has(w, Standing::Going)));
        let record = Some(Record {
            numbers: seals.iter().map(Seal::number).collect(),
            model: self.job.model.clone(),
            owners: self.job.owners.clone(),
        });
        self.sealing = Some(Sealing { seals, record });
    }

    /// A share of what the checkpoint under way needs, of one of the stores.
    fn advance(&mut self) {
        let Some(Sealing { seals, record }) = &mut self.sealing else { return };
        let at = self.dice.below(seals.len() as u64) as usize;
        if record.is_some() {
            let mut advanced = seals[at].advance();
            if let Ok(true) = advanced {
                advanced = seals.iter_mut().try_fold(true, |all, seal| Ok(seal.advance()? && all));
            }
            match advanced {
                Ok(true) => {
                    seals.iter_mut().for_each(Seal::keep);
                    self.record = record.take();
                }
                Ok(false) => {}
                Err(error) => panic!("memory has room for all that dies as groups go: {error:?}"),
            }
        } else if seals[at].confirm_step().unwrap().is_some() {
            drop(seals.swap_remove(at));
        }
        if seals.is_empty() {
            self.sealing = None;
        }
    }

    /// Power is lost; as many workers go on, or others are made of them.
    fn crash(&mut self, workers: u64) {
        let seed = self.dice.next();
        let policies = [
            CrashPolicy::Nothing,
            CrashPolicy::Everything,
            CrashPolicy::Prefix { seed },
            CrashPolicy::Torn { seed },
        ];
        let policy = policies[self.dice.below(4) as usize];
        let old: Vec<_> = self.devices.iter().map(|device| device.crash(policy)).collect();
        let layout = self.layout.clone();
        let Some(record) = &self.record else {
            let refused = self.refused;
            let (away, going) = (self.away, self.going);
            *self = Self { refused, away, going, ..Self::new(&layout, seed) };
            return;
        };
        let is_as_before = workers as usize == old.len();
        let open = |(at, device): (u64, &Simulated)| {
            let opened = open_as(&layout, at, workers, device, |builder| {
                if is_as_before {
                    return builder.restore(record.numbers[at as usize]);
                }
                let source = |(device, number): (&Simulated, &u64)| {
                    let device: Arc<dyn Device> = Arc::new(device.clone());
                    Source::device(device).checkpoint(*number)
                };
                builder.restore_from(old.iter().zip(&record.numbers).map(source))
            });
            opened.unwrap()
        };
        let devices = match is_as_before {
            true => old.clone(),
            false => (0..workers).map(|at| device(seed + at)).collect(),
        };
        let opened = (0..workers).zip(&devices).map(open).collect();
        let mut job = Job::of(opened, record.model.clone(), seed);
        match is_as_before {
            true => assert_eq!(job.owners, record.owners),
            false => assert!(job.workers.iter().all(|w| w.store.moved_units().unwrap().is_empty())),
        }
        job.settle();
        job.check("restored");
        // What is written after a restart is on other devices, with numbers of their own.
        (self.sealing, self.job, self.devices) = (None, job, devices);
        if !is_as_before {
            self.record = None;
            while self.record.is_none() {
                self.seal();
                while self.sealing.is_some() {
                    self.advance();
                }
            }
        }
    }
}

#[test]
fn what_is_restored_has_each_key_once_wherever_its_group_was() {
    let rounds = times("ALLUVIUM_ROUNDS", 25);
    for (name, layout) in layouts() {
        let mut run = Run::new(&layout, 77);
        for round in 0..rounds {
            for _ in 0..20 + run.dice.below(120) {
                run.job.step();
                match run.sealing {
                    Some(_) => (0..run.dice.below(4)).for_each(|_| run.advance()),
                    None if run.dice.below(4) == 0 => run.seal(),
                    None => {}
                }
                // Now and then those under way come to their ends.
                run.job.is_busy =
                    run.sealing.is_some() || run.dice.below(40) > 0 && run.job.is_busy;
            }
            let workers = match round % 4 {
                3 => 1 + run.dice.below(4),
                _ => run.devices.len() as u64,
            };
            run.crash(workers);
        }
        let Run { refused, away, going, .. } = run;
        println!("{name}: {refused} refused, {away} away, {going} while a group was forgotten");
        assert!(refused > 5 && away > 5 && going > 3, "{name}: {refused} {away} {going}");
    }
}

/// A checkpoint says which groups each state has; opened without its mover it is refused by name, as is
/// one of states that moved apart.
#[test]
fn what_has_moved_is_told_and_opened_with_its_mover() {
    for (name, layout) in layouts() {
        let devices: Vec<_> = (0..WORKERS).map(|at| device(at + 3)).collect();
        let workers =
            (0..WORKERS).zip(&devices).map(|(at, device)| open(&layout, at, WORKERS, device));
        let mut job = Job::of(workers.map(Result::unwrap).collect(), Model::default(), 5);
        (0..3_000).for_each(|_| job.write());
        job.bring(KeyGroup(0), 2);
        job.bring(KeyGroup(5), 2);
        let has = |at: usize| job.workers[at].store.moved_units().unwrap();
        let unit = |groups: &[u16]| {
            let groups = groups.iter().copied().map(KeyGroup).collect::<KeyGroups>();
            vec![("unit".to_owned(), groups)]
        };
        assert_eq!(has(0), unit(&[1, 2, 3]), "{name}");
        assert_eq!(has(1), unit(&[4, 6, 7]), "{name}");
        assert_eq!(has(2), unit(&[0, 5, 8, 9, 10, 11]), "{name}");
        job.workers.iter().for_each(|worker| assert!(worker.store.checkpoint(1).is_ok()));
        let model = job.model.clone();
        drop(job);
        // Opened to stay, one of them is not what it says.
        let store = crate::job::builder(&layout)
            .owned_groups(0..4)
            .device(Arc::new(devices[0].clone()))
            .open()
            .unwrap();
        let error = store.map::<u64, Vec<u8>>("map").open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(
            error.to_string().contains("has key groups 1..4 of the state, not 0..4"),
            "{error}"
        );
        drop(store);
        let opened =
            (0..WORKERS).zip(&devices).map(|(at, device)| open(&layout, at, WORKERS, device));
        let mut job = Job::of(opened.map(Result::unwrap).collect(), model.clone(), 5);
        job.check(name);
        // The group moves on from there, and home.
        job.bring(KeyGroup(0), 1);
        job.bring(KeyGroup(5), 1);
        job.bring(KeyGroup(0), 0);
        job.check(name);
        assert!(job.workers.iter().all(|worker| worker.store.moved_units().unwrap().is_empty()));
        // Without one of those that have a group, a store of all is not made.
        job.bring(KeyGroup(3), 2);
        job.workers.iter().for_each(|worker| assert!(worker.store.checkpoint(2).is_ok()));
        drop(job);
        let source = |at: usize| Source::device(Arc::new(devices[at].clone()));
        let few = crate::job::builder(&layout)
            .owned_groups(0..4)
            .device(Arc::new(device(90)))
            .restore_from([source(0), source(1)])
            .open()
            .unwrap_err();
        assert_eq!(few.kind(), ErrorKind::Mismatch, "{few}");
        assert!(
            few.to_string().contains("key groups 3..4 are in none of the checkpoints"),
            "{few}"
        );
    }
}

/// A state that was not open when the others moved has other groups than these.
#[test]
fn states_that_moved_apart_do_not_move_together() {
    let layout: AnyLayout = Heap::new().into();
    let [here, there] = [1, 2].map(device);
    let open_both = |at: u64, device: &Simulated| open(&layout, at, WORKERS, device).unwrap();
    let (first, second) = (open_both(0, &here), open_both(1, &there));
    assert!([&first, &second].iter().all(|worker| worker.store.checkpoint(1).is_ok()));
    drop((first, second));
    let open_map = |owned, device: &Simulated| {
        let device = Arc::new(device.clone());
        let store = crate::job::builder(&layout).owned_groups(owned).device(device).open().unwrap();
        let mover = store.mover("unit").unwrap();
        let map = store.map::<u64, Vec<u8>>("map").moved_by(&mover).open().unwrap();
        (store, mover, map)
    };
    let ((store, from, map), (to_store, to, _map)) =
        (open_map(0..4, &here), open_map(4..8, &there));
    let mut rest = from.begin(KeyGroup(2)).unwrap();
    while let Some(chunk) = from.next_chunk(&mut rest, CHUNK).unwrap() {
        to.install(&chunk).unwrap();
    }
    while !from.forget(KeyGroup(2), 10).unwrap() {}
    assert!([&store, &to_store].iter().all(|store| store.checkpoint(2).is_ok()));
    drop((store, from, map, to_store, to, _map));
    let error = open(&layout, 0, WORKERS, &here).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.to_string().contains("it was not open when they moved"), "{error}");
}
