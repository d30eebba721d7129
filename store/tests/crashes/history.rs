//! The history of one store, and what a crash at any moment of it may leave.
//!
//! The store is opened three times: from its last checkpoint, from an older one, or from one that
//! was sealed and never confirmed. A checkpoint that is asked for stays the last. In between, checkpoints are sealed while the stream goes on, given
//! up at some step, confirmed at once or in shares, or left undecided.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alluvium::Result;
use alluvium::checkpoints::Seal;
use alluvium::io::{CrashPolicy, Device, Simulated};
use alluvium_pagestore::{CheckpointImage, Helper, Manifest, Turns, checkpoint_of_file};

use crate::dice::Dice;
use crate::everything::{Everything, Model, builder};
use crate::restoring;
use crate::trouble::Trouble;

/// How many checkpoints a store keeps.
pub const RETAINED: usize = 3;

/// A checkpoint that can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    pub number: u64,
    /// What it holds: an index of [`Known::sealed`]. Numbers of checkpoints that were given up are
    /// given again.
    pub model: usize,
}

/// What may be found after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promise {
    /// Those that the manifest lists, in its order: the last is what an open finds.
    pub listed: Vec<Kept>,
    /// What is to replace that list, while it is replaced, and what was to and failed, since: any of
    /// them is right.
    pub others: Vec<Vec<Kept>>,
    /// Those sealed in full and not confirmed: each is there as long as `listed` is.
    pub undecided: Vec<Kept>,
}

impl Promise {
    /// The manifest has this list now.
    fn replaced(&mut self, listed: Vec<Kept>) {
        if self.listed != listed {
            self.undecided.clear();
        }
        self.listed = listed;
        self.others.clear();
    }

    /// The checkpoint of that number that an open may find.
    pub fn find(&self, number: u64) -> Option<Kept> {
        let mut either = self.listed.iter().chain(self.others.iter().flatten());
        either.find(|kept| kept.number == number).copied()
    }
}

/// How much happens between two checkpoints.
struct Size {
    usual: u64,
    /// More than the logs can note of one by one, if `usual` is not little.
    at_times: u64,
    /// While a checkpoint is sealed, per step of that.
    meanwhile: u64,
}

impl Size {
    /// One history of sixteen is large; of the others many fit into the time that one takes.
    fn of(seed: u64, dice: &mut Dice) -> Self {
        if seed.is_multiple_of(16) {
            return Self { usual: 100, at_times: 1200, meanwhile: 12 };
        }
        let usual = [6, 15, 40, 100][dice.below(4) as usize];
        Self { usual, at_times: 4 * usual, meanwhile: 1 + usual / 10 }
    }
}

/// What may be found after a crash, and what it holds.
#[derive(Clone, Default)]
pub struct Known {
    pub promise: Promise,
    /// What the checkpoints hold that were begun.
    sealed: Vec<Arc<Model>>,
    /// The same checkpoints.
    begun: Vec<Kept>,
}

/// What was done so far.
#[derive(Default)]
pub struct History {
    known: Arc<Mutex<Known>>,
    /// The checkpoint that the store goes on from.
    base: u64,
    /// Whether the device fails now and then.
    in_trouble: bool,
    /// Whether it keeps something else than it says: an open may find less than was promised.
    on_lies: bool,
    /// Those that the helper and the owner take, if it has a thread.
    turns: Option<Turns>,
    /// Errors of the device that were lived through.
    pub met: u64,
    /// Records that were copied to an old generation.
    pub copied: u64,
    /// Records that moved to sorted runs, and bytes that merges wrote.
    pub moved: (u64, u64),
}

pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// What a checkpoint holds; none holds nothing.
    pub fn model_of(&self, kept: Option<Kept>) -> Arc<Model> {
        kept.map_or_else(Arc::default, |kept| self.sealed[kept.model].clone())
    }

    /// What the manifest of a device is to list that has `listed`, once `last` is restored by its number:
    /// all that are whole, given up or not.
    pub fn restored(&self, device: &Simulated, listed: &[Kept], last: Kept) -> Vec<Kept> {
        let device = device.crash(CrashPolicy::Everything);
        let names: BTreeSet<String> = device.list().unwrap().into_iter().collect();
        let whole = names.iter().filter_map(|name| {
            let number = checkpoint_of_file(name)?;
            let image = CheckpointImage::parse(name, &device.bytes(name)?).ok()?;
            (image.number == number && image.files().all(|file| names.contains(&file)))
                .then_some(number)
        });
        let kept = |number: u64| {
            let mut known = self.promise.undecided.iter().chain(self.begun.iter().rev());
            *known.find(|kept| kept.number == number).expect("it was begun")
        };
        let is_listed = |number: &u64| listed.iter().any(|kept| kept.number == *number);
        let newest = listed.iter().map(|kept| kept.number).max().unwrap_or(0);
        let stays = |number: &u64| *number > newest || *number == last.number;
        let whole = whole.filter(|number| !is_listed(number) && stays(number));
        let others: Vec<_> = whole.map(kept).collect();
        let mut all: Vec<_> = listed.iter().copied().chain(others).collect();
        all.sort_by_key(|kept| (*kept == last, kept.number));
        all
    }
}

