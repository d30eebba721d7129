//! A device in memory that can fail, reorder and crash, all from one seed.
//!
//! Requests are held and take effect when they end, in seeded order: within `submit` without
//! latency, else during later submits and [`drive`](Device::drive) calls. Faults are random
//! ([`Faults`]) or scripted ([`Simulated::on_nth_write`] and its kin), and are chosen when a
//! request is submitted. The device tracks the writes that a completed sync covers and the name
//! changes that a directory sync covers. [`Simulated::crash`] creates a new device with these and
//! some of the rest. [`Simulated::fail_after`] stops the device at a given step: a test can crash a
//! store at each step of its history. [`Simulated::watch`] shows what a crash at each step would
//! leave, which needs only one run.
//!
//! With one thread, the same seed and calls give the same behaviour. The device is strict where
//! real ones are kind: a sync covers only writes that ended before its submission, and a new file's
//! name is lost unless the directory was synced, even if the file was.

mod crash;
mod disk;
mod faults;
mod lies;
mod moment;
mod world;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use self::disk::{Disk, DiskChange};
use self::faults::FaultAim;
use self::world::{World, disk_full, finish, simulated_error};
use crate::io::accepted::Accepted;
use crate::io::directory::check_name;
use crate::io::stats::Counters;
use crate::io::{Device, FileHandle, IoStats, Request};
use crate::turns::Turns;
use crate::{Error, ErrorKind, Result};

pub use crash::CrashPolicy;
pub use faults::{Fault, Faults};
pub use lies::Lie;
pub use moment::Moment;

/// A simulated [`Device`]; clones share it.
#[derive(Clone)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    /// Told when what is stuck may go on.
    released: Arc<Condvar>,
    counters: Arc<Counters>,
}

