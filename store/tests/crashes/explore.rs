//! Crashes at every step of a history, in many ways, and a recovery of what each leaves.
//!
//! The history is played once. Before each step its device shows what a crash in it would leave
//! ([`Simulated::watch`]), for each [`Class`] of crash; what differs from all that was there before, or
//! may be expected to, is opened and compared. What a crash leaves while a store recovers from another
//! crash is explored in the same way.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use alluvium::io::{CrashPolicy, Device, Faults, Lie, Moment, Simulated};
use alluvium::{Error, ErrorKind};

use crate::dice::Dice;
use crate::everything::{Everything, Model};
use crate::history::{History, Kept, Known, Promise, RETAINED, is_list, last_listed, lock};
use crate::open;

/// Of so many points within a recovery one is taken: much of it is removing what is left over.
const SHARE_AGAIN: u64 = 4;

/// What a crash does with what no sync covers, and with a write that some sync does.
#[derive(Clone, Copy, Debug)]
struct Class {
    policy: CrashPolicy,
    lie: Option<Lie>,
}

impl Class {
    /// Those of one step, with their names.
    fn all(dice: &mut Dice) -> Vec<(&'static str, Self)> {
        let mut all =
            vec![("none", CrashPolicy::Nothing), ("all that ended", CrashPolicy::Everything)];
        for _ in 0..2 {
            all.push(("prefix", CrashPolicy::Prefix { seed: dice.next() }));
        }
        for _ in 0..3 {
            all.push(("random", CrashPolicy::Subset { seed: dice.next() }));
            all.push(("torn", CrashPolicy::Torn { seed: dice.next() }));
        }
        let mut all: Vec<_> =
            all.into_iter().map(|(name, policy)| (name, Self { policy, lie: None })).collect();
        for (name, lie) in [
            ("lie: lost", Lie::Lost),
            ("lie: torn", Lie::Torn),
            ("lie: misdirected", Lie::Misdirected),
            ("lie: flipped", Lie::FlippedBit),
        ] {
            let seed = dice.next();
            let policy = match dice.below(3) {
                0 => CrashPolicy::Nothing,
                1 => CrashPolicy::Everything,
                _ => CrashPolicy::Torn { seed },
            };
            all.push((name, Self { policy, lie: Some(lie) }));
        }
        all
    }

    fn of(self, moment: &Moment<'_>, seed: u64) -> Option<Simulated> {
        match self.lie {
            Some(lie) => moment.crash_lying(self.policy, lie, seed),
            None => Some(moment.crash(self.policy)),
        }
    }
}

/// What a crash leaves, to be opened.
struct Point {
    image: Simulated,
    promise: Promise,
    /// Whether storage has kept what it said it has.
    honest: bool,
    /// Whether it is what a crash leaves of the recovery from another one.
    again: bool,
    class: &'static str,
    digest: u64,
    chance: u64,
    when: String,
}

/// Images that were shown before, each with what it may be and whether storage was honest.
type Seen = Arc<Mutex<HashSet<(bool, u64, Promise)>>>;

/// What a history shows.
struct Found {
    place: String,
    dice: Dice,
    /// One of so many points is taken.
    share: u64,
    again: bool,
    taken: BTreeMap<&'static str, u64>,
    /// Of the whole history.
    seen: Seen,
    points: Vec<Point>,
}

impl Found {
    fn of(place: String, dice: Dice, share: u64, seen: Seen) -> Self {
        let (taken, points) = (BTreeMap::new(), Vec::new());
        Self { place, dice, share, again: false, taken, seen, points }
    }

