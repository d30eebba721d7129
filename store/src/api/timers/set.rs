//! What timers are kept in: one sorted set, or, if their key groups move, a sorted set for each.
//!
//! What it keeps true of the second: what is first is the least of the groups that are awake, found by
//! a sorted set of the groups' first times; a group is found, and leaves, without a look at the others.
//! Beside each timer is the [place](TimerPlaces) of its record; that of one that leaves is told.

use std::ops::ControlFlow;
use std::rc::Rc;

use alluvium_layouts::RecordPosition;
use alluvium_pagestore::{Key, KeyGroup, State, Time, rounded};

use super::places::TimerPlaces;
use crate::api::sorted_blocks::SortedBlocks;
use crate::durability::moving::Groups;

/// A timer as it is kept: in order of time, then key, then namespace.
pub(crate) type Timer<K, N> = ((Time, K), N);

/// Timers in order, and where their records are.
type TimerBlocks<K, N> = SortedBlocks<Timer<K, N>, TimerPlaces>;

/// Pending timers.
#[derive(Debug)]
pub(crate) enum TimerSet<K: Key + Ord, N: State + Ord> {
    /// In one order.
    One(TimerBlocks<K, N>),
    /// By key groups.
    Grouped(GroupedTimers<K, N>),
}

/// Timers by key groups.
#[derive(Debug)]
pub(crate) struct GroupedTimers<K: Key + Ord, N: State + Ord> {
    groups: Rc<Groups>,
    sets: Vec<TimerBlocks<K, N>>,
    /// Those that may fire.
    awake: Vec<bool>,
    /// The first time of each group that is awake and has timers.
    firsts: Firsts,
    len: usize,
    /// Bytes of the sets.
    sets_bytes: u64,
}

/// Times of groups, in order. Compiled once, whatever timers are like.
#[derive(Debug)]
struct Firsts(SortedBlocks<(Time, u16)>);

impl Firsts {
    fn new() -> Self {
        Self(SortedBlocks::new())
    }

    fn first(&self) -> Option<&(Time, u16)> {
        self.0.first()
    }

    #[inline(never)]
    fn insert(&mut self, first: (Time, u16)) -> bool {
        self.0.insert(first)
    }

    #[inline(never)]
    fn remove(&mut self, first: &(Time, u16)) -> Option<(Time, u16)> {
        self.0.remove(first)
    }

    #[inline(never)]
    fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    #[inline(never)]
    fn growth_bytes(&self) -> u64 {
        self.0.growth_bytes()
    }
}

impl<K: Key + Ord, N: State + Ord> TimerSet<K, N> {
    pub(crate) fn new(groups: Option<Rc<Groups>>) -> Self {
        let Some(groups) = groups else { return Self::One(SortedBlocks::new()) };
        let count = usize::from(groups.count());
        Self::Grouped(GroupedTimers {
            sets: (0..count).map(|_| SortedBlocks::new()).collect(),
            awake: (0..count).map(|group| groups.has(group as u16)).collect(),
            groups,
            firsts: Firsts::new(),
            len: 0,
            sets_bytes: 0,
        })
    }

    pub(crate) fn groups(&self) -> Option<&Groups> {
        match self {
            Self::One(_) => None,
            Self::Grouped(grouped) => Some(&grouped.groups),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(set) => set.len(),
            Self::Grouped(grouped) => grouped.len,
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::One(set) => set.memory_bytes(),
            Self::Grouped(grouped) => grouped.memory_bytes(),
        }
    }

    /// The most that inserting this timer can add to [`memory_bytes`](TimerSet::memory_bytes).
    pub(crate) fn growth_bytes(&self, timer: &Timer<K, N>) -> u64 {
        match self {
            Self::One(set) => set.growth_bytes(),
            Self::Grouped(grouped) => {
                grouped.sets[grouped.group_of(timer)].growth_bytes() + grouped.firsts.growth_bytes()
            }
        }
    }

