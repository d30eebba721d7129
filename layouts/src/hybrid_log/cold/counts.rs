//! How many keys the tier has alone: of all, and by key group where groups move. Where entries expire, also by when they
//! were touched last: see [`touches`](super::touches).

use std::ops::RangeInclusive;
use std::rc::Rc;

use alluvium_pagestore::{
    Account, Error, ErrorKind, ImagePart, KeyGroup, MemoryKind, Result, Time, TouchedKeys,
};

use super::touches::{ExpiredTouches, Touches};
use crate::contract::table::StateContext;
use crate::support::booked::Booked;
use crate::support::record_type_unsafe::ErasedTouched;

/// Counts of key groups take one part in so many of the memory at most.
const SHARE: u64 = 16;

/// Those of groups that do not move yet take one part in so many: keys may be all that the memory is for.
const UNMOVED_SHARE: u64 = 1024;

/// Keys that are there and have no entry in the index.
#[derive(Debug)]
pub struct KeyCounts {
    all: u64,
    /// By key group, if groups move, or may some day. Where memory has no room for that, only if they do.
    of_groups: Option<Box<[u64]>>,
    /// By last touch, if entries expire.
    touches: Option<Touches>,
    /// What a checkpoint says of last touches, until it is known that entries expire.
    restored: Option<TouchedKeys>,
    is_movable: bool,
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
            "with {} key groups a hybrid log with sorted runs (see cold-runs) needs {needed} bytes of memory to count their \
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
        let of_groups = (bytes > 0).then(|| vec![0; groups].into_boxed_slice());
        let is_movable = context.movable;
        Self { all: 0, of_groups, touches: None, restored: None, is_movable, memory }
    }

    /// Key groups that are counted apart.
    pub fn groups(&self) -> usize {
        self.of_groups.as_ref().map_or(1, |groups| groups.len())
    }

    /// Bytes of counts by last touch.
    fn touches_bytes(&self) -> u64 {
        Touches::memory_bytes(if self.touches_all_in_one() { 1 } else { self.groups() })
    }

    /// Whether last touches are not counted by key group, which takes more memory.
    fn touches_all_in_one(&self) -> bool {
        !self.is_movable && self.restored.is_none()
    }

    /// Whether entries can expire.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if memory has no room for counts by last touch, [`ErrorKind::Unsupported`] for keys of
    /// a checkpoint that does not say when they were touched.
    pub fn can_expire(&self) -> Result<()> {
        if self.all > 0 && self.restored.is_none() {
            let what = "the checkpoint does not tell when the keys in its sorted runs (see \
                        cold-runs) were touched: their entries cannot expire";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let (account, bytes) = (self.memory.account(), self.touches_bytes());
        if bytes <= account.available() && SHARE * bytes <= account.limit() {
            return Ok(());
        }
        let what = format!(
            "a hybrid log with sorted runs (see cold-runs) whose entries expire needs {} bytes of memory to count its keys \
             by when they were touched",
            SHARE * bytes
        );
        Err(Error::new(ErrorKind::OverBudget, what))
    }

    /// Entries expire from now on, which they [can](KeyCounts::can_expire).
    pub fn begin_expiring(&mut self, of: ErasedTouched) {
        if self.touches_all_in_one() {
            self.count_no_groups();
        }
        self.memory.charge(self.touches_bytes());
        let mut touches =
            Touches::new(of, self.of_groups.as_ref().map_or(1, |groups| groups.len()));
        self.restored.take().iter().for_each(|told| touches.restore(told));
        self.touches = Some(touches);
    }

    /// Entries live so long without a touch.
    pub fn live_for(&mut self, nanos: u64) {
        self.touches.iter_mut().for_each(|touches| touches.live_for(nanos));
    }

    /// What has expired, if entries do.
    pub fn gone(&self) -> Option<ExpiredTouches> {
        self.touches.as_ref().map(Touches::gone)
    }

    /// What was touched last before `to` expires, as far as that can be told. Gives until when, and how many keys did.
    pub fn expire_to(&mut self, to: Time) -> (Time, u64) {
        let Self { all, of_groups, touches, .. } = self;
        let Some(touches) = touches else { return (to, 0) };
        let before = *all;
        let tide = touches.expire_to(to, &mut |group, count| {
            *all -= count;
            of_groups.iter_mut().for_each(|groups| groups[group] -= count);
        });
        (tide, before - *all)
    }

    /// Bytes that they take from the beginning on.
    pub fn memory_bytes(context: &StateContext) -> u64 {
        let bytes = size_of::<u64>() as u64 * u64::from(context.key_groups);
        let has_room = UNMOVED_SHARE * bytes <= context.account.limit();
        if context.movable || has_room { bytes } else { 0 }
    }

    /// Does not count key groups, which do not move.
    fn count_no_groups(&mut self) {
        self.of_groups = None;
        self.memory.adjust_to(0);
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// All keys.
    pub fn all(&self) -> u64 {
        self.all
    }

    /// One key more, touched last at a time. Says whether it counts: it may have expired.
    pub fn add(&mut self, hash: u64, touched: Time) -> bool {
        let group = self.group_of(hash);
        let counts = self.touches.as_mut().is_none_or(|touches| touches.add(group, touched));
        if counts {
            self.all += 1;
            self.of_groups.iter_mut().for_each(|groups| groups[group] += 1);
        }
        counts
    }

    /// One key less, touched last at a time, which has not expired.
    pub fn take(&mut self, hash: u64, touched: Time) {
        let group = self.group_of(hash);
        self.touches.iter_mut().for_each(|touches| touches.take(group, touched));
        self.all -= 1;
        self.of_groups.iter_mut().for_each(|groups| groups[group] -= 1);
    }

    fn group_of(&self, hash: u64) -> usize {
        match &self.of_groups {
            Some(groups) => usize::from(KeyGroup::of(hash, groups.len() as u16).0),
            None => 0,
        }
    }

    /// No key of a range of hashes, which is whole key groups.
    pub fn cut(&mut self, hashes: &RangeInclusive<u64>) {
        let Some(groups) = &mut self.of_groups else {
            debug_assert!(false, "key groups of this state do not move");
            return;
        };
        let group_of = |hash| usize::from(KeyGroup::of(hash, groups.len() as u16).0);
        let range = group_of(*hashes.start())..group_of(*hashes.end()) + 1;
        let cut: u64 = groups[range.clone()].iter_mut().map(std::mem::take).sum();
        self.all -= cut;
        self.touches.iter_mut().for_each(|touches| touches.cut(range.clone()));
    }

    /// None is there any more.
    pub fn clear(&mut self) {
        self.all = 0;
        self.of_groups.iter_mut().for_each(|groups| groups.fill(0));
        self.touches.iter_mut().for_each(Touches::clear);
    }

    /// What a checkpoint says of them.
    pub fn told(&self) -> ToldCounts {
        let of_groups = self.of_groups.clone().unwrap_or_default();
        ToldCounts { all: self.all, of_groups, touched: self.touches.as_ref().map(Touches::told) }
    }

    /// Bytes of [`told`](KeyCounts::told).
    pub fn told_bytes(&self) -> u64 {
        let groups = self.of_groups.as_ref().map_or(0, |groups| size_of_val(&groups[..]) as u64);
        groups + self.touches.as_ref().map_or(0, Touches::told_bytes)
    }

    /// Takes over what a checkpoint says.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it does not count key groups, and they are to move; [`ErrorKind::Corrupt`] if its
    /// numbers do not add up.
    pub fn restore(&mut self, part: &ImagePart) -> Result<()> {
        if let Some(touched) = &part.touched {
            let all = [part.level_keys];
            let of_groups = if part.group_keys.is_empty() { &all[..] } else { &part.group_keys };
            if !Touches::fits(touched, of_groups) {
                let what = "the checkpoint counts other keys by their last touch than in all";
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            self.restored = Some(touched.clone());
        }
        if let Some(groups) = &mut self.of_groups {
            if part.group_keys.len() != groups.len() && self.is_movable {
                let what = "the checkpoint does not count the keys of each key group in its sorted runs (see \
                            cold-runs), since it is of a hybrid log without a mover: open it without one";
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            match part.group_keys.len() == groups.len() {
                true => groups.copy_from_slice(&part.group_keys),
                false => self.count_no_groups(),
            }
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
    pub touched: Option<TouchedKeys>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_cut_from_the_sum() {
        let account = Account::root(1 << 20);
        let (groups, memory) =
            (Some(vec![0; 8].into_boxed_slice()), Booked::none(account, MemoryKind::Buffers));
        let mut counts = KeyCounts {
            all: 0,
            of_groups: groups,
            touches: None,
            restored: None,
            is_movable: true,
            memory,
        };
        let hashes: Vec<u64> = (0..1000u64).map(alluvium_pagestore::hash_word).collect();
        assert!(hashes.iter().all(|hash| counts.add(*hash, Time::MAX)));
        counts.take(hashes[0], Time::MAX);
        let is_left = |hash: &&u64| !(3..=4).contains(&KeyGroup::of(**hash, 8).0);
        counts.cut(&(*KeyGroup(3).hashes(8).start()..=*KeyGroup(4).hashes(8).end()));
        assert_eq!(counts.all(), hashes[1..].iter().filter(is_left).count() as u64);
        assert_eq!(counts.told().of_groups.iter().sum::<u64>(), counts.all());
    }
}
