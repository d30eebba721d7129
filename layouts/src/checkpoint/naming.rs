//! What a checkpoint of heap state names: segments of before, less what is written anew, and its own.
//!
//! It is planned at the barrier; what is told of it at the end is in `deaths_writer.rs`.

use std::rc::Rc;

use alluvium_pagestore::{Account, Death};

use super::dead::DeadPlaces;
use super::ledger::{CheckpointPlan, HeapFiles};
use super::live_sets::LiveSets;
use crate::heap::record_position::RecordPosition;
use crate::support::booked::Booked;

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
    /// Records that were given to be written.
    pub encoded: u64,
    /// For sets and the list of deaths.
    pub booked: Booked,
}

impl Naming {
    /// No segments of before.
    pub fn first(account: Rc<Account>) -> Self {
        let (anew, sets, slots) = (Vec::new(), LiveSets::default(), Vec::new());
        let (dead, booked) = (DeadPlaces::new(account.clone()), Booked::buffers(account, 0));
        Self { is_first: true, anew, sets, dead, slots, encoded: 0, booked }
    }

    /// What a checkpoint of so many entries names that follows one that is remembered; and how many records it writes, at
    /// most. It writes all without the memory to tell what has died, beside `left_bytes` that are left free; and if a
    /// state that opens with the memory there is could not read that, for which it needs `reading_bytes`.
    pub fn planned(
        files: &mut HeapFiles,
        account: &Rc<Account>,
        entries: u64,
        mut plan: CheckpointPlan,
        (reading_bytes, left_bytes): (u64, u64),
    ) -> (Self, u64) {
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
        let CheckpointPlan { mut anew, records, .. } = plan;
        if !anew.contains(&true) {
            anew = Vec::new();
        }
        let (slots, booked) = (Vec::new(), Booked::buffers(account.clone(), bytes));
        (Self { is_first: false, anew, sets, dead, slots, encoded: 0, booked }, records)
    }

    /// Whether a record is in a segment that is written anew.
    #[inline]
    pub fn is_anew(&self, place: RecordPosition) -> bool {
        place != RecordPosition::NONE && self.anew.get(place.slot()) == Some(&true)
    }

    /// Whether an entry with its record there is to be written.
    pub fn is_due(&self, place: RecordPosition) -> bool {
        place == RecordPosition::NONE || self.is_anew(place)
    }

    /// What is dead in this checkpoint, for who decides it.
    pub fn take_dead(&mut self, account: &Rc<Account>) -> DeadPlaces {
        std::mem::replace(&mut self.dead, DeadPlaces::new(account.clone()))
    }
}
