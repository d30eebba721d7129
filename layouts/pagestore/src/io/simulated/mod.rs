//! A device in memory that can fail, reorder and crash, all from one seed.
//!
//! Requests are held and take effect when they end, in seeded order: within `submit` if there is
//! no latency, else during later submits and [`drive`](Device::drive) calls. What goes wrong is
//! rolled ([`Faults`]) or scripted ([`Simulated::on_nth_write`] and its kin) when a request is
//! submitted. The device knows which writes a completed sync covers and which changes of names a
//! directory sync covers; [`Simulated::crash`] makes a new device of that and some of the rest.
//! [`Simulated::fail_after`] stops the device at a given step, so that a test can crash a store
//! at each step of its history; [`Simulated::watch`] shows what a crash at each step would leave, so
//! that one history is enough.
//!
//! Used by one thread, a device does the same for the same seed and calls. It is strict where
//! real devices are kind: a sync covers only writes that ended before it was submitted, and a new
//! file's name is lost unless the directory was synced, even if the file was.

mod crash;
mod disk;
mod faults;
mod lies;
mod moment;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::disk::{Change, Disk, SECTOR_BYTES};
use self::faults::{Aim, Dice};
use self::moment::Watcher;
use super::accepted::{Accepted, past_end};
use super::directory::check_name;
use super::stats::Counters;
use super::{Device, FileHandle, IoStats, Operation, Request};
use crate::{Error, ErrorKind, Result};

pub use crash::CrashPolicy;
pub use faults::{Fault, Faults};
pub use lies::Lie;
pub use moment::Moment;

/// A simulated [`Device`]; clones share it.
#[derive(Clone)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    counters: Arc<Counters>,
}

/// The state of a device.
struct World {
    disk: Disk,
    dice: Dice,
    faults: Faults,
    /// Faults by kind of operation and its number.
    scripts: BTreeMap<(Aim, u64), Fault>,
    /// Operations submitted so far, by kind.
    submitted: BTreeMap<Aim, u64>,
    held: Vec<Held>,
    /// Submits and drives so far: the clock of the held.
    tick: u64,
    steps: u64,
    steps_max: Option<u64>,
    crashed: bool,
    /// What was in flight when the device crashed.
    in_flight_at_crash: Vec<Change>,
    capacity_bytes: Option<u64>,
    locked: bool,
    /// Guards that keep the lock from being taken.
    readers: usize,
    trace: Option<Vec<String>>,
    watcher: Option<Watcher>,
}

/// A request that has not ended.
struct Held {
    accepted: Accepted,
    fault: Option<Fault>,
    /// When it ends: tick, then chance. `None`: it is stuck.
    due: Option<(u64, u64)>,
    /// What a sync covers.
    covers: u64,
}

/// An end to be told once the world is unlocked.
type End = (Accepted, Result<()>);

