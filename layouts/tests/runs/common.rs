//! Runs of small records with keys, and the map that says what they should have.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::runs_internals::{
    Judge, MergeSizes, RecordView, RunInfo, RunMerge, RunSizes, RunWriter, SortedRun,
};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, Result, SegmentStore, hash_word};

use crate::dice::Dice;

pub const STATE: u64 = 77;
pub const TOMBSTONE: u32 = 1;

/// A record: hash, order, key, whether it is a tombstone, and the rest of its payload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owned {
    pub hash: u64,
    pub order: Vec<u8>,
    pub key: u64,
    pub mark: u32,
    pub value: Vec<u8>,
}

impl Owned {
    pub fn of(record: &RecordView<'_>) -> Self {
        assert_eq!(record.payload.as_ptr() as usize % 16, 0, "payloads are aligned");
        Self {
            hash: record.hash,
            order: record.order.to_vec(),
            key: key_of(record),
            mark: record.mark,
            value: record.payload[8..].to_vec(),
        }
    }

    pub fn payload(&self) -> Vec<u8> {
        [&self.key.to_le_bytes()[..], &self.value].concat()
    }

    /// Where it stands.
    pub fn place(&self) -> (u64, Vec<u8>) {
        (self.hash, self.order.clone())
    }
}

pub fn key_of(record: &RecordView<'_>) -> u64 {
    u64::from_le_bytes(record.payload[..8].try_into().unwrap())
}

pub fn store(device: &Simulated) -> SegmentStore {
    SegmentStore::new(Arc::new(device.clone()), 1)
}

pub fn device(seed: u64) -> Simulated {
    Simulated::new(seed, Faults::none())
}

pub fn account() -> Rc<Account> {
    Account::below(&Account::root(1 << 30), "cold", 1 << 30)
}

/// Small partitions, files and buffers.
pub fn small() -> RunSizes {
    RunSizes {
        partition_hashes: 200,
        write_bytes: 16 << 10,
        file_bytes: 100 << 10,
        payload_bytes_max: 40_000,
        order_bytes: 0,
        key_groups: 16,
        groups_each: 2,
        syncs: true,
        is_wide: false,
    }
}

/// Writes records, which are in order.
pub fn write(store: &SegmentStore, sizes: RunSizes, records: &[Owned]) -> Result<Vec<RunInfo>> {
    let mut writer = RunWriter::new(store.clone(), STATE, sizes)?;
    for record in records {
        let (payload, order) = (record.payload(), &record.order);
        let (hash, mark) = (record.hash, record.mark);
        writer.push(RecordView { hash, mark, order, payload: &payload })?;
    }
    writer.finish()?;
    Ok(writer.take_sealed())
}

/// All records of a hash in runs of one level, as [`SortedRun::find`] shows them.
pub fn find(runs: &mut [SortedRun], hash: u64) -> Result<Vec<Owned>> {
    let mut found = Vec::new();
    let mut buffer = runs.first().map(SortedRun::buffer);
    for run in runs {
        run.find(hash, buffer.as_mut().unwrap(), &mut |record| {
            found.push(Owned::of(&record));
            Ok(false)
        })?;
    }
    Ok(found)
}

pub fn open(store: &SegmentStore, infos: &[RunInfo], account: &Rc<Account>) -> Vec<SortedRun> {
    let open = |info: &RunInfo| SortedRun::open(store.clone(), info.clone(), account).unwrap();
    infos.iter().map(open).collect()
}

/// What stays of equal records: the newest of each key; no tombstones in the last level.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    pub is_last: bool,
}

