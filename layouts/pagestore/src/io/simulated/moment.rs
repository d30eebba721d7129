//! The moment before a step, and what a crash in it leaves.
//!
//! A device that is stopped at a step ends its user's history. One that is watched shows each step
//! before it is taken, so that one history is enough to see what a crash at any of them would leave.

use super::Simulated;
use super::crash::CrashPolicy;
use super::disk::{Change, Disk};
use super::faults::{Dice, Faults};
use super::lies::Lie;

/// What is told of each step of a device.
pub(super) type Watcher = Box<dyn FnMut(&Moment<'_>) + Send>;

/// The moment before a step; see [`Simulated::watch`].
pub struct Moment<'a> {
    pub(super) disk: &'a Disk,
    /// The step and what else had not ended: what may or may not have happened.
    pub(super) in_flight: &'a [Change],
    pub(super) step: u64,
    pub(super) words: &'a str,
    pub(super) seed: u64,
}

impl Moment<'_> {
    /// How many steps were taken before.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The step in words, as in a [trace](Simulated::trace).
    pub fn words(&self) -> &str {
        self.words
    }

    /// A new device with what a crash at this step leaves: the same as [`Simulated::crash`] gives
    /// after the device was made to [stop](Simulated::fail_after) there. Cost: that of the files that
    /// have changed since they were synced; the bytes of the others are shared.
    #[must_use]
    pub fn crash(&self, policy: CrashPolicy) -> Simulated {
        Simulated::of(self.disk.crash(policy, self.in_flight), self.seed, Faults::none())
    }

    /// The same, of storage that lies about one write of all that this leaves, also one that syncs
    /// vouch for; `seed` chooses which. `None` if there is no write.
    #[must_use]
    pub fn crash_lying(&self, policy: CrashPolicy, lie: Lie, seed: u64) -> Option<Simulated> {
        let dice = &mut Dice::new(seed);
        let disk = self.disk.crash_lying(policy, self.in_flight, lie, dice)?;
        Some(Simulated::of(disk, self.seed, Faults::none()))
    }
}
