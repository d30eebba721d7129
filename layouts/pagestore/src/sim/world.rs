//! What goes on in a simulated device: which requests are held, when each ends and what it then
//! does to the disk, what goes wrong with it, and how the device stops.
//!
//! Ends are given to the caller, who tells them once the world is unlocked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::disk::{Disk, DiskChange, SECTOR_BYTES};
use super::faults::{Dice, Fault, FaultAim, Faults};
use super::moment::{Moment, Watcher};
use crate::io::Operation;
use crate::io::accepted::{Accepted, past_end};
use crate::turns::Turns;
use crate::{Error, ErrorKind, Result};

/// The state of a device.
pub(super) struct World {
    pub(super) disk: Disk,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    /// Faults by kind of operation and its number.
    pub(super) scripts: BTreeMap<(FaultAim, u64), Fault>,
    /// Operations submitted so far, by kind.
    submitted: BTreeMap<FaultAim, u64>,
    pub(super) held: Vec<PendingRequest>,
    /// Calls on the directory that are stuck.
    pub(super) stuck_calls: usize,
    /// Submits and drives so far: the clock of the held.
    pub(super) tick: u64,
    pub(super) steps: u64,
    pub(super) steps_max: Option<u64>,
    pub(super) crashed: bool,
    /// What was in flight when the device crashed.
    pub(super) in_flight_at_crash: Vec<DiskChange>,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) locked: bool,
    /// Guards that keep the lock from being taken.
    pub(super) readers: usize,
    pub(super) trace: Option<Vec<String>>,
    pub(super) watcher: Option<Watcher>,
    /// Of a helper and its owner.
    pub(super) turns: Option<Turns>,
    /// Held by each operation, of all devices that share it.
    pub(super) order: Arc<Mutex<()>>,
}

/// A request that has not ended.
pub(super) struct PendingRequest {
    pub(super) accepted: Accepted,
    pub(super) fault: Option<Fault>,
    /// When it ends: tick, then chance. `None`: it is stuck.
    pub(super) due: Option<(u64, u64)>,
    /// What a sync covers.
    covers: u64,
}

/// An end to be told once the world is unlocked.
pub(super) type RequestEnd = (Accepted, Result<()>);

impl World {
    /// Nothing has happened yet.
    pub(super) fn new(disk: Disk, seed: u64, faults: Faults) -> Self {
        Self {
            disk,
            dice: Dice::new(seed),
            faults,
            scripts: BTreeMap::new(),
            submitted: BTreeMap::new(),
            held: Vec::new(),
            stuck_calls: 0,
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
            turns: None,
            order: Arc::default(),
        }
    }

    pub(super) fn refuse_if_locked(&self) -> Result<()> {
        match self.locked {
            true => Err(Error::new(ErrorKind::Locked, "the simulated directory is in use")),
            false => Ok(()),
        }
    }

    pub(super) fn script(&mut self, aim: FaultAim, n: u64, fault: Fault) {
        let before = self.submitted.get(&aim).copied().unwrap_or(0);
        self.scripts.insert((aim, before + n), fault);
    }

    /// What goes wrong with the next operation of this kind; scripts go before chance.
    pub(super) fn choose_fault(
        &mut self,
        aim: FaultAim,
        len: usize,
        file_blocks: u64,
    ) -> Option<Fault> {
        let number = self.submitted.entry(aim).or_insert(0);
        *number += 1;
        let scripted = self.scripts.remove(&(aim, *number));
        scripted.or_else(|| self.faults.roll(aim, len, file_blocks, &mut self.dice))
    }

    /// Holds a request, and ends those that are due.
    pub(super) fn submit(&mut self, accepted: Accepted) -> Vec<RequestEnd> {
        if let Err(crash) = self.refuse_if_crashed() {
            return vec![(accepted, Err(crash))];
        }
        let file_bytes = self.disk.live(accepted.file().0.number).map_or(0, <[u8]>::len);
        let file_blocks = file_bytes.div_ceil(crate::io::BLOCK_BYTES) as u64;
        let len = accepted.buffer().len();
        let fault = self.choose_fault(accepted.operation().into(), len, file_blocks);
        let latency = match self.faults.latency_max {
            0 => 0,
            most => self.dice.below(u64::from(most) + 1),
        };
        let due = (self.tick + latency, if latency == 0 { 0 } else { self.dice.next() });
        let due = (fault != Some(Fault::Stuck)).then_some(due);
        let covers = self.disk.now();
        self.held.push(PendingRequest { accepted, fault, due, covers });
        self.advance(false)
    }