    fn look(&mut self, moment: &Moment<'_>, promise: &Promise) {
        let classes = Class::all(&mut self.dice);
        for (name, class) in classes {
            let chance = self.dice.next();
            if self.dice.below(self.share) > 0 {
                continue;
            }
            let Some(image) = class.of(moment, chance) else { continue };
            *self.taken.entry(name).or_default() += 1;
            let (honest, digest) = (class.lie.is_none(), image.digest());
            // What is right without a lie is right with one that makes no difference.
            let seen = &mut *lock(&self.seen);
            let strict = (true, digest, promise.clone());
            if seen.contains(&strict) || !seen.insert((honest, digest, promise.clone())) {
                continue;
            }
            let (place, step, words) = (&self.place, moment.step(), moment.words());
            let when = format!("{place}, step {step} ({words}), {class:?}, {chance}");
            let (promise, again, class) = (promise.clone(), self.again, name);
            let point = Point { image, promise, honest, again, class, digest, chance, when };
            self.points.push(point);
        }
    }
}

/// Names the point at which a panic came up.
struct Told<'a>(&'a str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the crash: {}", self.0);
        }
    }
}

/// What has been explored, and how it went.
#[derive(Default)]
pub struct Explorer {
    /// One of so many points is taken.
    share: u64,
    histories: u64,
    steps: u64,
    /// Errors of devices that their stores lived through.
    met: u64,
    /// Times that a job of a helper was stopped while its owner went on.
    interrupted: u64,
    /// Records that histories copied to an old generation of segments.
    copied: u64,
    /// Records that moved to sorted runs, and bytes that merges of these wrote.
    moved: u64,
    merged: u64,
    /// By class: crash points, and those that were opened as no other had left the same.
    classes: BTreeMap<&'static str, (u64, u64)>,
    /// Of the points: those within the recovery from another one.
    again: u64,
    /// Images that differ from all others.
    images: HashSet<u64>,
    /// Other checkpoints than the newest restored.
    others: u64,
    /// Second opens, to count what is left over.
    second: u64,
    /// Recovered stores that went on to the next checkpoint.
    went_on: u64,
    /// Times that the newest was one that was being confirmed.
    in_commit: u64,
    /// Lies that had no effect on what was read, and those that were told.
    harmless: u64,
    refused: u64,
}

impl Explorer {
    /// One that takes one of so many points.
    pub fn of_share(share: u64) -> Self {
        Self { share, ..Self::default() }
    }

    /// Crash points so far.
    pub fn points(&self) -> u64 {
        self.classes.values().map(|(points, _)| points).sum()
    }

    /// Whether all came up that must not be missed, however few points there are.
    pub fn has_all(&self) -> bool {
        let rare = [
            self.met,
            self.interrupted,
            self.copied,
            self.moved,
            self.merged,
            self.again,
            self.others,
            self.second,
            self.went_on,
            self.in_commit,
            self.harmless,
            self.refused,
        ];
        let is_opened = |(_, opened): &(u64, u64)| *opened > 0;
        self.classes.len() == 9
            && self.classes.values().all(is_opened)
            && rare.into_iter().all(|count| count > 0)
    }

    /// Explores one history.
    pub fn explore(&mut self, seed: u64) {
        let device = Simulated::new(seed, Faults::late(2));
        let mut history = History::of(seed);
        let mut found = Found::of(format!("seed {seed}"), Dice(seed), self.share, Seen::default());
        let explorer = Arc::new(Mutex::new(std::mem::take(self)));
        let (exploring, known) = (explorer.clone(), history.known());
        device.watch(move |moment| {
            // A panic is told once.
            if !std::thread::panicking() {
                let known = lock(&known).clone();
                found.look(moment, &known.promise);
                lock(&exploring).check_all(&mut found, &known);
            }
        });
        history.play(&device, seed).unwrap();
        *self = std::mem::take(&mut *lock(&explorer));
        self.histories += 1;
        self.steps += device.steps();
        self.met += history.met;
        self.interrupted += history.interrupted();
        self.copied += history.copied;
        self.moved += history.moved.0;
        self.merged += history.moved.1;
    }