impl History {
    /// Every other one lives through errors of its device; every third one has a helper with a thread.
    pub fn of(seed: u64) -> Self {
        let turns = (seed % 3 == 2).then(|| Turns::new(seed));
        Self { in_trouble: seed.is_multiple_of(2), turns, ..Self::default() }
    }

    /// On a device that lies.
    pub fn on_lies() -> Self {
        Self { on_lies: true, ..Self::default() }
    }

    /// Times that a job of the helper was stopped while the owner went on.
    pub fn interrupted(&self) -> u64 {
        self.turns.as_ref().map_or(0, Turns::interrupted)
    }

    fn open(turns: Option<&Turns>, device: &Simulated, restore: Option<u64>) -> Result<Everything> {
        let builder = match turns {
            Some(turns) => builder(device).helper(Helper::in_turns(turns)?),
            None => builder(device),
        };
        Everything::open(restoring(builder, restore))
    }

    /// What a crash may leave, as it is at any moment.
    pub fn known(&self) -> Arc<Mutex<Known>> {
        self.known.clone()
    }

    /// Plays it until its end or an error that is not of the trouble it may have.
    pub fn play(&mut self, device: &Simulated, seed: u64) -> Result<()> {
        let mut dice = Dice(seed);
        let size = Size::of(seed, &mut dice);
        let mut trouble = match self.in_trouble {
            true => Trouble::with(device, seed),
            false => Trouble::none(),
        };
        if let Some(turns) = &self.turns {
            device.take_turns(turns);
        }
        let mut restore = None;
        for _ in 0..3 {
            let number = restore.map(|kept: Kept| kept.number);
            let mut all = trouble.outlast(|| Self::open(self.turns.as_ref(), device, number))?;
            self.opened(device, &all, restore);
            let mut model = {
                let known = lock(&self.known);
                let from = restore.or(known.promise.listed.last().copied());
                Model::clone(&known.model_of(from))
            };
            all.trouble = trouble;
            for _ in 0..1 + dice.below(4) {
                let many = if dice.below(4) == 0 { size.at_times } else { size.usual };
                all.trouble.may_begin();
                all.changes(&mut model, &mut dice, many)?;
                self.checkpoint(device, &mut all, &mut model, &mut dice, &size)?;
            }
            // What comes after the last checkpoint is lost with the next open.
            let mut lost = model.clone();
            all.changes(&mut lost, &mut dice, size.usual / 3)?;
            trouble = std::mem::replace(&mut all.trouble, Trouble::none());
            self.copied += all.copied();
            let (moved, merged) = all.moved_and_merged();
            self.moved = (self.moved.0 + moved, self.moved.1 + merged);
            drop(all);
            restore = self.choose(device, &mut dice);
        }
        trouble.end();
        self.met += trouble.met();
        Ok(())
    }

    /// What the next open restores; `None` for the last.
    fn choose(&self, device: &Simulated, dice: &mut Dice) -> Option<Kept> {
        let known = &mut *lock(&self.known);
        let promise = &known.promise;
        let older = promise.listed.len().saturating_sub(1) as u64;
        let chosen = match promise.undecided.last().copied() {
            _ if !promise.others.is_empty() => None,
            Some(last) if dice.below(2) == 0 => Some(last),
            _ if older > 0 && dice.below(4) == 0 => {
                Some(promise.listed[dice.below(older) as usize])
            }
            _ => None,
        };
        match chosen {
            Some(chosen) => {
                let next = known.restored(device, &promise.listed, chosen);
                known.promise.others.push(next);
            }
            // The open removes what nobody has confirmed.
            None => known.promise.undecided.clear(),
        }
        chosen
    }

    /// It goes on from the checkpoint `restored`, or the last of those that it lists.
    fn opened(&mut self, device: &Simulated, all: &Everything, restored: Option<Kept>) {
        let there = all.numbers();
        let last = last_listed(&device.crash(CrashPolicy::Everything));
        let promise = &mut lock(&self.known).promise;
        let mut lists = std::iter::once(&promise.listed).chain(&promise.others);
        let is_it = |list: &&Vec<Kept>| match self.on_lies {
            // What cannot be read any more is not among those that can be restored.
            true => {
                let is_listed = |number: &u64| list.iter().any(|kept| kept.number == *number);
                list.last().map(|kept| kept.number) == last && there.iter().all(is_listed)
            }
            false => is_list(list, &there, last),
        };
        let found = lists.find(is_it).cloned();
        let listed = found.unwrap_or_else(|| panic!("{there:?} of {promise:?}"));
        self.base = restored.or(listed.last().copied()).map_or(0, |kept| kept.number);
        promise.replaced(listed);
    }

