//! Real engines whose requests fail, or end when only a part of them is done, behind the trait of
//! devices: helper threads and io_uring alike. A call that fails is made again, and what is opened
//! afterwards without such errors is what was confirmed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use alluvium::io::{
    BLOCK_BYTES, Completion, Device, DirectIo, FileHandle, IoBuffer, IoStats, Operation, Request,
    ThreadPool, ThreadPoolOptions, Uring, UringOptions, run_blocking,
};
use alluvium::{Error, ErrorKind, Result};

use crate::children::Plan;
use crate::dice::{Dice, times};
use crate::everything::Everything;
use crate::history::lock;
use crate::job::{Fixtures, Found, Job, Replay, Subject};
use crate::joined::Joined;
use crate::long;
use crate::trouble::Trouble;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    /// Nothing is done.
    Before,
    /// A part is done.
    Midway,
    /// All is done, and the caller is told that it was not.
    After,
}

/// A device that fails now and then.
#[derive(Debug)]
struct Failing {
    device: Arc<dyn Device>,
    chance: Mutex<Chance>,
}

struct Chance {
    dice: Dice,
    /// One call of so many fails.
    of: u64,
    failed: BTreeMap<(&'static str, Failure), u64>,
}

impl std::fmt::Debug for Chance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chance").field("of", &self.of).field("failed", &self.failed).finish()
    }
}

impl Failing {
    fn roll(&self, call: &'static str, failures: &[Failure]) -> Option<Failure> {
        let chance = &mut *lock(&self.chance);
        if chance.dice.below(chance.of) > 0 {
            return None;
        }
        let failure = failures[chance.dice.below(failures.len() as u64) as usize];
        *chance.failed.entry((call, failure)).or_default() += 1;
        Some(failure)
    }

    fn error(&self, call: &str, name: &str) -> Error {
        let kinds = [ErrorKind::Io, ErrorKind::DiskFull];
        let kind = match call {
            "write" | "create" => kinds[lock(&self.chance).dice.below(2) as usize],
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("a {call} fails, as planned")).with("file", name)
    }

    /// A call that changes names.
    fn named<R>(
        &self,
        name: &str,
        call: &'static str,
        failures: &[Failure],
        make: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        match self.roll(call, failures) {
            None => make(),
            Some(Failure::Before | Failure::Midway) => Err(self.error(call, name)),
            Some(Failure::After) => make().and_then(|_| Err(self.error(call, name))),
        }
    }

    /// Does what comes before the failure, and tells of it.
    fn fail(&self, mut request: Request, call: &str, failure: Failure) {
        let whole = request.buffer.len();
        let some = match failure {
            Failure::Before => 0,
            Failure::Midway => whole / 2 / BLOCK_BYTES * BLOCK_BYTES,
            Failure::After => whole,
        };
        let (operation, file) = (request.operation, &request.file);
        if some > 0 {
            let mut part = IoBuffer::zeroed(some);
            part.as_mut_slice().copy_from_slice(&request.buffer.as_slice()[..some]);
            let (part, _) = run_blocking(&*self.device, file, operation, part);
            if matches!(operation, Operation::Read { .. }) {
                request.buffer.as_mut_slice()[..some].copy_from_slice(part.as_slice());
            }
        } else if operation == Operation::Sync && failure == Failure::After {
            let _ = run_blocking(&*self.device, file, operation, IoBuffer::empty());
        }
        let result = Err(self.error(call, &file.name()));
        let Request { buffer, token, reply, .. } = request;
        reply.send(Completion { token, buffer, result });
    }
}

