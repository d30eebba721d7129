//! When packing begins, and what small buckets that wait for merges of levels hold up.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Helper, SegmentStore, StateImage, Time, hash_word,
};

use super::{BUCKETS_SHARE, LEVELS_MAX, PACKED};
use crate::append_log::{AppendLog, AppendLogLists};
use crate::contract::lists::{Lists, ListsLayout};
use crate::contract::table::{CheckpointOutcome, Cursor, StateContext};
use crate::contract::upkeep::Upkeep;

pub(super) type Element = [u64; 4];

pub(super) struct Ground {
    pub(super) device: Arc<dyn Device>,
    context: StateContext,
    memory: u64,
    pub(super) lists: AppendLogLists<u64, Element>,
    blobs: u64,
}

impl Ground {
    pub(super) fn new(layout: &AppendLog, memory: u64) -> Self {
        Self::with_helper(layout, memory, Helper::inline())
    }

    pub(super) fn with_helper(layout: &AppendLog, memory: u64, helper: Helper) -> Self {
        let device: Arc<dyn Device> = Arc::new(Simulated::new(5, Faults::none()));
        let context = StateContext {
            name: "lists".into(),
            account: Account::below(&Account::root(memory), "lists", u64::MAX),
            segments: Some(SegmentStore::new(device.clone(), 1)),
            helper,
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored: None,
        };
        let lists = layout.open_lists(context.clone()).unwrap();
        Self { device, context, memory, lists, blobs: 0 }
    }

    fn blobs(&mut self) -> BlobWriter {
        self.blobs += 1;
        BlobWriter::new(self.device.clone(), self.blobs, 4096)
    }

    pub(super) fn checkpoint(&mut self) -> StateImage {
        let mut blobs = self.blobs();
        let image = self.lists.checkpoint(&mut blobs).unwrap();
        blobs.finish().unwrap();
        self.lists.checkpointed(CheckpointOutcome::Committed);
        image
    }

    /// Opens what a checkpoint has, in place of the lists.
    pub(super) fn reopen(&mut self, layout: &AppendLog, image: StateImage) {
        let context = self.context.clone();
        let account = Account::below(&Account::root(self.memory), "lists", u64::MAX);
        let restored = Some((image, BlobReader::new(self.device.clone())));
        self.lists = layout.open_lists(StateContext { account, restored, ..context }).unwrap();
    }

    pub(super) fn append(&mut self, slice: i64, range: Range<u64>) {
        range.for_each(|n| self.lists.append(Time(slice), &7, [n; 4]).unwrap());
    }

    pub(super) fn fold(&mut self, slice: i64) -> Vec<Element> {
        let (mut cursor, mut found) = (Cursor::default(), BTreeMap::new());
        while !cursor.done {
            let window = Time(slice)..Time(slice + 1);
            let step = self.lists.fold(window, &mut cursor, 100, &mut |key, list| {
                let all: &mut Vec<Element> = found.entry(*key).or_default();
                while let Some(element) = list.next()? {
                    all.push(*element);
                }
                Ok(())
            });
            step.unwrap();
        }
        found.remove(&7).unwrap_or_default()
    }

    /// Slices that have a run of their own on storage.
    pub(super) fn with_runs(&self) -> Vec<i64> {
        let runs =
            self.lists.core.buckets.values().flat_map(|b| b.runs.iter().map(|r| (b.time, r)));
        let own = runs.filter(|(_, run)| run.stored.is_some() && run.number != PACKED);
        own.map(|(time, _)| time.0).collect()
    }

    pub(super) fn hold_merges(&mut self, are_held: bool) {
        self.lists.core.packed.as_mut().unwrap().are_merges_held = are_held;
    }
}

/// Each slice has a run of few elements first: then some more come to it, or none.
#[test]
fn a_slice_that_has_grown_is_not_counted_as_a_small_one() {
    for (rounds, each, are_many) in [(1, 10, true), (3, 10, true), (3, 200, false)] {
        let mut ground = Ground::new(&AppendLog::new().packs_slices(true), 2 << 20);
        for slice in 0..40 {
            for round in 0..rounds {
                ground.append(slice, round * each..(round + 1) * each);
                ground.checkpoint();
            }
        }
        ground.append(100, 0..1);
        assert_eq!(ground.lists.core.packed.as_ref().unwrap().small_bytes, 32 << 10);
        let found = ground.lists.core.has_many_small(BUCKETS_SHARE);
        assert_eq!(found, are_many, "{rounds} runs of {each} elements each");
    }
}

