//! A device that fails for a while under a store that goes on: reads, writes, syncs and changes of
//! names are refused by chance, or the device is full. A call that fails has changed nothing and is
//! made again, which works when the trouble is over.

use alluvium::io::{Faults, Simulated};
use alluvium::{Error, ErrorKind, Result};

use crate::dice::Dice;

/// How late requests end, in trouble and without.
const LATENCY_MAX: u32 = 2;
/// Times that a call is made: the trouble is over long before.
const CALLS_MAX: u32 = 1000;

/// What happens to a device, and what was met of it.
pub struct Trouble {
    /// Absent if there never is any.
    device: Option<Simulated>,
    dice: Dice,
    is_on: bool,
    /// Whether another one makes it, of calls of the system: then it is over by chance.
    is_outside: bool,
    /// Errors that were lived through.
    met: u64,
}

impl Trouble {
    pub fn none() -> Self {
        Self { device: None, dice: Dice(0), is_on: false, is_outside: false, met: 0 }
    }

    /// Trouble of a real device, which fails now and then.
    pub fn outside() -> Self {
        Self { is_outside: true, ..Self::none() }
    }

    /// Trouble with a device, now and then.
    pub fn with(device: &Simulated, seed: u64) -> Self {
        Self { device: Some(device.clone()), dice: Dice(!seed), ..Self::none() }
    }

    /// A device that stops answering, by whatever another makes of it: a call that fails lets it go on.
    pub fn standing(device: &Simulated) -> Self {
        Self { device: Some(device.clone()), dice: Dice(1), ..Self::none() }
    }

    /// Errors that were lived through so far.
    pub fn met(&self) -> u64 {
        self.met
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins, now and then: one time of eight.
    pub fn may_begin(&mut self) {
        let Some(device) = self.device.as_ref().filter(|_| !self.is_on) else { return };
        if self.dice.below(8) > 0 {
            return;
        }
        self.is_on = true;
        if self.dice.below(3) == 0 {
            let room = self.dice.below(64 << 10);
            return device.set_capacity_bytes(Some(device.used_bytes() + room));
        }
        let mut likely = |most: u64| self.dice.below(most) as f64 / 100.0;
        device.set_faults(Faults {
            read_errors: likely(5),
            write_errors: likely(30),
            sync_errors: likely(30),
            directory_errors: likely(30),
            ..Faults::late(LATENCY_MAX)
        });
    }

    /// Ends it.
    pub fn end(&mut self) {
        if let Some(device) = self.device.as_ref().filter(|_| self.is_on) {
            device.set_faults(Faults::late(LATENCY_MAX));
            device.set_capacity_bytes(None);
        }
        if let Some(device) = self.device.as_ref().filter(|device| device.stuck() > 0) {
            device.release_stuck();
            device.drain();
        }
        self.is_on = false;
    }

    /// Whether an error is of the trouble and not of a crash. Every other one ends it.
    pub fn is_of_it(&mut self, error: &Error) -> bool {
        if self.is_outside {
            // No refusal of the system makes these.
            let never = [
                ErrorKind::Corrupt,
                ErrorKind::FormatVersion,
                ErrorKind::Mismatch,
                ErrorKind::Missing,
                ErrorKind::Locked,
                ErrorKind::InUse,
                ErrorKind::Config,
                ErrorKind::Input,
                ErrorKind::UnknownState,
            ];
            let is_of_it = !never.contains(&error.kind());
            self.met += u64::from(is_of_it);
            return is_of_it;
        }
        let Some(device) = &self.device else { return false };
        let kinds = [ErrorKind::DiskFull, ErrorKind::Io, ErrorKind::Backpressure];
        if device.has_crashed() || !kinds.contains(&error.kind()) {
            return false;
        }
        self.met += 1;
        if self.dice.below(2) == 0 {
            self.end();
        }
        true
    }

    /// Makes a call until it works.
    pub fn outlast<R>(&mut self, mut call: impl FnMut() -> Result<R>) -> Result<R> {
        let mut last = None;
        for _ in 0..CALLS_MAX {
            match call() {
                Err(error) if self.is_of_it(&error) => last = Some(error),
                done => return done,
            }
        }
        panic!("a call fails when the trouble is over: {last:?}");
    }
}
