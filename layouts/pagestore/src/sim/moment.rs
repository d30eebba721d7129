//! The moment before a step, and what a crash at this moment leaves.
//!
//! Stopping a device at a step ends its user's history. Watching it shows each step before it
//! happens: one run gives the crash images of all steps.

use super::Simulated;
use super::crash::CrashPolicy;
use super::disk::{Disk, DiskChange};
use super::faults::{Dice, Faults};
use super::lies::Lie;

/// What is told of each step of a device.
pub(super) type Watcher = Box<dyn FnMut(&Moment<'_>) + Send>;

/// The moment before a step; see [`Simulated::watch`].
pub struct Moment<'a> {
    pub(super) disk: &'a Disk,
    /// The step and what else had not ended: what may or may not have happened.
    pub(super) in_flight: &'a [DiskChange],
    pub(super) step: u64,
    pub(super) words: &'a str,
    pub(super) seed: u64,
}

impl Moment<'_> {
    /// Returns the number of steps before this one.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the step in words, as in a [trace](Simulated::trace).
    pub fn words(&self) -> &str {
        self.words
    }

    /// Creates a new device with what a crash at this step leaves: the same as [`Simulated::crash`]
    /// after the device [stopped](Simulated::fail_after) there. Cost: proportional to the files
    /// changed since they were synced; the others share their bytes.
    #[must_use]
    pub fn crash(&self, policy: CrashPolicy) -> Simulated {
        Simulated::of(self.disk.crash(policy, self.in_flight), self.seed, Faults::none())
    }

    /// Creates the same device on storage that lies about one write, which may be synced; `seed`
    /// selects the write. Returns `None` if there is no write.
    #[must_use]
    pub fn crash_lying(&self, policy: CrashPolicy, lie: Lie, seed: u64) -> Option<Simulated> {
        let dice = &mut Dice::new(seed);
        let disk = self.disk.crash_lying(policy, self.in_flight, lie, dice)?;
        Some(Simulated::of(disk, self.seed, Faults::none()))
    }
}
