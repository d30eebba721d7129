//! A history that can go on in another process: what its n-th change does follows from its seed and n,
//! and the position of a checkpoint is how many changes it has. So the model of any checkpoint is made
//! anew, by playing the same changes where nothing goes wrong.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use alluvium::io::{Faults, Simulated};
use alluvium::{Error, ErrorKind, MIB, Result, Store, StoreBuilder};

use crate::dice::Dice;
use crate::everything::{Everything, Model, builder};
use crate::states::{self, Lines, States};
use crate::trouble::Trouble;

/// Steps of a checkpoint between which there are changes.
const STEPS_MAX: u64 = 60;

/// The chance of the change `at`.
pub fn chance(seed: u64, at: u64) -> Dice {
    Dice(Dice(seed).next().wrapping_add(at.wrapping_mul(0x9E37_79B9)))
}

/// Some states of one store, which changes are made to, and what they should hold.
pub trait Subject: Sized {
    type Model: Clone;

    /// Opens it on a device, as `builder` says.
    fn open(builder: StoreBuilder) -> Result<Self>;
    /// One where nothing goes wrong, and what it should hold.
    fn twin(seed: u64) -> (Self, Self::Model);
    /// Goes on from what was restored, which is this.
    fn resume(&mut self, model: &Self::Model);
    /// Which errors it makes calls again after.
    fn outlasts(&mut self, trouble: Trouble);
    fn is_of_trouble(&mut self, error: &Error) -> bool;
    /// Errors that it has lived through.
    fn met(&self) -> u64;
    fn store(&self) -> &Store;
    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()>;
    /// All is as the model says, or an error says that it cannot be read. Of no further use then.
    fn compare(&mut self, model: &Self::Model, when: &str) -> Vec<Error>;
}

impl Subject for Everything {
    type Model = Model;

    fn open(builder: StoreBuilder) -> Result<Self> {
        Everything::open(builder)
    }

    fn twin(seed: u64) -> (Self, Model) {
        let device = Simulated::new(seed, Faults::none());
        (Everything::open(builder(&device)).expect("nothing goes wrong"), Model::default())
    }

    fn resume(&mut self, _: &Model) {}

    fn outlasts(&mut self, trouble: Trouble) {
        self.trouble = trouble;
    }

    fn is_of_trouble(&mut self, error: &Error) -> bool {
        self.trouble.is_of_it(error)
    }

    fn met(&self) -> u64 {
        self.trouble.met()
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn change(&mut self, model: &mut Model, dice: &mut Dice) -> Result<()> {
        Everything::change(self, model, dice)
    }

    fn compare(&mut self, model: &Model, when: &str) -> Vec<Error> {
        Everything::compare(self, model, when)
    }
}

/// The states of the fixtures: more primitives, shapes of windows and types. What they should hold is
/// what others hold that have played the same history on the heap and were never opened again.
pub struct Fixtures {
    states: States,
    trouble: Rc<RefCell<Trouble>>,
}

/// So many changes of a history, and the time they came to.
#[derive(Clone)]
pub struct Played {
    seed: u64,
    position: u64,
    now: i64,
    /// All that is there then, once that was asked for.
    expected: OnceCell<Lines>,
}

impl Played {
    fn expected(&self) -> &Lines {
        self.expected.get_or_init(|| {
            let (mut twin, mut played) = Fixtures::twin(self.seed);
            for at in 0..self.position {
                let mut chance = chance(self.seed, at);
                twin.change(&mut played, &mut chance).expect("nothing goes wrong");
            }
            twin.states.lines().expect("nothing goes wrong")
        })
    }
}

impl Subject for Fixtures {
    type Model = Played;

    fn open(builder: StoreBuilder) -> Result<Self> {
        let states = States::open(builder.memory(16 * MIB), false)?;
        Ok(Self { states, trouble: Rc::new(RefCell::new(Trouble::none())) })
    }

    fn twin(seed: u64) -> (Self, Played) {
        let builder = states::builder(Store::in_memory());
        let states = States::open(builder, true).expect("nothing goes wrong");
        let twin = Self { states, trouble: Rc::new(RefCell::new(Trouble::none())) };
        (twin, Played { seed, position: 0, now: 0, expected: OnceCell::new() })
    }

    fn resume(&mut self, model: &Played) {
        self.states.now = model.now;
    }

    fn outlasts(&mut self, trouble: Trouble) {
        *self.trouble.borrow_mut() = trouble;
        let trouble = self.trouble.clone();
        self.states.again = Box::new(move |error| trouble.borrow_mut().is_of_it(error));
    }

    fn is_of_trouble(&mut self, error: &Error) -> bool {
        self.trouble.borrow_mut().is_of_it(error)
    }

