//! How many keys the tier has alone: of all, and by key group where groups move.

use std::ops::RangeInclusive;
use std::rc::Rc;

use alluvium_pagestore::{Account, Error, ErrorKind, ImagePart, KeyGroup, MemoryKind, Result};

use crate::contract::table::StateContext;
use crate::support::booked::Booked;

/// Counts of key groups take one part in so many of the memory at most.
const SHARE: u64 = 16;

/// Keys that are there and have no entry in the index.
#[derive(Debug)]
pub struct KeyCounts {
    all: u64,
    /// By key group, if groups move.
    of_groups: Option<Box<[u64]>>,
    memory: Booked,
}

impl KeyCounts {
    /// Whether memory has room for them.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if not.
    pub fn check(context: &StateContext) -> Result<()> {
        let (needed, has) = (SHARE * Self::memory_bytes(context), context.account.limit());
        if needed <= has {
            return Ok(());
        }
        let what = format!(
            "with {} key groups a hybrid log with the option cold-runs needs {needed} bytes of memory to count their \
             keys, {has} are free",
            context.key_groups
        );
        Err(Error::new(ErrorKind::OverBudget, what).with("state", &context.name))
    }

    /// None yet. The caller has [checked](KeyCounts::check) that memory has room.
    pub fn new(context: &StateContext, account: Rc<Account>) -> Self {
        let bytes = Self::memory_bytes(context);
        let mut memory = Booked::none(account, MemoryKind::Buffers);
        memory.charge(bytes);
        let groups = usize::from(context.key_groups);
        let of_groups = context.movable.then(|| vec![0; groups].into_boxed_slice());
        Self { all: 0, of_groups, memory }
    }

    fn memory_bytes(context: &StateContext) -> u64 {
        let each = size_of::<u64>() as u64;
        if context.movable { each * u64::from(context.key_groups) } else { 0 }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// All keys.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// One key more.
    pub fn add(&mut self, hash: u64) {
        self.all += 1;
        if let Some(count) = self.of_group(hash) {
            *count += 1;
        }
    }

    /// One key less.
    pub fn take(&mut self, hash: u64) {
        self.all -= 1;
        if let Some(count) = self.of_group(hash) {
            *count -= 1;
        }
    }

    fn of_group(&mut self, hash: u64) -> Option<&mut u64> {
        let groups = self.of_groups.as_mut()?;
        let group = KeyGroup::of(hash, groups.len() as u16);
        Some(&mut groups[usize::from(group.0)])
    }

    /// No key of a range of hashes, which is whole key groups.
    pub fn cut(&mut self, hashes: &RangeInclusive<u64>) {
        let Some(groups) = &mut self.of_groups else {
            debug_assert!(false, "key groups of this state do not move");
            return;
        };
        let group_of = |hash| usize::from(KeyGroup::of(hash, groups.len() as u16).0);
        let range = group_of(*hashes.start())..=group_of(*hashes.end());
        let cut: u64 = groups[range].iter_mut().map(std::mem::take).sum();
        self.all -= cut;
    }

    /// None is there any more.
    pub fn clear(&mut self) {
        self.all = 0;
        self.of_groups.iter_mut().for_each(|groups| groups.fill(0));
    }

    /// What a checkpoint says of them.
    pub fn told(&self) -> ToldCounts {
        ToldCounts { all: self.all, of_groups: self.of_groups.clone().unwrap_or_default() }
    }

    /// Bytes of [`told`](KeyCounts::told).
    pub fn told_bytes(&self) -> u64 {
        self.bytes()
    }

    /// Takes over what a checkpoint says.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it does not count key groups, and they are to move.
    pub fn restore(&mut self, part: &ImagePart) -> Result<()> {
        if let Some(groups) = &mut self.of_groups {
            if part.group_keys.len() != groups.len() {
                let what = "the checkpoint does not count the keys of each key group in its sorted runs, since it is of \
                            a hybrid log with the option cold-runs and without a mover: open it without one";
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            groups.copy_from_slice(&part.group_keys);
        }
        self.all = part.level_keys;
        Ok(())
    }
}

/// Counts at a barrier.
#[derive(Debug)]
pub struct ToldCounts {
    pub all: u64,
    pub of_groups: Box<[u64]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_cut_from_the_sum() {
        let account = Account::root(1 << 20);
        let (groups, memory) =
            (Some(vec![0; 8].into_boxed_slice()), Booked::none(account, MemoryKind::Buffers));
        let mut counts = KeyCounts { all: 0, of_groups: groups, memory };
        let hashes: Vec<u64> = (0..1000u64).map(alluvium_pagestore::hash_word).collect();
        hashes.iter().for_each(|hash| counts.add(*hash));
        counts.take(hashes[0]);
        let is_left = |hash: &&u64| !(3..=4).contains(&KeyGroup::of(**hash, 8).0);
        counts.cut(&(*KeyGroup(3).hashes(8).start()..=*KeyGroup(4).hashes(8).end()));
        assert_eq!(counts.all(), hashes[1..].iter().filter(is_left).count() as u64);
        assert_eq!(counts.told().of_groups.iter().sum::<u64>(), counts.all());
    }
}