/// A merge of levels that takes long: large slices are written meanwhile, packed ones are read, and nothing waits for it.
#[test]
fn small_slices_that_wait_for_merges_hold_nothing_up() {
    let memory = 4 << 20;
    let mut ground = Ground::new(&AppendLog::new().pack_all(), memory);
    // A merge begins, and does not go on.
    ground.append(0, 0..1);
    ground.lists.reclaim(u64::MAX).unwrap();
    ground.hold_merges(true);
    let mut small = 1;
    while !ground.lists.core.waits_for_merges() {
        (small..small + 10).for_each(|slice| ground.append(slice, 0..3));
        small += 10;
        assert!(small < 2_000, "levels become many");
        ground.lists.reclaim(u64::MAX).unwrap();
    }
    assert!(ground.lists.core.packed.as_ref().unwrap().levels.len() > 2 * LEVELS_MAX);
    let packed = small;
    (small..small + 100).for_each(|slice| ground.append(slice, 0..3));
    small += 100;
    // A checkpoint freezes them, and waits.
    let mut blobs = ground.blobs();
    let begun = ground.lists.begin_checkpoint(&mut blobs).unwrap();
    assert!(begun.is_none() && ground.lists.continue_checkpoint(&mut blobs).unwrap().is_none());
    // More than the memory has room for.
    let large = 10_000..10_030;
    for slice in large.clone() {
        ground.append(slice, 0..8_000);
    }
    let written = ground.with_runs();
    assert!(!written.is_empty() && written.iter().all(|slice| large.contains(slice)));
    ground.lists.reclaim(u64::MAX).unwrap();
    assert!(large.clone().all(|slice| ground.with_runs().contains(&slice)));
    assert_eq!(ground.fold(packed / 2), [[0; 4], [1; 4], [2; 4]]);
    // It looks for something to write once.
    let start = ground.lists.core.looked_for_unwritten;
    for _ in 0..100 {
        assert!(ground.lists.continue_checkpoint(&mut blobs).unwrap().is_none());
    }
    assert!(ground.lists.core.looked_for_unwritten <= start + 3);
    // What is free is given, though no more than that.
    let free = ground.lists.core.account.available();
    ground.lists.core.make_room(free, "a fold").unwrap();
    // Levels are merged: all is packed that is small.
    ground.hold_merges(false);
    while ground.lists.continue_checkpoint(&mut blobs).unwrap().is_none() {}
    blobs.finish().unwrap();
    ground.lists.checkpointed(CheckpointOutcome::Committed);
    ground.lists.reclaim(u64::MAX).unwrap();
    assert!(ground.with_runs().iter().all(|slice| large.contains(slice)));
    for slice in (0..small).step_by(7) {
        let count = if slice == 0 { 1 } else { 3 };
        assert!(ground.fold(slice).into_iter().eq((0..count).map(|n| [n; 4])), "{slice}");
    }
    for slice in large {
        assert!(ground.fold(slice).into_iter().eq((0..8_000).map(|n| [n; 4])), "{slice}");
    }
    assert!(ground.lists.core.account.stats().peak <= memory);
}

/// A checkpoint between two parts of a merge, and purging: what is merged and what is cut is told by it.
#[test]
fn a_checkpoint_between_two_parts_of_a_merge_has_each_slice_once() {
    let layout = AppendLog::new().pack_all();
    let mut ground = Ground::new(&layout, 4 << 20);
    let (slices, mut rounds, mut deepest) = (600, vec![0u64; 600], 0);
    let mut purged = 0;
    for batch in 0..120u64 {
        for n in 0..40 {
            let slice = purged + (hash_word(batch << 8 | n) % (slices - purged as u64)) as i64;
            let count = &mut rounds[slice as usize];
            ground.append(slice, *count..*count + 2);
            *count += 2;
        }
        ground.lists.reclaim(u64::MAX).unwrap();
        // Some parts a batch, of merges that do not go on otherwise.
        let packed = ground.lists.core.packed.as_mut().unwrap();
        packed.are_merges_held = false;
        (0..3).for_each(|_| packed.step(false).unwrap());
        packed.are_merges_held = true;
        let parted = ground.lists.core.packed.as_ref().unwrap().levels.parted();
        deepest = deepest.max(parted);
        if parted == 0 || batch % 5 != 0 {
            continue;
        }
        if batch % 3 == 0 {
            purged += 11;
            ground.lists.purge(Time(purged), usize::MAX).unwrap();
        }
        let image = ground.checkpoint();
        if batch % 2 == 0 {
            ground.reopen(&layout, image);
        }
        for slice in (0..slices as i64).step_by(3) {
            let count = if slice < purged { 0 } else { rounds[slice as usize] };
            assert!(ground.fold(slice).into_iter().eq((0..count).map(|n| [n; 4])), "{slice}");
        }
    }
    assert!(deepest > 0 && purged > 0, "{deepest} merges in parts, {purged}");
    let total: u64 = rounds[purged as usize..].iter().sum();
    assert_eq!(ground.lists.len(), total);
}