    fn check_all(&mut self, found: &mut Found, known: &Known) {
        for (class, taken) in std::mem::take(&mut found.taken) {
            self.classes.entry(class).or_default().0 += taken;
            self.again += if found.again { taken } else { 0 };
        }
        for point in found.points.drain(..) {
            let _told = Told(&point.when);
            self.classes.entry(point.class).or_default().1 += 1;
            self.images.insert(point.digest);
            match point.honest {
                true => self.check(&point, known, &found.seen),
                false => self.check_lied(&point, known),
            }
        }
    }

    /// Opens what honest storage has left: a whole checkpoint and, for a share, those beside it.
    fn check(&mut self, point: &Point, known: &Known, seen: &Seen) {
        let Point { promise, when, .. } = point;
        let copy = || point.image.crash(CrashPolicy::Everything);
        let mut dice = Dice(point.chance);
        let device = copy();
        let mut all = opened(&device, None, when);
        let files = || device.list().unwrap().into_iter().collect::<BTreeSet<_>>();
        let before = files();
        let there = all.numbers();
        let last = last_listed(&device);
        let next = promise.others.iter().find(|other| is_list(other, &there, last));
        let listed = next.unwrap_or(&promise.listed);
        assert!(is_list(listed, &there, last), "{when}: {last:?} of {there:?} of {promise:?}");
        self.in_commit += u64::from(next.is_some());
        let newest = listed.last().copied();
        whole(&mut all, &known.model_of(newest), when);
        drop(all);
        if dice.below(8) == 0 {
            // Nothing is left over that nobody names, but what compaction has begun meanwhile.
            self.second += 1;
            let made = files().difference(&before).count() as u64;
            assert_eq!(opened(&device, None, when).store.leftovers(), made, "{when}");
        }
        // What is sealed is there until another manifest is.
        let undecided = if next.is_some() { &[][..] } else { &promise.undecided };
        let older = &listed[..listed.len().saturating_sub(1)];
        for kept in older.iter().chain(undecided) {
            if dice.below(4) == 0 {
                self.others += 1;
                let when = format!("{when}, checkpoint {}", kept.number);
                let mut all = opened(&copy(), Some(kept.number), &when);
                whole(&mut all, &known.model_of(Some(*kept)), &when);
            }
        }
        if dice.below(16) == 0 {
            self.go_on(copy(), listed, known, &mut dice, when);
        }
        let confirmed = undecided.last().copied().filter(|_| dice.below(32) == 0);
        if !point.again && (confirmed.is_some() || dice.below(128) == 0) {
            self.crash_again(point, listed, confirmed, known, seen);
        }
    }

    /// Crashes at the steps of the recovery too: from the newest, or from one that it confirms.
    fn crash_again(
        &mut self,
        point: &Point,
        listed: &[Kept],
        confirmed: Option<Kept>,
        known: &Known,
        seen: &Seen,
    ) {
        let device = point.image.crash(CrashPolicy::Everything);
        let next = confirmed.map(|kept| known.restored(&device, listed, kept));
        let others = next.into_iter().collect();
        let undecided = match confirmed {
            Some(_) => point.promise.undecided.clone(),
            None => Vec::new(),
        };
        let promise = Promise { listed: listed.to_vec(), others, undecided };
        let restore = confirmed.map(|kept| kept.number);
        let place = format!("{}, restoring {restore:?}", point.when);
        let found = Found::of(place, Dice(point.chance), SHARE_AGAIN, seen.clone());
        let found = Arc::new(Mutex::new(Found { again: true, ..found }));
        let looking = found.clone();
        device.watch(move |moment| lock(&looking).look(moment, &promise));
        drop(opened(&device, restore, &point.when));
        self.check_all(&mut lock(&found), known);
    }