impl Simulated {
    /// An empty device.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::of(Disk::default(), seed, faults)
    }

    fn of(disk: Disk, seed: u64, faults: Faults) -> Self {
        let world = World {
            disk,
            dice: Dice::new(seed),
            faults,
            scripts: BTreeMap::new(),
            submitted: BTreeMap::new(),
            held: Vec::new(),
            tick: 0,
            steps: 0,
            steps_max: None,
            crashed: false,
            in_flight_at_crash: Vec::new(),
            capacity_bytes: None,
            locked: false,
            readers: 0,
            trace: None,
            watcher: None,
        };
        let counters = Arc::new(Counters::default());
        Self { world: Arc::new(Mutex::new(world)), counters }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A test that panicked elsewhere should fail with its own words.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what goes wrong with requests submitted from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Makes the `n`-th write submitted from now on (1: the next) go wrong.
    pub fn on_nth_write(&self, n: u64, fault: Fault) {
        self.world().script(Aim::Write, n, fault);
    }

    /// Makes the `n`-th read submitted from now on (1: the next) go wrong.
    pub fn on_nth_read(&self, n: u64, fault: Fault) {
        self.world().script(Aim::Read, n, fault);
    }

    /// Makes the `n`-th sync submitted from now on (1: the next) go wrong.
    pub fn on_nth_sync(&self, n: u64, fault: Fault) {
        self.world().script(Aim::Sync, n, fault);
    }

    /// Makes the `n`-th create, open, rename, remove or directory sync from now on (1: the next)
    /// go wrong.
    pub fn on_nth_directory_operation(&self, n: u64, fault: Fault) {
        self.world().script(Aim::Directory, n, fault);
    }

    /// Makes the device full once its files take `bytes`; `None` gives endless space. Removing
    /// files (and closing their handles) gives space back.
    pub fn set_capacity_bytes(&self, bytes: Option<u64>) {
        self.world().capacity_bytes = bytes;
    }

    /// Bytes that files take.
    pub fn used_bytes(&self) -> u64 {
        self.world().disk.used_bytes()
    }

    /// Requests that have not ended, stuck ones among them.
    pub fn in_flight(&self) -> usize {
        self.world().held.len()
    }

    /// Requests that are stuck.
    pub fn stuck(&self) -> usize {
        self.world().held.iter().filter(|held| held.due.is_none()).count()
    }

    /// Lets stuck requests end, well, at the next [`drive`](Device::drive) or submit.
    pub fn release_stuck(&self) {
        let world = &mut *self.world();
        for held in world.held.iter_mut().filter(|held| held.due.is_none()) {
            held.due = Some((world.tick, world.dice.next()));
            held.fault = None;
        }
    }

    /// Lets all requests that are not stuck end.
    pub fn drain(&self) {
        loop {
            let ends = self.world().advance(true);
            if ends.is_empty() {
                return;
            }
            finish(ends);
        }
    }

    /// Crashes the device after `steps` more steps: the next one fails, and so does everything
    /// after it. A step is a write, sync, create, rename, remove or directory sync, counted when
    /// it takes effect. 0 crashes at the next step.
    pub fn fail_after(&self, steps: u64) {
        let mut world = self.world();
        world.steps_max = Some(world.steps + steps);
    }

    /// Steps taken so far; see [`fail_after`](Self::fail_after).
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// Whether the device has crashed.
    pub fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// Starts to note each step in words, for [`trace`](Self::trace).
    pub fn start_trace(&self) {
        self.world().trace = Some(Vec::new());
    }

    /// The steps since [`start_trace`](Self::start_trace).
    pub fn trace(&self) -> Vec<String> {
        self.world().trace.clone().unwrap_or_default()
    }

    /// Shows `watcher` each step from now on, before it is taken. It must not use this device. The
    /// device keeps from now on what was written to each file.
    pub fn watch(&self, watcher: impl FnMut(&Moment<'_>) + Send + 'static) {
        let mut world = self.world();
        world.disk.keep_past();
        world.watcher = Some(Box::new(watcher));
    }

    /// A hash of the names and bytes of all files: the same for the same, and by chance only for
    /// others. Cost: a pass over all bytes.
    pub fn digest(&self) -> u64 {
        self.world().disk.digest()
    }

    /// A new device with what a crash now (or the crash that happened) leaves: no faults, no
    /// lock, nothing in flight. This device is not changed.
    #[must_use]
    pub fn crash(&self, policy: CrashPolicy) -> Self {
        let world = self.world();
        let mut in_flight = world.in_flight_at_crash.clone();
        in_flight.extend(world.held.iter().filter_map(|held| held.change()));
        let disk = world.disk.crash(policy, &in_flight);
        let seed = world.dice.clone().next();
        Self::of(disk, seed, Faults::none())
    }

    /// Live bytes of a file; `None` if there is no such file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        let file = world.disk.number_of(name, "read").ok()?;
        world.disk.live(file).ok().map(<[u8]>::to_vec)
    }

    /// Bytes of a file that a crash cannot take; its name it may take still.
    pub fn durable_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        let file = world.disk.number_of(name, "read").ok()?;
        world.disk.durable(file).ok().map(<[u8]>::to_vec)
    }

    /// Puts a file there, durable at once, replacing one of that name.
    pub fn place(&self, name: &str, bytes: &[u8]) {
        self.world().disk.place(name, Arc::new(bytes.to_vec()));
    }

    /// Flips bit `bit` (0 to 7) of the byte at `offset`.
    ///
    /// # Errors
    /// If there is no such file or byte.
    pub fn corrupt(&self, name: &str, offset: u64, bit: u32) -> Result<()> {
        let mut world = self.world();
        let file = world.disk.number_of(name, "corrupt")?;
        world.disk.flip(file, offset, bit)
    }

    /// Cuts a file to `len` bytes; a shorter one is left alone.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn truncate(&self, name: &str, len: u64) -> Result<()> {
        let mut world = self.world();
        let file = world.disk.number_of(name, "truncate")?;
        world.disk.truncate(file, len)
    }

    /// Does one operation on the directory. `words` name the step (`None`: it is none), `change`
    /// does it or, told that it is to be lost, does not; `attempted` is what a crash at this step
    /// may still have done.
    fn directory_operation<T>(
        &self,
        words: Option<String>,
        change: impl FnOnce(&mut Disk, bool) -> Result<T>,
        attempted: impl Fn(&Disk) -> Option<Change>,
    ) -> Result<T> {
        self.counters.count_directory_operation();
        let mut guard = self.world();
        let world = &mut *guard;
        let fault = world.choose_fault(Aim::Directory, 0, 0);
        match fault {
            Some(Fault::Error) => return Err(simulated_error("simulated directory error")),
            Some(Fault::DiskFull) => return Err(disk_full()),
            _ => {}
        }
        let step = words.map_or(Ok(()), |words| world.step(words, &attempted));
        if let Err(crash) = step {
            // Whether the change was made before the lights went out, no one knows.
            let attempted = attempted(&world.disk);
            let ends = world.crash_now(attempted);
            drop(guard);
            finish(ends);
            return Err(crash);
        }
        world.refuse_if_crashed()?;
        let lost = matches!(fault, Some(Fault::Lost | Fault::Torn { .. }));
        change(&mut world.disk, lost)
    }
}

