//! Fuel for compaction: in proportion to writes, and as much as is owed.

use std::cell::RefCell;

use alluvium_compaction::Compactor;
use alluvium_layouts::{Upkeep, trace_event};
use alluvium_pagestore::{Error, ErrorKind, PATIENT_FUEL};

use super::CellCore;

/// Fuel per write: records looked at or moved. About 6 hold space amplification at 2 and at 1.5.
const FUEL_PER_WRITE: usize = 8;

/// No more fuel is owed to compaction than this.
const OWED_FUEL_MAX: usize = 16 * PATIENT_FUEL;

/// Fuel for merging small segments before a checkpoint that is waited for: some 10 ms at most. And how often it
/// waits for a helper that does not answer.
const MERGE_FUEL_MAX: usize = 64 * PATIENT_FUEL;
const WAITS_MAX: u32 = 8;

impl CellCore {
    pub(super) fn fuel_for(writes: usize) -> usize {
        writes * FUEL_PER_WRITE
    }

    /// Gives compaction the fuel for some writes, unless it rests, and what it could not use before. If writers are
    /// faster than the helper that moves records, what is owed grows until the step is a patient
    /// one and they wait: otherwise space would grow without a bound.
    pub(super) fn pay_compaction(&self, upkeep: &mut dyn Upkeep, writes: usize) {
        let Some(compactor) = &self.compactor else { return };
        if compactor.borrow_mut().rests(writes) {
            return;
        }
        let owed = self.owed.get();
        let total = owed + Self::fuel_for(writes);
        let now = if owed >= PATIENT_FUEL { total } else { total.min(PATIENT_FUEL - 1) };
        let done = self.compact(upkeep, now);
        let more = compactor.borrow().rewriting().is_some();
        self.owed.set(if more { (total - done.min(total)).min(OWED_FUEL_MAX) } else { 0 });
    }

    /// Whether small segments are being merged.
    pub(super) fn is_merging(&self) -> bool {
        self.compactor.as_ref().is_some_and(|compactor| compactor.borrow().is_merging())
    }

    /// Ends the merging of small segments that is under way, within bounds. What could not be done goes on
    /// with the next writes.
    pub(super) fn end_merging(&self, upkeep: &mut dyn Upkeep) {
        let (mut left, mut in_vain) = (MERGE_FUEL_MAX, 0);
        while left > 0 && in_vain < WAITS_MAX && self.is_merging() {
            let done = self.compact(upkeep, left.min(2 * PATIENT_FUEL));
            in_vain = if done > 1 { 0 } else { in_vain + 1 };
            left -= done.min(left);
        }
    }

    /// Has compaction look at all segments again.
    pub(super) fn look_again(&self) {
        if let Some(compactor) = &self.compactor {
            compactor.borrow_mut().look_again();
        }
    }

    /// Gives compaction fuel. Its errors are kept for statistics: they concern no write, and the
    /// next share tries again.
    pub(super) fn compact(&self, upkeep: &mut dyn Upkeep, fuel: usize) -> usize {
        let Some(compactor) = &self.compactor else { return 0 };
        let Some(target) = upkeep.rewriter() else { return 0 };
        let ticked = compactor.borrow_mut().tick(target, fuel);
        match ticked {
            Ok(spent) if !spent.idle || compactor.borrow().rewriting().is_some() => {
                spent.fuel.max(1)
            }
            // To look and find nothing to do is no work: who ticks until all is done must end.
            Ok(spent) => spent.rewritten + spent.unlinked,
            Err(error) => {
                self.compaction_failed(compactor, error);
                0
            }
        }
    }

    #[cold]
    fn compaction_failed(&self, compactor: &RefCell<Compactor>, error: Error) {
        let (state, why) = (self.name.as_str(), &error);
        trace_event!(WARN, "compaction failed", state = state, error = why.message());
        let mut compactor = compactor.borrow_mut();
        if let (ErrorKind::Corrupt, Some(segment)) = (error.kind(), compactor.rewriting()) {
            compactor.park(segment);
        }
        self.failed.replace(Some(error));
    }
}