    /// The first that may fire.
    pub(crate) fn first(&self) -> Option<&Timer<K, N>> {
        match self {
            Self::One(set) => set.first(),
            Self::Grouped(grouped) => {
                let (_, group) = grouped.firsts.first()?;
                grouped.sets[usize::from(*group)].first()
            }
        }
    }

    /// The group that has the last one, whether that may fire or not, and the last time of all other groups. Cost: a look
    /// at each group.
    pub(crate) fn group_of_last(&self) -> Option<(usize, Option<Time>)> {
        match self {
            Self::One(set) => set.last().map(|_| (0, None)),
            Self::Grouped(grouped) => {
                let (mut last, mut others) = (None, None);
                for (group, set) in grouped.sets.iter().enumerate() {
                    let Some(at) = set.last().map(|timer| timer.0.0) else { continue };
                    if last.is_none_or(|(most, _)| at > most) {
                        others = last.map(|(most, _)| most);
                        last = Some((at, group));
                    } else {
                        others = others.max(Some(at));
                    }
                }
                last.map(|(_, group)| (group, others))
            }
        }
    }

    /// The last of a group.
    pub(crate) fn last_of(&self, group: usize) -> Option<&Timer<K, N>> {
        match self {
            Self::One(set) => set.last(),
            Self::Grouped(grouped) => grouped.sets[group].last(),
        }
    }

