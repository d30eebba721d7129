//! What a checkpoint of heap state names: segments of before, less what is written anew, and its own.
//!
//! It is planned at the barrier; what is told of it at the end is in `telling.rs`.

use alluvium_pagestore::{Account, Death, Error, ErrorKind, PlacedAt, Result};
use std::rc::Rc;

use super::dead::DeadPlaces;
use super::ledger::{HeapFiles, Plan};
use super::live_sets::LiveSets;
use crate::heap::place::Place;

/// Bytes that are left free beside what is kept.
pub(crate) const FREE_BYTES: u64 = 4 << 10;
/// What writing a death takes.
const DEATH_BYTES: u64 = (size_of::<Death>() + 4) as u64;

/// What a checkpoint names, as it comes to be known.
#[derive(Debug)]
pub(crate) struct Naming {
    /// Nothing is remembered of a checkpoint before.
    pub is_first: bool,
    /// By slot: what is live there is written anew. Empty if there is none.
    pub anew: Vec<bool>,
    /// Which records of other segments are live, if sets are made.
    pub sets: LiveSets,
    pub dead: DeadPlaces,
    /// Slots of the segments being written.
    pub slots: Vec<u32>,
}

impl Naming {
    /// No segments of before.
    pub fn first(account: Rc<Account>) -> Self {
        let (anew, sets, slots) = (Vec::new(), LiveSets::default(), Vec::new());
        Self { is_first: true, anew, sets, dead: DeadPlaces::new(account), slots }
    }

    /// Whether a record is in a segment that is written anew.
    #[inline]
    pub fn is_anew(&self, place: Place) -> bool {
        place != Place::NONE && self.anew.get(place.slot()) == Some(&true)
    }

    /// A record is not live in this checkpoint: it has a newer one, or its entry was gone before the barrier.
    ///
    /// # Errors
    /// Without room to note it the checkpoint is lost, and the next one is full.
    #[inline]
    pub fn outdate(&mut self, place: Place, files: &mut HeapFiles) -> Result<()> {
        if files.outdate(place, &mut self.dead) {
            return Ok(());
        }
        let message =
            "no memory is left to note which records are dead; begin the checkpoint again";
        Err(Error::new(ErrorKind::Overtaken, message))
    }

    /// The place of a record that was written; none if there is no slot for its segment.
    pub fn place_of(&mut self, at: PlacedAt, files: &mut HeapFiles) -> Place {
        while self.slots.len() <= at.segment as usize {
            let Some(slot) = files.new_slot() else { return Place::NONE };
            self.slots.push(slot);
        }
        Place::of(self.slots[at.segment as usize], at.grain)
    }

    /// What is dead in this checkpoint, for who decides it.
    pub fn take_dead(&mut self, account: &Rc<Account>) -> DeadPlaces {
        std::mem::replace(&mut self.dead, DeadPlaces::new(account.clone()))
    }
}

/// A checkpoint as it is begun, after one that is remembered.
#[derive(Debug)]
pub(crate) struct Begun {
    pub naming: Naming,
    /// Records that are to be written, at most.
    pub records: u64,
    /// For the caller to book.
    pub bytes: u64,
}

impl Begun {
    /// One of so many entries, of which so many have changed. Without the memory to tell what has died,
    /// beside so many bytes that are left free, all is written.
    pub fn of(
        files: &mut HeapFiles,
        account: &Account,
        counts: (u64, u64),
        segment_bytes: u64,
        left_bytes: u64,
    ) -> Self {
        let plan = files.plan(counts.0, counts.1, segment_bytes);
        Self::planned(files, account, counts.0, plan, (0, left_bytes))
    }

    /// [`of`](Begun::of) where what has changed is new: no record dies as a newer one is written. All is written, too, if
    /// a state that opens with the memory there is could not read which records are dead, for which it needs so
    /// many bytes beside the lists.
    pub fn of_new(
        files: &mut HeapFiles,
        account: &Account,
        counts: (u64, u64),
        segment_bytes: u64,
        reading_bytes: u64,
    ) -> Self {
        let plan = Plan { outdated: 0, ..files.plan(counts.0, counts.1, segment_bytes) };
        let reading = reading_bytes + files.reading_bytes(&plan);
        Self::planned(files, account, counts.0, plan, (reading, 0))
    }

    fn planned(
        files: &mut HeapFiles,
        account: &Account,
        entries: u64,
        mut plan: Plan,
        (reading_bytes, left_bytes): (u64, u64),
    ) -> Self {
        let sets = if plan.makes_sets { files.sets_bytes(&plan) } else { 0 };
        let deaths = DEATH_BYTES * (files.dead().len() + plan.outdated);
        let mut bytes = if plan.is_full { 0 } else { sets + deaths };
        let wanted = (bytes + deaths).max(reading_bytes) + left_bytes + 2 * FREE_BYTES;
        let has_room = account.available() >= wanted;
        if !has_room && !plan.is_full {
            // What has died need not be told if all is written.
            (plan, bytes) = (files.plan_all(entries), 0);
        }
        let dead = match files.follow(&plan) {
            Some(dead) => dead,
            None => {
                (plan, bytes) = (files.plan_all(entries), 0);
                files.follow(&plan).expect("that takes no memory")
            }
        };
        let sets = if plan.makes_sets { files.empty_sets(&plan) } else { LiveSets::default() };
        let Plan { mut anew, records, .. } = plan;
        if !anew.contains(&true) {
            anew = Vec::new();
        }
        let naming = Naming { is_first: false, anew, sets, dead, slots: Vec::new() };
        Self { naming, records, bytes }
    }
}
