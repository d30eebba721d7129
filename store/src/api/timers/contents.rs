//! Timers as the store sees them between calls: entries that come and go, and key groups.

use std::any::Any;
use std::rc::Rc;

use alluvium_layouts::{ForeignState, RecordPosition, Upkeep};
use alluvium_pagestore::{Encoded, Key, KeyGroup, MemoryKind, Result, State, Time};

use super::set::Timer;
use super::table::TimerTable;
use crate::cells::state_cell::{CellContents, CellCore, InGroups, KeptState, Outgoing, StateCell};
use crate::durability::export::{CanonicalEntry, check_hash};

/// Timers as the store has them.
pub(crate) type TimersCell<K, N> = StateCell<KeptState<TimerTable<K, N>, ()>>;

impl<K: Key + Ord, N: State + Ord> CellContents for KeptState<TimerTable<K, N>, ()> {
    fn upkeep(&self) -> &dyn Upkeep {
        &self.inner.layout
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        &mut self.inner.layout
    }

    fn finds_groups(&mut self) -> bool {
        true
    }

    fn take(&mut self, part: &ForeignState) -> Result<()> {
        let table = &mut self.inner.layout;
        part.for_each_entry(
            |(_, key): &(Time, K)| key.key_hash(),
            |at, namespace: N| {
                table.codec_calls += 1;
                table.restore((at, namespace), RecordPosition::NONE)
            },
        )
    }

    fn len(&self) -> u64 {
        self.inner.layout.timers.len() as u64
    }

    fn export(&mut self, to: &mut Outgoing<'_>) -> Result<()> {
        self.inner.layout.timers.iter().try_for_each(|timer| give(timer, to))
    }

    fn import(&mut self, _: &CellCore, entry: CanonicalEntry<'_>) -> Result<()> {
        let (key, namespace) = Encoded::get::<K, N>(entry.key, entry.value)?;
        check_hash(entry.hash, key.key_hash())?;
        self.inner.layout.insert(((Time(entry.order), key), namespace)).map(drop)
    }

    fn in_groups(&mut self) -> Option<&mut dyn InGroups> {
        Some(&mut self.inner.layout)
    }
}

impl<K: Key + Ord, N: State + Ord> InGroups for TimerTable<K, N> {
    fn visit_group(
        &mut self,
        group: KeyGroup,
        after: &mut Option<Rc<dyn Any>>,
        fuel: usize,
        to: &mut Outgoing<'_>,
    ) -> Result<bool> {
        for _ in 0..fuel {
            let last = after.as_ref().and_then(|last| last.downcast_ref::<Timer<K, N>>());
            let Some(timer) = self.timers.next_of(group, last) else { return Ok(true) };
            give(timer, to)?;
            *after = Some(Rc::new(timer.clone()));
        }
        Ok(false)
    }

    fn remove_group(&mut self, group: KeyGroup, fuel: usize) -> Result<bool> {
        for _ in 0..fuel {
            let Some(timer) = self.timers.next_of(group, None).cloned() else { return Ok(true) };
            self.remove(&timer);
        }
        Ok(false)
    }

    fn wake(&mut self, group: KeyGroup, awake: bool) {
        let before = self.timers.memory_bytes();
        self.timers.wake(group, awake);
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
    }
}

/// Gives a timer, encoded: the time is its order.
fn give<K: Key, N: State>(
    ((at, key), namespace): &Timer<K, N>,
    to: &mut Outgoing<'_>,
) -> Result<()> {
    to.encoded.set(key, namespace)?;
    to.give(key.key_hash(), *at)
}