    /// All of them, in an order that tells nothing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Timer<K, N>> {
        let sets = match self {
            Self::One(set) => std::slice::from_ref(set),
            Self::Grouped(grouped) => &grouped.sets,
        };
        sets.iter().flat_map(SortedBlocks::iter)
    }

    /// Adds a timer whose record is at this place, of this epoch; says whether it is new.
    pub(crate) fn insert(
        &mut self,
        timer: Timer<K, N>,
        (place, epoch): (RecordPosition, u32),
    ) -> bool {
        let note = |places: &mut TimerPlaces, at: usize| {
            if place != RecordPosition::NONE {
                places.set(at, place, epoch);
            }
        };
        match self {
            Self::One(set) => set.insert_noted(timer, note),
            Self::Grouped(grouped) => {
                let group = grouped.group_of(&timer);
                let new = grouped.change(group, |set| set.insert_noted(timer, note));
                grouped.len += usize::from(new);
                new
            }
        }
    }

    /// Removes a timer; with it the place of its record, of this epoch.
    pub(crate) fn remove(
        &mut self,
        timer: &Timer<K, N>,
        epoch: u32,
    ) -> Option<(Timer<K, N>, RecordPosition)> {
        let place = |places: &mut TimerPlaces, at: usize| places.get(at, epoch);
        match self {
            Self::One(set) => set.remove_noted(timer, place),
            Self::Grouped(grouped) => {
                let group = grouped.group_of(timer);
                let removed = grouped.change(group, |set| set.remove_noted(timer, place));
                grouped.len -= usize::from(removed.is_some());
                removed
            }
        }
    }

    /// Removes the first that may fire; with it the place of its record, of this epoch.
    pub(crate) fn pop_first(&mut self, epoch: u32) -> Option<(Timer<K, N>, RecordPosition)> {
        let place = |places: &mut TimerPlaces, at: usize| places.get(at, epoch);
        match self {
            Self::One(set) => set.pop_first_noted(place),
            Self::Grouped(grouped) => {
                let group = usize::from(grouped.firsts.first()?.1);
                let popped = grouped.change(group, |set| set.pop_first_noted(place));
                grouped.len -= usize::from(popped.is_some());
                popped
            }
        }
    }

    /// Brings them into the least memory. Cost: O(n).
    pub(crate) fn pack(&mut self) {
        match self {
            Self::One(set) => set.pack(),
            Self::Grouped(grouped) => {
                grouped.sets.iter_mut().for_each(SortedBlocks::pack);
                grouped.sets_bytes = grouped.sets.iter().map(SortedBlocks::memory_bytes).sum();
            }
        }
    }

    /// The one to be looked at after `last` by who looks at all that may fire.
    pub(crate) fn sweep(&self, last: Option<&Timer<K, N>>) -> Option<&Timer<K, N>> {
        match self {
            Self::One(set) => match last {
                Some(last) => set.after(last),
                None => set.first(),
            },
            Self::Grouped(grouped) => {
                let group = last.map(|last| grouped.group_of(last));
                let in_group = group.filter(|group| grouped.awake[*group]);
                let next = in_group.and_then(|group| grouped.sets[group].after(last?));
                let later = group.map_or(0, |group| group + 1)..grouped.sets.len();
                let mut later = later.filter(|group| grouped.awake[*group]);
                next.or_else(|| later.find_map(|group| grouped.sets[group].first()))
            }
        }
    }

    /// Shows the timers after `last`, also those that may not fire, with the places of a block and the number there,
    /// until `see` breaks: in order of time, or of key groups and then of time.
    pub(crate) fn scan<B>(
        &mut self,
        last: Option<&Timer<K, N>>,
        mut see: impl FnMut(&Timer<K, N>, &mut TimerPlaces, usize) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        match self {
            Self::One(set) => set.scan(last, see),
            Self::Grouped(grouped) => {
                let group = last.map_or(0, |last| grouped.group_of(last));
                let mut last = last;
                for set in &mut grouped.sets[group..] {
                    set.scan(last.take(), &mut see)?;
                }
                ControlFlow::Continue(())
            }
        }
    }

    /// Whether `timer` comes after `last` in that order.
    pub(crate) fn is_after(&self, timer: &Timer<K, N>, last: &Timer<K, N>) -> bool {
        match self {
            Self::One(_) => last < timer,
            Self::Grouped(grouped) => {
                (grouped.group_of(last), last) < (grouped.group_of(timer), timer)
            }
        }
    }

    /// The timer of a group after `last`, in order of time.
    pub(crate) fn next_of(
        &self,
        group: KeyGroup,
        last: Option<&Timer<K, N>>,
    ) -> Option<&Timer<K, N>> {
        let Self::Grouped(grouped) = self else { return None };
        let set = &grouped.sets[usize::from(group.0)];
        last.map_or_else(|| set.first(), |last| set.after(last))
    }

    /// Timers of the group may fire, or may not.
    pub(crate) fn wake(&mut self, group: KeyGroup, awake: bool) {
        let Self::Grouped(grouped) = self else { return };
        let at = usize::from(group.0);
        if grouped.awake[at] != awake {
            if let Some(timer) = grouped.sets[at].first() {
                let first = (timer.0.0, group.0);
                match awake {
                    true => drop(grouped.firsts.insert(first)),
                    false => drop(grouped.firsts.remove(&first)),
                }
            }
            grouped.awake[at] = awake;
        }
    }
}

impl<K: Key + Ord, N: State + Ord> GroupedTimers<K, N> {
    fn group_of(&self, timer: &Timer<K, N>) -> usize {
        usize::from(self.groups.group_of(timer.0.1.key_hash()))
    }

    fn memory_bytes(&self) -> u64 {
        let tables =
            rounded(self.sets.len() * size_of::<TimerBlocks<K, N>>()) + rounded(self.awake.len());
        self.sets_bytes + self.firsts.memory_bytes() + tables as u64
    }

    /// Changes the timers of a group, and what is known of its first.
    fn change<R>(&mut self, group: usize, change: impl FnOnce(&mut TimerBlocks<K, N>) -> R) -> R {
        let set = &mut self.sets[group];
        let first = |set: &TimerBlocks<K, N>| set.first().map(|timer| timer.0.0);
        let (bytes, before) = (set.memory_bytes(), first(set));
        let result = change(set);
        self.sets_bytes = self.sets_bytes - bytes + set.memory_bytes();
        let after = first(set);
        if self.awake[group] && before != after {
            before.map(|time| self.firsts.remove(&(time, group as u16)));
            after.map(|time| self.firsts.insert((time, group as u16)));
        }
        result
    }
}