    fn met(&self) -> u64 {
        self.trouble.borrow().met()
    }

    fn store(&self) -> &Store {
        &self.states.store
    }

    fn change(&mut self, model: &mut Played, dice: &mut Dice) -> Result<()> {
        self.states.change(dice, &mut Vec::new())?;
        (model.position, model.now) = (model.position + 1, self.states.now);
        model.expected = OnceCell::new();
        Ok(())
    }

    fn compare(&mut self, model: &Played, when: &str) -> Vec<Error> {
        self.resume(model);
        let expected = model.expected();
        match self.states.lines() {
            Ok(found) => {
                let only = |these: &[String], those: &[String]| -> Vec<String> {
                    let those: BTreeSet<_> = those.iter().collect();
                    let only = these.iter().filter(|line| !those.contains(line));
                    only.take(10).cloned().collect()
                };
                let (more, less) = (only(&found, expected), only(expected, &found));
                assert!(
                    found == *expected,
                    "{when}: after {} changes {more:?} instead of {less:?}",
                    model.position
                );
                Vec::new()
            }
            Err(error) => vec![error],
        }
    }
}

/// What the states hold after so many changes.
pub struct Replay<S: Subject> {
    seed: u64,
    all: S,
    model: S::Model,
    position: u64,
    /// Those that were asked for.
    known: BTreeMap<u64, Rc<S::Model>>,
}

impl<S: Subject> Replay<S> {
    pub fn of(seed: u64) -> Self {
        let (all, model) = S::twin(seed);
        Self { seed, all, model, position: 0, known: BTreeMap::new() }
    }

    pub fn to(&mut self, position: u64) -> Rc<S::Model> {
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

pub struct Job<S: Subject> {
    seed: u64,
    all: S,
    model: S::Model,
    position: u64,
    /// Checkpoints that could not have all that they should, as they said.
    overtaken: u64,
}

impl<S: Subject> Job<S> {
    /// Opens the store, trying again as long as it is trouble that it fails by.
    pub fn open(
        seed: u64,
        builder: impl Fn() -> StoreBuilder,
        mut trouble: Trouble,
        replay: &mut Replay<S>,
    ) -> Result<Self> {
        let mut all = trouble.outlast(|| S::open(builder()))?;
        all.outlasts(trouble);
        let position = all.store().restored_position().unwrap_or(0);
        let model = S::Model::clone(&replay.to(position));
        all.resume(&model);
        Ok(Self { seed, all, model, position, overtaken: 0 })
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    /// Errors that were lived through.
    pub fn met(&self) -> u64 {
        self.all.met()
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
        let mut seal = match self.all.store().seal(position) {
            Err(error) if self.all.is_of_trouble(&error) => return Ok(()),
            seal => seal?,
        };
        let give_up = (dice.below(6) == 0).then(|| dice.below(20));
        let mut steps = 0;
        loop {
            match seal.advance() {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if self.all.is_of_trouble(&error) => {
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
                match seal.confirm_step() {
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
            Err(error) if self.all.is_of_trouble(&error) => {}
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
    pub fn check<S: Subject>(
        &mut self,
        builder: impl Fn() -> StoreBuilder,
        replay: &mut Replay<S>,
        dice: &mut Dice,
        when: &str,
    ) -> u64 {
        let mut all = S::open(builder()).unwrap_or_else(|error| panic!("{when}: {error:?}"));
        let listed: Vec<_> = {
            let listed = all.store().checkpoints();
            listed.iter().map(|one| (one.checkpoint.number, one.checkpoint.position)).collect()
        };
        let newest = listed.last().copied();
        let is_known = newest == self.confirmed || newest.is_some_and(|n| self.others.contains(&n));
        assert!(is_known, "{when}: {listed:?} of {self:?}");
        // It is what the next one goes on from.
        *self = Self { confirmed: newest, others: Vec::new() };
        let position = newest.map(|(_, position)| position);
        assert_eq!(all.store().restored_position(), position, "{when}");
        let errors = all.compare(&replay.to(position.unwrap_or(0)), when);
        assert!(errors.is_empty(), "{when}: {errors:?}");
        drop(all);
        let mut compared = 1;
        for (number, position) in listed.iter().rev().skip(1) {
            if dice.below(4) == 0 {
                let when = format!("{when}, checkpoint {number}");
                let mut all = S::open(builder().restore(*number)).expect(&when);
                let errors = all.compare(&replay.to(*position), &when);
                assert!(errors.is_empty(), "{when}: {errors:?}");
                compared += 1;
            }
        }
        // The next open goes on from what was restored last.
        if let Some((number, _)) = newest.filter(|_| compared > 1) {
            drop(S::open(builder().restore(number)).expect(when));
        }
        compared
    }
}