    /// Ends what is due; if `at_least_one`, time goes on until something is.
    pub(super) fn advance(&mut self, at_least_one: bool) -> Vec<RequestEnd> {
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
        let due = |(at, held): (usize, &PendingRequest)| held.due.map(|due| (due, at));
        let ((tick, _), at) = self.held.iter().enumerate().filter_map(due).min()?;
        (tick <= self.tick).then_some(at)
    }

    /// Lets one request take effect. If that is the step the device crashes at, all others end too.
    fn end(&mut self, mut held: PendingRequest) -> Vec<RequestEnd> {
        let step = match held.is_step() {
            true => self.step(|| held.words(), &|_| held.change()),
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

    fn read(&mut self, held: &mut PendingRequest, offset: u64) -> Result<()> {
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

    fn write(&mut self, held: &PendingRequest, offset: u64) -> Result<()> {
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

    /// A sync of the directory fails. After a crash there is nothing to give up.
    pub(super) fn fail_sync_names(&mut self) {
        if !self.crashed {
            self.disk.fail_sync_names();
        }
    }

    fn sync(&mut self, held: &PendingRequest) -> Result<()> {
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

    /// Counts a step, or crashes at it. `words` name it, if anybody asks; `attempted` is what a crash at it may still
    /// have done.
    pub(super) fn step(
        &mut self,
        words: impl FnOnce() -> String,
        attempted: &dyn Fn(&Disk) -> Option<DiskChange>,
    ) -> Result<()> {
        self.refuse_if_crashed()?;
        if self.steps_max.is_some_and(|most| self.steps >= most) {
            return Err(crashed());
        }
        self.steps += 1;
        if self.watcher.is_none() && self.trace.is_none() {
            return Ok(());
        }
        let words = words();
        if let Some(watcher) = &mut self.watcher {
            let held = self.held.iter().filter_map(|held| held.change());
            let in_flight: Vec<DiskChange> =
                attempted(&self.disk).into_iter().chain(held).collect();
            let (disk, step, seed) = (&self.disk, self.steps - 1, self.dice.clone().next());
            watcher(&Moment { disk, in_flight: &in_flight, step, words: &words, seed });
        }
        if let Some(trace) = &mut self.trace {
            trace.push(words);
        }
        Ok(())
    }

    pub(super) fn refuse_if_crashed(&self) -> Result<()> {
        if self.crashed { Err(crashed()) } else { Ok(()) }
    }

    /// Stops the device: all that is held fails, and may or may not have happened.
    pub(super) fn crash_now(&mut self, attempted: Option<DiskChange>) -> Vec<RequestEnd> {
        if !self.crashed {
            self.crashed = true;
            let held = self.held.iter().filter_map(|held| held.change());
            self.in_flight_at_crash = attempted.into_iter().chain(held).collect();
        }
        self.held.drain(..).map(|held| (held.accepted, Err(crashed()))).collect()
    }
}

impl PendingRequest {
    fn is_step(&self) -> bool {
        !matches!(self.accepted.operation(), Operation::Read { .. })
    }

    /// What the request would change.
    pub(super) fn change(&self) -> Option<DiskChange> {
        let Operation::Write { offset } = self.accepted.operation() else { return None };
        let bytes = Arc::new(self.accepted.buffer().as_slice().to_vec());
        Some(DiskChange::Write { file: self.accepted.file().0.number, offset, bytes })
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

/// Tells the callers; not while the world is locked, since a channel may be full.
pub(super) fn finish(ends: Vec<RequestEnd>) {
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

pub(super) fn simulated_error(words: &str) -> Error {
    Error::new(ErrorKind::Io, words)
}

pub(super) fn disk_full() -> Error {
    Error::new(ErrorKind::DiskFull, "the simulated device is full")
}

fn crashed() -> Error {
    Error::new(ErrorKind::Io, "the simulated device has crashed")
}