impl Device for Simulated {
    fn engine(&self) -> &'static str {
        "simulated"
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn stats(&self) -> IoStats {
        self.counters.read()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        check_name(name)?;
        self.directory_operation(
            Some(format!("create {name}")),
            |disk, _| disk.create(name),
            |disk| disk.attempt_create(name),
        )
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        check_name(name)?;
        self.directory_operation(None, |disk, _| disk.open(name), |_| None)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        let world = self.world();
        world.refuse_if_crashed()?;
        world.disk.live(file.0.number).map(|bytes| bytes.len() as u64)
    }

    fn submit(&self, request: Request) {
        if let Some(accepted) = Accepted::accept(request, &self.counters) {
            let ends = self.world().submit(accepted);
            finish(ends);
        }
    }

    fn drive(&self) {
        let ends = self.world().advance(true);
        finish(ends);
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        check_name(source)?;
        check_name(target)?;
        self.directory_operation(
            Some(format!("rename {source} to {target}")),
            |disk, _| disk.rename(source, target),
            |disk| {
                let file = disk.number_of(source, "rename").ok()?;
                Some(Change::Name { name: target.into(), file })
            },
        )
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.directory_operation(
            Some(format!("remove {name}")),
            |disk, _| disk.remove(name),
            |disk| {
                disk.number_of(name, "remove").ok()?;
                Some(Change::Unname { name: name.into() })
            },
        )
    }

    fn sync_directory(&self) -> Result<()> {
        self.directory_operation(
            Some("sync the directory".to_owned()),
            |disk, lost| {
                if !lost {
                    disk.sync_names();
                }
                Ok(())
            },
            |_| None,
        )
    }

    fn list(&self) -> Result<Vec<String>> {
        let world = self.world();
        world.refuse_if_crashed()?;
        Ok(world.disk.list())
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        let mut world = self.world();
        world.refuse_if_crashed()?;
        world.refuse_if_locked()?;
        if world.readers > 0 {
            let message = "the simulated directory is being read";
            return Err(Error::new(ErrorKind::Locked, message));
        }
        world.locked = true;
        Ok(Box::new(LockGuard(Arc::clone(&self.world))))
    }

    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        let mut world = self.world();
        world.refuse_if_crashed()?;
        world.refuse_if_locked()?;
        world.readers += 1;
        Ok(Box::new(ReadGuard(Arc::clone(&self.world))))
    }
}

/// Lets the lock be taken again.
struct ReadGuard(Arc<Mutex<World>>);

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).readers -= 1;
    }
}

/// Gives the lock back.
struct LockGuard(Arc<Mutex<World>>);

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).locked = false;
    }
}

impl World {
    fn refuse_if_locked(&self) -> Result<()> {
        match self.locked {
            true => Err(Error::new(ErrorKind::Locked, "the simulated directory is in use")),
            false => Ok(()),
        }
    }

    fn script(&mut self, aim: Aim, n: u64, fault: Fault) {
        let before = self.submitted.get(&aim).copied().unwrap_or(0);
        self.scripts.insert((aim, before + n), fault);
    }

    /// What goes wrong with the next operation of this kind; scripts go before chance.
    fn choose_fault(&mut self, aim: Aim, len: usize, file_blocks: u64) -> Option<Fault> {
        let number = self.submitted.entry(aim).or_insert(0);
        *number += 1;
        let scripted = self.scripts.remove(&(aim, *number));
        scripted.or_else(|| self.faults.roll(aim, len, file_blocks, &mut self.dice))
    }