/// A stream of slices, some of which are open at a time, and each of which is large: of keys that have a list in each.
pub(super) struct Large {
    pub(super) ground: Ground,
    keys: u64,
    /// What each slice has, by key.
    pub(super) model: BTreeMap<i64, BTreeMap<u64, Vec<Element>>>,
}

impl Large {
    pub(super) fn new(memory: u64, keys: u64) -> Self {
        let layout = AppendLog::new().packs_slices(true);
        Self { ground: Ground::new(&layout, memory), keys, model: BTreeMap::new() }
    }

    fn append(&mut self, slice: i64, nth: u64) {
        let key = hash_word(nth) % self.keys;
        let element = [nth, slice as u64, key, 7];
        let appended = self.ground.lists.append(Time(slice), &key, element);
        appended.unwrap_or_else(|refused| panic!("{slice}, {nth}: {}", refused.error));
        self.model.entry(slice).or_default().entry(key).or_default().push(element);
    }

    /// Elements come to slices that are open, the first of which is closed as another one is opened.
    pub(super) fn stream(&mut self, slices: i64, open: i64, each: u64) {
        for nth in 0..slices as u64 * each {
            let first = (nth / each) as i64;
            let slice = first + (hash_word(nth ^ 77) % open as u64) as i64;
            self.append(slice, nth);
        }
    }

    pub(super) fn check(&mut self, slice: i64) {
        let (mut cursor, mut found) = (Cursor::default(), BTreeMap::<u64, Vec<Element>>::new());
        while !cursor.done {
            let window = Time(slice)..Time(slice + 1);
            let step = self.ground.lists.fold(window, &mut cursor, 300, &mut |key, list| {
                let all = found.entry(*key).or_default();
                while let Some(element) = list.next()? {
                    all.push(*element);
                }
                Ok(())
            });
            step.unwrap();
        }
        assert!(self.model.get(&slice).is_none_or(|wanted| *wanted == found), "{slice}");
        assert_eq!(self.model.contains_key(&slice), !found.is_empty(), "{slice}");
    }

    fn read(&mut self, slice: i64, key: u64) {
        let mut found = Vec::new();
        let read = self.ground.lists.stream(Time(slice), &key, &mut |list| {
            while let Some(element) = list.next()? {
                found.push(*element);
            }
            Ok(())
        });
        read.unwrap();
        let wanted = self.model.get(&slice).and_then(|slice| slice.get(&key));
        assert!(wanted.map_or(&[][..], |all| &all[..]) == found, "{slice}, {key}");
    }

    pub(super) fn clear(&mut self, slice: i64, key: u64) {
        self.ground.lists.clear_key(Time(slice), &key).unwrap();
        if let Some(all) = self.model.get_mut(&slice) {
            all.remove(&key);
        }
        self.model.retain(|_, all| !all.is_empty());
    }

    /// Moves the list of a key to another slice, before what that has.
    fn relocate(&mut self, from: i64, to: i64, key: u64) {
        self.ground.lists.relocate(Time(from), Time(to), &key).unwrap();
        let moved = self.model.get_mut(&from).and_then(|all| all.remove(&key));
        if let Some(mut moved) = moved {
            let all = self.model.entry(to).or_default().entry(key).or_default();
            moved.append(all);
            *all = moved;
        }
        self.model.retain(|_, all| !all.is_empty());
    }
}

/// Slices of 20 to 50 KB take a few bytes of memory each, of one key or of many, open at once or one after the other.
fn pack_large((keys, open, each): (u64, i64, u64), slices: i64) {
    let memory = 1 << 20;
    let mut large = Large::new(memory, keys);
    large.stream(slices, open, each);
    let own = large.ground.with_runs().len();
    // Those of the first slices, which come before packing begins.
    assert!(own < 200, "{own} runs");
    let packed = large.ground.lists.core.packed.as_ref().unwrap();
    let most = packed.directory.within(Time::MIN..=Time::MAX).map(|(_, slice)| slice.bytes).max();
    let (count, bytes) = (packed.directory.len(), packed.directory.memory_bytes());
    println!("{own} runs, {count} slices, {most:?} bytes most, {bytes} bytes of directory");
    assert!(most > Some(20 << 10), "{most:?}");
    assert!(bytes < 16 * slices as u64);
    assert!(open > 1 || packed.packs_large);
    for slice in (0..slices).step_by(43) {
        large.check(slice);
        large.read(slice, slice as u64 % keys);
    }
    assert!(large.ground.lists.core.account.stats().peak <= memory);
    let image = large.ground.checkpoint();
    large.ground.reopen(&AppendLog::new().packs_slices(true), image);
    for slice in (0..slices).step_by(101) {
        large.check(slice);
        large.clear(slice, slice as u64 % keys);
        large.relocate(slice + 1, slice + 2, slice as u64 % keys);
        (slice..slice + 3).for_each(|slice| large.check(slice));
        large.append(slice, 1 << 40);
        large.check(slice);
    }
    assert!(large.ground.lists.core.account.stats().peak <= memory);
    let middle = slices / 2;
    large.ground.lists.purge(Time(middle), usize::MAX).unwrap();
    large.model.retain(|slice, _| *slice >= middle);
    (middle - 10..middle + 10).for_each(|slice| large.check(slice));
    let left = large.model.values().flat_map(|all| all.values()).map(|list| list.len() as u64);
    assert!(large.ground.lists.len() >= left.sum());
}

