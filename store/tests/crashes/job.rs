//! A history that can go on in another process: what its n-th change does follows from its seed and n,
//! and the position of a checkpoint is how many changes it has. So the model of any checkpoint is made
//! anew, by playing the same changes where nothing goes wrong.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use alluvium::io::{Faults, Simulated};
use alluvium::{ErrorKind, Result, StoreBuilder};

use crate::dice::Dice;
use crate::everything::{Everything, Model, builder};
use crate::trouble::Trouble;

/// Steps of a checkpoint between which there are changes.
const STEPS_MAX: u64 = 60;

/// The chance of the change `at`.
fn chance(seed: u64, at: u64) -> Dice {
    Dice(Dice(seed).next().wrapping_add(at.wrapping_mul(0x9E37_79B9)))
}

/// What the states hold after so many changes.
pub struct Replay {
    seed: u64,
    all: Everything,
    model: Model,
    position: u64,
    /// Those that were asked for.
    known: BTreeMap<u64, Rc<Model>>,
}

impl Replay {
    pub fn of(seed: u64) -> Self {
        let device = Simulated::new(seed, Faults::none());
        let all = Everything::open(builder(&device)).expect("nothing goes wrong");
        Self { seed, all, model: Model::default(), position: 0, known: BTreeMap::new() }
    }

    pub fn to(&mut self, position: u64) -> Rc<Model> {
        if let Some(known) = self.known.get(&position) {
            return known.clone();
        }
        if position < self.position {
            let known = std::mem::take(&mut self.known);
            *self = Self { known, ..Self::of(self.seed) };
        }
        while self.position < position {
            let mut dice = chance(self.seed, self.position);
            self.all.change(&mut self.model, &mut dice).expect("nothing goes wrong");
            self.position += 1;
        }
        self.known.entry(position).or_insert_with(|| Rc::new(self.model.clone())).clone()
    }
}

/// What a job tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A checkpoint of this number and position may be found from now on.
    Confirming(u64, u64),
    /// It is found from now on.
    Confirmed(u64, u64),
}

pub struct Job {
    seed: u64,
    all: Everything,
    model: Model,
    position: u64,
    /// Checkpoints that could not have all that they should, as they said.
    overtaken: u64,
}

impl Job {
    /// Opens the store, trying again as long as it is trouble that it fails by.
    pub fn open(
        seed: u64,
        builder: impl Fn() -> StoreBuilder,
        mut trouble: Trouble,
        replay: &mut Replay,
    ) -> Result<Self> {
        let mut all = trouble.outlast(|| Everything::open(builder()))?;
        all.trouble = trouble;
        let position = all.store.restored_position().unwrap_or(0);
        Ok(Self { seed, all, model: Model::clone(&replay.to(position)), position, overtaken: 0 })
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    /// Errors that were lived through.
    pub fn met(&self) -> u64 {
        self.all.trouble.met()
    }

    /// Checkpoints that were overtaken by changes, and given up.
    pub fn overtaken(&self) -> u64 {
        self.overtaken
    }

    fn changes(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            let mut dice = chance(self.seed, self.position);
            self.all.change(&mut self.model, &mut dice)?;
            self.position += 1;
        }
        Ok(())
    }

    /// Some changes between two steps of a checkpoint; none once there were many, as a helper with a
    /// thread may take its time.
    fn meanwhile(&mut self, steps: u64, dice: &mut Dice) -> Result<()> {
        if steps >= STEPS_MAX {
            std::thread::sleep(Duration::from_micros(100));
            return Ok(());
        }
        self.changes(dice.below(3))
    }

    /// Changes and checkpoints, until so many changes were made in all.
    pub fn run(&mut self, dice: &mut Dice, until: u64, told: &mut dyn FnMut(Told)) -> Result<()> {
        while self.position < until {
            let many = [4, 15, 50, 150][dice.below(4) as usize];
            self.changes(many)?;
            self.checkpoint(dice, told)?;
        }
        Ok(())
    }