    /// Seals while the stream goes on; then decides, or does not.
    fn checkpoint(
        &mut self,
        device: &Simulated,
        all: &mut Everything,
        model: &mut Model,
        dice: &mut Dice,
        size: &Size,
    ) -> Result<()> {
        all.trouble.may_begin();
        let mut seal = match all.store.seal(0) {
            Err(error) if all.trouble.is_of_it(&error) => return Ok(()),
            seal => seal?,
        };
        let kept = {
            let known = &mut *lock(&self.known);
            let kept = Kept { number: seal.number(), model: known.sealed.len() };
            known.sealed.push(Arc::new(model.clone()));
            known.begun.push(kept);
            kept
        };
        let give_up = (dice.below(4) == 0).then(|| dice.below(30));
        let mut steps = 0;
        loop {
            match seal.advance() {
                Ok(true) => break,
                Ok(false) => {}
                // Tried again, which not every part can.
                Err(error) if all.trouble.is_of_it(&error) => {
                    if dice.below(3) == 0 {
                        return give_up_in_full(seal, device, true);
                    }
                }
                Err(error) => return Err(error),
            }
            let few = dice.below(size.meanwhile);
            all.changes(model, dice, few)?;
            steps += 1;
            if give_up == Some(steps) {
                return give_up_in_full(seal, device, self.may_stay(&all.trouble));
            }
        }
        lock(&self.known).promise.undecided.push(kept);
        all.changes(model, dice, size.usual / 2)?;
        if give_up.is_some() {
            lock(&self.known).promise.undecided.pop();
            return give_up_in_full(seal, device, self.may_stay(&all.trouble));
        }
        if dice.below(5) == 0 {
            seal.keep();
            return Ok(());
        }
        let next = self.begin_to_confirm(kept);
        all.trouble.may_begin();
        let confirmed = if dice.below(2) == 0 {
            loop {
                match seal.confirm_step() {
                    Ok(None) => {}
                    ended => break ended.map(drop),
                }
                let few = dice.below(size.meanwhile);
                all.changes(model, dice, few)?;
            }
        } else {
            seal.confirm().map(drop)
        };
        let promise = &mut lock(&self.known).promise;
        match confirmed {
            Ok(()) => {
                promise.replaced(next);
                self.base = kept.number;
            }
            // It may be the newest or not.
            Err(error) if all.trouble.is_of_it(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether what was given up may be there: it could not be removed, or the helper is to do that.
    fn may_stay(&self, trouble: &Trouble) -> bool {
        trouble.is_on() || self.turns.is_some()
    }

    /// Gives the list that is to be when `kept` is confirmed.
    fn begin_to_confirm(&self, kept: Kept) -> Vec<Kept> {
        let promise = &mut lock(&self.known).promise;
        // Those that came after the one that was opened are not its past.
        let past = promise.listed.iter().filter(|listed| listed.number <= self.base);
        let mut next: Vec<Kept> = past.copied().chain([kept]).collect();
        next.drain(..next.len().saturating_sub(RETAINED));
        promise.others.push(next.clone());
        if self.in_trouble {
            // If it cannot be confirmed it is there only if it is the newest all the same.
            promise.undecided.pop();
        }
        next
    }
}

/// Whether these are the checkpoints of a list, by number, and this is what an open goes on from.
pub fn is_list(listed: &[Kept], numbers: &[u64], last: Option<u64>) -> bool {
    let mut listed: Vec<_> = listed.iter().map(|kept| kept.number).collect();
    let is_last = listed.last().copied() == last;
    listed.sort_unstable();
    is_last && listed == numbers
}

/// The checkpoint that an open goes on from, as the manifest says.
pub fn last_listed(device: &Simulated) -> Option<u64> {
    Some(Manifest::load(device).unwrap()?.checkpoints.last()?.number)
}

/// Gives a checkpoint up: no file is left that is only its own, unless it may be.
fn give_up_in_full(seal: Seal, device: &Simulated, may_stay: bool) -> Result<()> {
    let number = seal.number();
    seal.abort();
    let own = [format!("live-{number:016x}"), format!("checkpoint-{number:016x}")];
    let left = device.list()?.into_iter().find(|name| own.contains(name));
    assert!(left.is_none() || may_stay || device.has_crashed(), "{left:?} is left");
    Ok(())
}