#[test]
fn large_slices_of_one_list_are_packed_where_there_are_many() {
    pack_large((1, 64, 700), 400);
}

#[test]
fn large_slices_of_many_lists_are_packed_where_there_are_many() {
    pack_large((150, 64, 700), 400);
}

#[test]
fn large_slices_one_after_the_other_are_packed_where_there_are_many() {
    pack_large((20, 1, 1_500), 300);
}

/// Slices of equal width whose lists are alike take next to no memory each: 1 MiB takes twice as many as it did with the
/// bytes that a checkpoint tells of each in memory, which was 38,000, also when it is opened again.
#[test]
fn slices_of_equal_width_take_a_byte_or_two_of_memory() {
    const SECOND: i64 = 1_000_000_000;
    const SLICES: i64 = 80_000;
    let (memory, layout) = (1 << 20, AppendLog::new());
    let mut ground = Ground::new(&layout, memory);
    (0..SLICES).for_each(|nth| {
        ground.lists.append(Time(nth * SECOND), &7, [nth as u64; 4]).unwrap();
    });
    let packed = |ground: &Ground| {
        let directory = &ground.lists.core.packed.as_ref().unwrap().directory;
        (directory.len(), directory.memory_bytes())
    };
    let (slices, bytes) = packed(&ground);
    println!("{bytes} bytes of the directory for {slices} slices");
    assert!(slices > 78_000 && bytes < 2 * slices);
    let image = ground.checkpoint();
    ground.reopen(&layout, image);
    let (slices, again) = packed(&ground);
    assert!(slices > 78_000 && again <= bytes + bytes / 16, "{again} bytes for {slices} slices");
    assert_eq!(ground.lists.len(), SLICES as u64);
    for nth in (0..SLICES).step_by(499).chain([SLICES - 1]) {
        assert_eq!(ground.fold(nth * SECOND), [[nth as u64; 4]], "{nth}");
    }
    assert!(ground.lists.core.account.stats().peak <= memory);
}

/// A slice that has nothing of a list that is cleared, or nothing else, stays packed, or goes.
#[test]
fn clearing_unpacks_only_slices_that_have_something_else_too() {
    let mut ground = Ground::new(&AppendLog::new().pack_all(), 4 << 20);
    for slice in 0..200 {
        ground.append(slice, 0..3);
        if slice % 4 == 0 {
            ground.lists.append(Time(slice), &8, [5; 4]).unwrap();
        }
    }
    ground.lists.reclaim(u64::MAX).unwrap();
    let is_packed = |ground: &Ground, slice| ground.lists.core.is_packed(Time(slice));
    assert!((0..200).all(|slice| is_packed(&ground, slice)));
    for slice in 0..200 {
        ground.lists.clear_key(Time(slice), &9).unwrap();
    }
    assert!(
        (0..200).all(|slice| is_packed(&ground, slice)) && ground.lists.core.buckets.is_empty()
    );
    assert_eq!(ground.lists.len(), 650);
    for slice in 0..100 {
        ground.lists.clear_key(Time(slice), &7).unwrap();
        // What has nothing else is gone.
        assert!(
            !is_packed(&ground, slice) && ground.lists.core.buckets.is_empty() == (slice % 4 > 0)
        );
        assert_eq!(ground.fold(slice), [[0; 4]; 0]);
        ground.lists.clear_key(Time(slice), &8).unwrap();
    }
    assert_eq!(ground.lists.len(), 325);
    for slice in 100..200 {
        // Something more of it is in memory.
        ground.append(slice, 3..4);
        ground.lists.clear_key(Time(slice), &(7 + slice as u64 % 2)).unwrap();
        let count = if slice % 2 == 0 { 0 } else { 4 };
        assert!(ground.fold(slice).into_iter().eq((0..count).map(|n| [n; 4])), "{slice}");
    }
}