impl Device for Failing {
    fn engine(&self) -> &'static str {
        self.device.engine()
    }

    fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    fn stats(&self) -> IoStats {
        self.device.stats()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.named(name, "create", &[Failure::Before], || self.device.create(name))
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        self.named(name, "open", &[Failure::Before], || self.device.open(name))
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.device.len(file)
    }

    fn submit(&self, request: Request) {
        use Failure::{After, Before, Midway};
        let (call, failures): (_, &[Failure]) = match request.operation {
            Operation::Read { .. } => ("read", &[Before, Midway, After]),
            Operation::Write { .. } => ("write", &[Before, Midway, After]),
            Operation::Sync => ("sync", &[Before, After]),
        };
        match self.roll(call, failures) {
            None => self.device.submit(request),
            Some(failure) => self.fail(request, call, failure),
        }
    }

    fn drive(&self) {
        self.device.drive();
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        let both = [Failure::Before, Failure::After];
        self.named(source, "rename", &both, || self.device.rename(source, target))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.named(name, "remove", &[Failure::Before], || self.device.remove(name))
    }

    fn sync_directory(&self) -> Result<()> {
        let both = [Failure::Before, Failure::After];
        self.named(".", "sync of the directory", &both, || self.device.sync_directory())
    }

    fn list(&self) -> Result<Vec<String>> {
        self.named(".", "list", &[Failure::Before], || self.device.list())
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock()
    }
}

type Open = fn(&Path, DirectIo) -> Result<Arc<dyn Device>>;

fn threads(directory: &Path, direct: DirectIo) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(ThreadPool::new(directory, ThreadPoolOptions { threads: 3, direct })?))
}

fn uring(directory: &Path, direct: DirectIo) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(Uring::new(directory, UringOptions { queue_depth: 16, direct })?))
}

#[test]
fn requests_of_real_engines_fail_and_are_made_again() {
    requests_fail::<Everything>();
}

#[test]
fn requests_of_all_kinds_of_windows_fail_and_are_made_again() {
    requests_fail::<Fixtures>();
}

#[test]
fn requests_of_windows_that_join_and_are_told_early_fail_and_are_made_again() {
    requests_fail::<Joined>();
}

fn requests_fail<S: Subject>() {
    let jobs = times("ALLUVIUM_JOBS", if long() { 300 } else { 1 });
    let first = times("ALLUVIUM_SEED", 1);
    for (engine, open) in [("threads", threads as Open), ("io_uring", uring as Open)] {
        let (mut met, mut compared) = (0, 0);
        let mut failed: BTreeMap<(&str, Failure), u64> = BTreeMap::new();
        for seed in first..first + jobs {
            let directory = tempfile::tempdir().unwrap();
            let mut dice = Dice(seed);
            let plan = Plan::by_chance(directory.path(), seed, &mut dice);
            let device = match open(directory.path(), plan.direct) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    println!("{engine}: skipped, as this machine has none: {error}");
                    break;
                }
                device => device.unwrap(),
            };
            let of = 60 + dice.below(200);
            let chance = Chance { dice: Dice(!seed), of, failed: BTreeMap::new() };
            let device = Arc::new(Failing { device, chance: Mutex::new(chance) });
            let mut replay = Replay::<S>::of(seed);
            let mut found = Found::default();
            let when = format!("{engine}, one of {of}, {plan:?}");
            for part in 1..=if long() { 3 } else { 2 } {
                let builder = || plan.builder().device(device.clone());
                let opened = Job::open(seed, builder, Trouble::outside(), &mut replay);
                let mut job = opened.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                let told = &mut |told| found.told(told);
                let done = job.run(&mut dice, 300 * part, told);
                done.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                met += job.met();
                drop(job);
                // Which of those begun it is, is not known before it is looked at.
                lock(&device.chance).of = u64::MAX;
                compared += found.check(
                    || plan.builder().device(device.clone()),
                    &mut replay,
                    &mut dice,
                    &when,
                );
                lock(&device.chance).of = of;
            }
            for (what, count) in &lock(&device.chance).failed {
                *failed.entry(*what).or_default() += count;
            }
        }
        println!(
            "{engine}: {jobs} jobs, {met} errors lived through, {compared} checkpoints compared; \
             failed calls: {failed:?}"
        );
        assert!(failed.is_empty() || met > 0, "{met} errors");
    }
}