impl Simulated {
    /// Creates an empty device.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::of(Disk::default(), seed, faults)
    }

    fn of(disk: Disk, seed: u64, faults: Faults) -> Self {
        let world = World::new(disk, seed, faults);
        let counters = Arc::new(Counters::default());
        Self { world: Arc::new(Mutex::new(world)), released: Arc::default(), counters }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A test that panicked elsewhere should fail with its own words.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults of requests submitted from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Gives the `n`-th write submitted from now on (1: the next) a fault.
    pub fn on_nth_write(&self, n: u64, fault: Fault) {
        self.world().script(FaultAim::Write, n, fault);
    }

    /// Gives the `n`-th read submitted from now on (1: the next) a fault.
    pub fn on_nth_read(&self, n: u64, fault: Fault) {
        self.world().script(FaultAim::Read, n, fault);
    }

    /// Gives the `n`-th sync submitted from now on (1: the next) a fault.
    pub fn on_nth_sync(&self, n: u64, fault: Fault) {
        self.world().script(FaultAim::Sync, n, fault);
    }

    /// Gives the `n`-th create, open, rename, remove or directory sync from now on (1: the next) a
    /// fault.
    pub fn on_nth_directory_operation(&self, n: u64, fault: Fault) {
        self.world().script(FaultAim::Directory, n, fault);
    }

    /// Removes the scripted faults that are still to come.
    pub fn forget_scripts(&self) {
        self.world().scripts.clear();
    }

    /// Limits the space of the device's files to `bytes`; `None` removes the limit. Removing files,
    /// and closing their handles, frees space.
    pub fn set_capacity_bytes(&self, bytes: Option<u64>) {
        self.world().capacity_bytes = bytes;
    }

    /// Returns the bytes that files take.
    pub fn used_bytes(&self) -> u64 {
        self.world().disk.used_bytes()
    }

    /// Returns the number of requests in progress, with the stuck ones.
    pub fn in_flight(&self) -> usize {
        self.world().held.len()
    }

    /// Returns the number of stuck requests and calls.
    pub fn stuck(&self) -> usize {
        let world = self.world();
        world.stuck_calls + world.held.iter().filter(|held| held.due.is_none()).count()
    }

    /// Releases stuck calls, and lets stuck requests succeed at the next [`drive`](Device::drive)
    /// or submit.
    pub fn release_stuck(&self) {
        let world = &mut *self.world();
        world.stuck_calls = 0;
        self.released.notify_all();
        for held in world.held.iter_mut().filter(|held| held.due.is_none()) {
            held.due = Some((world.tick, world.dice.next()));
            held.fault = None;
        }
    }

    /// Completes all requests that are not stuck.
    pub fn drain(&self) {
        loop {
            let ends = self.world().advance(true);
            if ends.is_empty() {
                return;
            }
            finish(ends);
        }
    }

    /// Crashes the device after `steps` more steps: the next step fails, and so does everything
    /// after it. A step is a write, sync, create, rename, remove or directory sync, counted when it
    /// takes effect. 0 crashes at the next step.
    pub fn fail_after(&self, steps: u64) {
        let mut world = self.world();
        world.steps_max = Some(world.steps + steps);
    }

    /// Returns the number of steps so far; see [`fail_after`](Self::fail_after).
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// Returns whether the device has crashed.
    pub fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// Starts to record each step in words, for [`trace`](Self::trace).
    pub fn start_trace(&self) {
        self.world().trace = Some(Vec::new());
    }

    /// Returns the steps since [`start_trace`](Self::start_trace).
    pub fn trace(&self) -> Vec<String> {
        self.world().trace.clone().unwrap_or_default()
    }

    /// Calls `watcher` before each step from now on. It must not use this device, and may use
    /// others only if all share an [order](Simulated::take_order). From now on the device keeps all
    /// writes to each file.
    pub fn watch(&self, watcher: impl FnMut(&Moment<'_>) + Send + 'static) {
        let mut world = self.world();
        world.disk.keep_past();
        world.watcher = Some(Box::new(watcher));
    }

    /// Lets a helper and its owner take turns at each operation from now on.
    pub fn take_turns(&self, turns: &Turns) {
        self.world().turns = Some(turns.clone());
    }

    /// A moment at which turns may change.
    fn turn(&self) {
        let turns = self.world().turns.clone();
        if let Some(turns) = turns {
            turns.step();
        }
    }

    /// Serializes the operations of all devices with this order, across threads. While one is
    /// [watched](Simulated::watch), the crash images of the others can be examined.
    pub fn take_order(&self, order: &Arc<Mutex<()>>) {
        self.world().order = order.clone();
    }

    /// Returns a hash of the names and bytes of all files. Cost: a pass over all bytes.
    pub fn digest(&self) -> u64 {
        self.world().disk.digest()
    }

    /// Creates a new device with what a crash now (or the crash that happened) leaves. It has no
    /// faults, no lock and nothing in flight. This device does not change.
    #[must_use]
    pub fn crash(&self, policy: CrashPolicy) -> Self {
        let world = self.world();
        let mut in_flight = world.in_flight_at_crash.clone();
        in_flight.extend(world.held.iter().filter_map(|held| held.change()));
        let disk = world.disk.crash(policy, &in_flight);
        let seed = world.dice.clone().next();
        Self::of(disk, seed, Faults::none())
    }

    /// Returns the live bytes of a file; `None` if there is no such file.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        let file = world.disk.number_of(name, "read").ok()?;
        world.disk.live(file).ok().map(<[u8]>::to_vec)
    }

    /// Returns the bytes of a file that survive every crash. Its name may not survive.
    pub fn durable_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        let file = world.disk.number_of(name, "read").ok()?;
        world.disk.durable(file).ok().map(<[u8]>::to_vec)
    }

    /// Adds a file that is durable at once, or replaces the one of that name.
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

    /// What goes wrong with a call on the directory. Who is stuck waits in here, and holds nobody
    /// else up.
    fn fault_of_call(&self) -> Option<Fault> {
        let mut world = self.world();
        let fault = world.choose_fault(FaultAim::Directory, 0, 0);
        if fault == Some(Fault::Stuck) {
            world.stuck_calls += 1;
            let stuck = self.released.wait_while(world, |world| world.stuck_calls > 0);
            drop(stuck.unwrap_or_else(PoisonError::into_inner));
        }
        fault
    }

    /// Does one operation on the directory. `words` name the step (`None`: it is none). A sync that
    /// fails gives up what it should have covered. `change` does the operation or, told that it is
    /// to be lost, does not; `attempted` is what a crash at this step may still have done.
    fn directory_operation<T>(
        &self,
        words: Option<String>,
        is_sync: bool,
        change: impl FnOnce(&mut Disk, bool) -> Result<T>,
        attempted: impl Fn(&Disk) -> Option<DiskChange>,
    ) -> Result<T> {
        self.turn();
        self.counters.count_directory_operation();
        let fault = self.fault_of_call();
        let failure = match fault {
            Some(Fault::Error) => Some(simulated_error("simulated directory error")),
            Some(Fault::DiskFull) => Some(disk_full()),
            _ => None,
        };
        if let Some(failure) = failure {
            if is_sync {
                self.world().fail_sync_names();
            }
            return Err(failure);
        }
        let order = self.world().order.clone();
        let _one = order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = self.world();
        let world = &mut *guard;
        let step = words.map_or(Ok(()), |words| world.step(|| words, &attempted));
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
            false,
            |disk, _| disk.create(name),
            |disk| disk.attempt_create(name),
        )
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        check_name(name)?;
        self.directory_operation(None, false, |disk, _| disk.open(name), |_| None)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        let world = self.world();
        world.refuse_if_crashed()?;
        world.disk.live(file.0.number).map(|bytes| bytes.len() as u64)
    }

    fn submit(&self, request: Request) {
        self.turn();
        if let Some(accepted) = Accepted::accept(request, &self.counters) {
            let order = self.world().order.clone();
            let _one = order.lock().unwrap_or_else(PoisonError::into_inner);
            let ends = self.world().submit(accepted);
            finish(ends);
        }
    }

    fn drive(&self) {
        self.turn();
        let order = self.world().order.clone();
        let _one = order.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.world().advance(true);
        finish(ends);
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        check_name(source)?;
        check_name(target)?;
        self.directory_operation(
            Some(format!("rename {source} to {target}")),
            false,
            |disk, _| disk.rename(source, target),
            |disk| {
                let file = disk.number_of(source, "rename").ok()?;
                Some(DiskChange::Name { name: target.into(), file })
            },
        )
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.directory_operation(
            Some(format!("remove {name}")),
            false,
            |disk, _| disk.remove(name),
            |disk| {
                disk.number_of(name, "remove").ok()?;
                Some(DiskChange::Unname { name: name.into() })
            },
        )
    }

    fn sync_directory(&self) -> Result<()> {
        self.directory_operation(
            Some("sync the directory".to_owned()),
            true,
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