impl Judge for Newest {
    fn judge(&mut self, group: &[RecordView<'_>], stays: &mut [bool]) -> Result<()> {
        for nth in 0..group.len() {
            let is_old = group[..nth].iter().any(|newer| key_of(newer) == key_of(&group[nth]));
            let is_over = self.is_last && group[nth].mark == TOMBSTONE;
            stays[nth] = !(is_old || is_over);
        }
        Ok(())
    }
}

/// [`small`] with room for two buffers, of which one is written while the other is filled.
pub fn twofold() -> RunSizes {
    RunSizes { write_bytes: 96 << 10, ..small() }
}

/// Sizes of a merge, which reads ahead if it has two buffers to write.
fn merge_sizes(sizes: RunSizes, levels: &[&[RunInfo]]) -> MergeSizes {
    let reads_ahead = sizes.write_bytes > small().write_bytes;
    MergeSizes { reads_ahead, ..MergeSizes::of(sizes, 8 << 10, levels) }
}

/// Merges levels, of which the newest comes first and each is runs in order. Gives up where a step fails.
pub fn merge(
    store: &SegmentStore,
    sizes: RunSizes,
    levels: &[Vec<RunInfo>],
    is_last: bool,
    fuel: u64,
) -> Result<Vec<RunInfo>> {
    let runs: Vec<&[RunInfo]> = levels.iter().map(Vec::as_slice).collect();
    let mut merge = RunMerge::new(store, STATE, &runs, merge_sizes(sizes, &runs))?;
    let mut merged = Vec::new();
    loop {
        let done = merge.step(fuel, &mut Newest { is_last });
        merged.append(&mut merge.take_sealed());
        match done {
            Ok(true) => return Ok(merged),
            Ok(false) => {}
            Err(error) => {
                merge.abandon().ok();
                for info in merged {
                    store.remove_file(&info.id.file_name()).ok();
                }
                return Err(error);
            }
        }
    }
}

/// [`merge`] where a step that fails is made again. Says how many did.
pub fn merge_again(
    store: &SegmentStore,
    sizes: RunSizes,
    levels: &[Vec<RunInfo>],
    is_last: bool,
    fuel: u64,
) -> Result<(Vec<RunInfo>, usize)> {
    let runs: Vec<&[RunInfo]> = levels.iter().map(Vec::as_slice).collect();
    let mut merge = RunMerge::new(store, STATE, &runs, merge_sizes(sizes, &runs))?;
    let mut failed = 0;
    loop {
        match merge.step(fuel, &mut Newest { is_last }) {
            Ok(true) => return Ok((merge.take_sealed(), failed)),
            Ok(false) => {}
            Err(_) if merge.can_go_on() => failed += 1,
            Err(error) => {
                merge.abandon().unwrap();
                return Err(error);
            }
        }
    }
}

/// The history of a level: random records in order, of keys below `keys`, whose hashes have `bits`.
pub fn level(dice: &mut Dice, count: u64, keys: u64, bits: u32, order_bytes: usize) -> Vec<Owned> {
    let mut map = BTreeMap::new();
    for _ in 0..count {
        let key = dice.below(keys);
        let is_tombstone = dice.below(5) == 0;
        let length = match dice.below(200) {
            0 => 5000 + dice.below(30_000),
            1..20 => dice.below(600),
            _ => dice.below(64),
        };
        let length = if is_tombstone { 0 } else { length as usize };
        let hash = if bits == 0 { 1 << 50 } else { hash_word(key) >> (64 - bits) << (64 - bits) };
        let order = dice.below(3).to_be_bytes()[8 - order_bytes.min(8)..].to_vec();
        let (mark, value) = (u32::from(is_tombstone), vec![dice.next() as u8; length]);
        map.insert((hash, order.clone(), key), Owned { hash, order, key, mark, value });
    }
    map.into_values().collect()
}

/// What a merge of levels, the newest first, should have.
pub fn expected(levels: &[Vec<Owned>], is_last: bool) -> Vec<Owned> {
    let mut newest: BTreeMap<(u64, Vec<u8>), Vec<Owned>> = BTreeMap::new();
    for record in levels.iter().flatten() {
        let group = newest.entry(record.place()).or_default();
        if group.iter().all(|newer| newer.key != record.key) {
            group.push(record.clone());
        }
    }
    let stays = |record: &Owned| !(is_last && record.mark == TOMBSTONE);
    newest.into_values().flatten().filter(stays).collect()
}