    /// Seals while the history goes on; then confirms, gives up, or leaves it undecided.
    fn checkpoint(&mut self, dice: &mut Dice, told: &mut dyn FnMut(Told)) -> Result<()> {
        let position = self.position;
        let mut seal = match self.all.store.seal(position) {
            Err(error) if self.all.trouble.is_of_it(&error) => return Ok(()),
            seal => seal?,
        };
        let give_up = (dice.below(6) == 0).then(|| dice.below(20));
        let mut steps = 0;
        loop {
            match seal.advance() {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if self.all.trouble.is_of_it(&error) => {
                    if dice.below(3) == 0 {
                        seal.abort();
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Overtaken => {
                    self.overtaken += 1;
                    seal.abort();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            self.meanwhile(steps, dice)?;
            steps += 1;
            if give_up == Some(steps) {
                seal.abort();
                return Ok(());
            }
        }
        self.changes(dice.below(5))?;
        match dice.below(12) {
            0 => {
                seal.abort();
                return Ok(());
            }
            1 => {
                seal.keep();
                return Ok(());
            }
            _ => {}
        }
        let number = seal.number();
        told(Told::Confirming(number, position));
        let confirmed = if dice.below(2) == 0 {
            loop {
                match seal.confirm_some() {
                    Ok(None) => {}
                    ended => break ended.map(drop),
                }
                self.meanwhile(steps, dice)?;
                steps += 1;
            }
        } else {
            seal.confirm().map(drop)
        };
        match confirmed {
            Ok(()) => told(Told::Confirmed(number, position)),
            // It may be the newest or not.
            Err(error) if self.all.trouble.is_of_it(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// What may be found once a job has ended, in whatever way.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The last one that was confirmed, if any was, and those begun to be confirmed since: each with
    /// its number and position.
    confirmed: Option<(u64, u64)>,
    others: Vec<(u64, u64)>,
}

impl Found {
    pub fn told(&mut self, told: Told) {
        match told {
            Told::Confirming(number, position) => self.others.push((number, position)),
            Told::Confirmed(number, position) => {
                self.confirmed = Some((number, position));
                self.others.clear();
            }
        }
    }

    /// Opens what is there, and compares it with the model; at times the older ones too. Gives the
    /// number of checkpoints that were compared.
    pub fn check(
        &mut self,
        builder: impl Fn() -> StoreBuilder,
        replay: &mut Replay,
        dice: &mut Dice,
        when: &str,
    ) -> u64 {
        let mut all =
            Everything::open(builder()).unwrap_or_else(|error| panic!("{when}: {error:?}"));
        let listed: Vec<_> = {
            let listed = all.store.checkpoints();
            listed.iter().map(|one| (one.checkpoint.number, one.checkpoint.position)).collect()
        };
        let newest = listed.last().copied();
        let is_known = newest == self.confirmed || newest.is_some_and(|n| self.others.contains(&n));
        assert!(is_known, "{when}: {listed:?} of {self:?}");
        // It is what the next one goes on from.
        *self = Self { confirmed: newest, others: Vec::new() };
        let position = newest.map(|(_, position)| position);
        assert_eq!(all.store.restored_position(), position, "{when}");
        let errors = all.compare(&replay.to(position.unwrap_or(0)), when);
        assert!(errors.is_empty(), "{when}: {errors:?}");
        drop(all);
        let mut compared = 1;
        for (number, position) in listed.iter().rev().skip(1) {
            if dice.below(4) == 0 {
                let when = format!("{when}, checkpoint {number}");
                let mut all = Everything::open(builder().restore(*number)).expect(&when);
                let errors = all.compare(&replay.to(*position), &when);
                assert!(errors.is_empty(), "{when}: {errors:?}");
                compared += 1;
            }
        }
        compared
    }
}