    /// Holds a request, and ends those that are due.
    fn submit(&mut self, accepted: Accepted) -> Vec<End> {
        if let Err(crash) = self.refuse_if_crashed() {
            return vec![(accepted, Err(crash))];
        }
        let file_bytes = self.disk.live(accepted.file().0.number).map_or(0, <[u8]>::len);
        let file_blocks = file_bytes.div_ceil(super::BLOCK_BYTES) as u64;
        let len = accepted.buffer().len();
        let fault = self.choose_fault(accepted.operation().into(), len, file_blocks);
        let latency = match self.faults.latency_max {
            0 => 0,
            most => self.dice.below(u64::from(most) + 1),
        };
        let due = (self.tick + latency, if latency == 0 { 0 } else { self.dice.next() });
        let due = (fault != Some(Fault::Stuck)).then_some(due);
        let covers = self.disk.now();
        self.held.push(Held { accepted, fault, due, covers });
        self.advance(false)
    }

    /// Ends what is due; if `at_least_one`, time goes on until something is.
    fn advance(&mut self, at_least_one: bool) -> Vec<End> {
        let mut ends = Vec::new();
        if at_least_one && let Some((earliest, _)) = self.held.iter().filter_map(|h| h.due).min() {
            self.tick = self.tick.max(earliest);
        }
        while let Some(at) = self.next_due() {
            let held = self.held.remove(at);
            ends.extend(self.end(held));
        }
        self.tick += 1;
        ends
    }

    /// Where the earliest request is that is due by now.
    fn next_due(&self) -> Option<usize> {
        let due = |(at, held): (usize, &Held)| held.due.map(|due| (due, at));
        let ((tick, _), at) = self.held.iter().enumerate().filter_map(due).min()?;
        (tick <= self.tick).then_some(at)
    }

    /// Lets one request take effect. If that is the step the device crashes at, all others end too.
    fn end(&mut self, mut held: Held) -> Vec<End> {
        let words = held.words();
        let step = match held.is_step() {
            true => self.step(words, &|_| held.change()),
            false => self.refuse_if_crashed(),
        };
        if let Err(crash) = step {
            let attempted = held.change();
            let mut ends = vec![(held.accepted, Err(crash))];
            ends.extend(self.crash_now(attempted));
            return ends;
        }
        let result = match held.accepted.operation() {
            Operation::Read { offset } => self.read(&mut held, offset),
            Operation::Write { offset } => self.write(&held, offset),
            Operation::Sync => self.sync(&held),
        };
        vec![(held.accepted, result)]
    }

    fn read(&mut self, held: &mut Held, offset: u64) -> Result<()> {
        let (mut from, mut len) = (offset, held.accepted.buffer().len());
        match held.fault {
            Some(Fault::Error) => return Err(simulated_error("simulated read error")),
            Some(Fault::DiskFull) => return Err(disk_full()),
            Some(Fault::Torn { bytes }) => len = len.min(bytes),
            Some(Fault::Lost) => len = 0,
            Some(Fault::Misdirected { offset }) => from = offset,
            _ => {}
        }
        let live = self.disk.live(held.accepted.file().0.number)?;
        let (start, end) = (from as usize, from as usize + len);
        let bytes = live.get(start..end).ok_or_else(|| past_end(live.len() as u64, end as u64))?;
        let (_, buffer) = held.accepted.file_and_buffer();
        buffer.as_mut_slice()[..len].copy_from_slice(bytes);
        if let Some(Fault::FlippedBit { bit }) = held.fault {
            flip(buffer.as_mut_slice(), bit);
        }
        Ok(())
    }

    fn write(&mut self, held: &Held, offset: u64) -> Result<()> {
        let file = held.accepted.file().0.number;
        let bytes = held.accepted.buffer().as_slice();
        self.check_space(file, offset + bytes.len() as u64)?;
        let sectors = |bytes: usize| bytes / SECTOR_BYTES * SECTOR_BYTES;
        match held.fault {
            Some(Fault::Error) => {
                let moved = sectors(self.dice.below(bytes.len() as u64 + 1) as usize);
                self.disk.write(file, offset, &bytes[..moved])?;
                Err(simulated_error("simulated write error"))
            }
            Some(Fault::DiskFull) => Err(disk_full()),
            Some(Fault::Lost) => Ok(()),
            Some(Fault::Torn { bytes: moved }) => {
                self.disk.write(file, offset, &bytes[..sectors(moved.min(bytes.len()))])
            }
            Some(Fault::Misdirected { offset }) => self.disk.write(file, offset, bytes),
            Some(Fault::FlippedBit { bit }) => {
                let mut wrong = bytes.to_vec();
                flip(&mut wrong, bit);
                self.disk.write(file, offset, &wrong)
            }
            Some(Fault::Stuck) | None => self.disk.write(file, offset, bytes),
        }
    }