    /// The recovered store takes another checkpoint, which is there after one more crash.
    fn go_on(
        &mut self,
        device: Simulated,
        listed: &[Kept],
        known: &Known,
        dice: &mut Dice,
        when: &str,
    ) {
        self.went_on += 1;
        let when = format!("{when}, and on");
        let mut model = Model::clone(&known.model_of(listed.last().copied()));
        let mut all = opened(&device, None, &when);
        all.changes(&mut model, dice, 20).unwrap();
        let new = all.store.checkpoint(0).unwrap().number;
        all.changes(&mut model.clone(), dice, 5).unwrap();
        drop(all);
        let device = device.crash(CrashPolicy::Torn { seed: dice.next() });
        let mut all = opened(&device, None, &when);
        let base = listed.last().map_or(0, |kept| kept.number);
        let past = listed.iter().map(|kept| kept.number).filter(|number| *number <= base);
        let mut expected: Vec<u64> = past.chain([new]).collect();
        expected.drain(..expected.len().saturating_sub(RETAINED));
        assert_eq!(all.numbers(), expected, "{when}");
        whole(&mut all, &model, &when);
    }

    /// Opens what lying storage has left: right, or an error that names the file.
    fn check_lied(&mut self, point: &Point, known: &Known) {
        let Point { promise, when, .. } = point;
        let mut dice = Dice(point.chance);
        let older = promise.listed.iter().rev().skip(1).chain(&promise.undecided);
        // Those that are there whatever the manifest is.
        let older: Vec<Kept> = older.copied().filter(|_| promise.others.is_empty()).collect();
        let other = (!older.is_empty() && dice.below(4) == 0)
            .then(|| older[dice.below(older.len() as u64) as usize]);
        for restore in std::iter::once(None).chain(other.map(Some)) {
            let device = point.image.crash(CrashPolicy::Everything);
            let errors = match open(&device, restore.map(|kept| kept.number)) {
                Err(error) => vec![error],
                Ok(mut all) => {
                    let newest = last_listed(&device);
                    let lists = std::iter::once(&promise.listed).chain(&promise.others);
                    let mut newest_of = lists.map(|list| list.last().copied());
                    let same = |kept: &Option<Kept>| kept.map(|kept| kept.number) == newest;
                    let found = match restore {
                        Some(kept) => Some(kept),
                        None => newest_of
                            .find(|kept| same(kept))
                            .unwrap_or_else(|| panic!("{when}: {newest:?} of {promise:?}")),
                    };
                    all.compare(&known.model_of(found), when)
                }
            };
            for error in &errors {
                let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                assert!(error.context("file").is_some(), "{when}: {error:?}");
            }
            *if errors.is_empty() { &mut self.harmless } else { &mut self.refused } += 1;
        }
    }
}

impl fmt::Display for Explorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            histories,
            steps,
            met,
            interrupted,
            copied,
            moved,
            merged,
            again,
            others,
            second,
            went_on,
            in_commit,
            ..
        } = self;
        let (points, images, classes) = (self.points(), self.images.len(), &self.classes);
        let opened: u64 = classes.values().map(|(_, opened)| opened).sum();
        let (harmless, refused) = (self.harmless, self.refused);
        write!(
            f,
            "{histories} histories of {steps} steps, {met} errors lived through, {interrupted} times a job of a helper stopped, \
             {copied} records copied to an old generation, {moved} moved to runs, of which merges wrote {merged} bytes: {points} crash points ({again} within a \
             recovery), {images} images that differ, {opened} opened (by class, points and opened: \
             {classes:?}); the newest was in commit {in_commit} times; {others} times another \
             checkpoint restored, {second} times opened again, {went_on} times used further; \
             lies: {harmless} times right, {refused} times refused"
        )
    }
}

fn opened(device: &Simulated, restore: Option<u64>, when: &str) -> Everything {
    open(device, restore).unwrap_or_else(|error: Error| panic!("{when}: {error:?}"))
}

fn whole(all: &mut Everything, model: &Model, when: &str) {
    let errors = all.compare(model, when);
    assert!(errors.is_empty(), "{when}: {errors:?}");
}