    fn sync(&mut self, held: &Held) -> Result<()> {
        let file = held.accepted.file().0.number;
        self.disk.live(file)?;
        match held.fault {
            Some(Fault::Error) => {
                self.disk.fail_sync(file, held.covers);
                return Err(simulated_error("simulated sync error"));
            }
            Some(Fault::DiskFull) => {
                self.disk.fail_sync(file, held.covers);
                return Err(disk_full());
            }
            Some(Fault::Lost | Fault::Torn { .. }) => {}
            _ => self.disk.sync(file, held.covers),
        }
        Ok(())
    }

    /// Refuses a write that would make the files larger than the capacity.
    fn check_space(&self, file: u64, end: u64) -> Result<()> {
        let Some(capacity) = self.capacity_bytes else { return Ok(()) };
        let grows = end.saturating_sub(self.disk.live(file)?.len() as u64);
        if grows > 0 && self.disk.used_bytes() + grows > capacity {
            Err(disk_full())
        } else {
            Ok(())
        }
    }

    /// Counts a step, or crashes at it. `attempted` is what a crash at it may still have done.
    fn step(&mut self, words: String, attempted: &dyn Fn(&Disk) -> Option<Change>) -> Result<()> {
        self.refuse_if_crashed()?;
        if self.steps_max.is_some_and(|most| self.steps >= most) {
            return Err(crashed());
        }
        if let Some(watcher) = &mut self.watcher {
            let held = self.held.iter().filter_map(|held| held.change());
            let in_flight: Vec<Change> = attempted(&self.disk).into_iter().chain(held).collect();
            let (disk, step, seed) = (&self.disk, self.steps, self.dice.clone().next());
            watcher(&Moment { disk, in_flight: &in_flight, step, words: &words, seed });
        }
        self.steps += 1;
        if let Some(trace) = &mut self.trace {
            trace.push(words);
        }
        Ok(())
    }

    fn refuse_if_crashed(&self) -> Result<()> {
        if self.crashed { Err(crashed()) } else { Ok(()) }
    }

    /// Stops the device: all that is held fails, and may or may not have happened.
    fn crash_now(&mut self, attempted: Option<Change>) -> Vec<End> {
        if !self.crashed {
            self.crashed = true;
            let held = self.held.iter().filter_map(|held| held.change());
            self.in_flight_at_crash = attempted.into_iter().chain(held).collect();
        }
        self.held.drain(..).map(|held| (held.accepted, Err(crashed()))).collect()
    }
}

impl Held {
    fn is_step(&self) -> bool {
        !matches!(self.accepted.operation(), Operation::Read { .. })
    }

    /// What the request would change.
    fn change(&self) -> Option<Change> {
        let Operation::Write { offset } = self.accepted.operation() else { return None };
        let bytes = Arc::new(self.accepted.buffer().as_slice().to_vec());
        Some(Change::Write { file: self.accepted.file().0.number, offset, bytes })
    }

    fn words(&self) -> String {
        let (name, len) = (self.accepted.file().name(), self.accepted.buffer().len());
        match self.accepted.operation() {
            Operation::Read { offset } => format!("read {name} {offset}+{len}"),
            Operation::Write { offset } => format!("write {name} {offset}+{len}"),
            Operation::Sync => format!("sync {name}"),
        }
    }
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.world();
        f.debug_struct("Simulated")
            .field("files", &world.disk.list())
            .field("in_flight", &world.held.len())
            .field("steps", &world.steps)
            .field("crashed", &world.crashed)
            .finish_non_exhaustive()
    }
}

/// Tells the callers; not while the world is locked, since a channel may be full.
fn finish(ends: Vec<End>) {
    for (accepted, result) in ends {
        accepted.finish(result);
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

fn simulated_error(words: &str) -> Error {
    Error::new(ErrorKind::Io, words)
}

fn disk_full() -> Error {
    Error::new(ErrorKind::DiskFull, "the simulated device is full")
}

fn crashed() -> Error {
    Error::new(ErrorKind::Io, "the simulated device has crashed")
}
