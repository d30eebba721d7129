//! Loading many entries at once: see [`cold::loading`](crate::hybrid_log::cold).

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{ErrorKind, Key, Result, State, Trials};

use super::HybridLogTable;
use super::batches::GROUP;
use crate::contract::loading::LoadRoom;
use crate::hybrid_log::cold::PAYLOAD_MAX;
use crate::hybrid_log::log::RecordLocation;
use crate::support::prefetch_unsafe::prefetch;

/// Merges go on after so many groups of keys.
const STEP_GROUPS: usize = 8;
/// After so many groups it is looked whether most keys are new.
const LOOK_GROUPS: usize = 64;

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Loads a batch for which there was room. After an error those are left that were not put.
    pub(super) fn load_all(&mut self, batch: &mut Vec<(K, V)>, mut room: LoadRoom) -> Result<()> {
        let all = batch.len();
        let is_level = match self.load_new(batch, &room) {
            Some(mut left) => {
                keep_only(batch, &mut left);
                true
            }
            None => false,
        };
        room.shrink_to((batch.len() * size_of::<(K, V)>()) as u64);
        self.core.log.save_up_again();
        let is_in_vain = is_level && 2 * batch.len() > all;
        let put = self.put_in_order(batch);
        drop(room);
        let put = match put {
            // Moves have that memory now.
            Err(error)
                if matches!(error.kind(), ErrorKind::OverBudget | ErrorKind::Backpressure) =>
            {
                self.put_in_order(batch)
            }
            put => put,
        };
        self.core.log.end_load(is_in_vain);
        if batch.is_empty() {
            *batch = Vec::new();
        }
        put
    }

    /// Writes the entries of new keys as a level. Returns the numbers of the others. None: all are to be put.
    fn load_new(&mut self, batch: &[(K, V)], room: &LoadRoom) -> Option<Vec<u32>> {
        let mut level = self.core.log.begin_level(batch.len(), room)?;
        let hashes = batch.iter().map(|(key, _)| key.key_hash());
        let mut order: Vec<(u64, u32)> = hashes.zip(0..).collect();
        order.sort_unstable();
        let (mut left, mut next, mut new) = (Vec::with_capacity(batch.len()), 0, 0);
        let (mut trials, mut payload) = (Trials::default(), AlignedVec::new());
        for nth in 0.. {
            let mut group = [(0, 0); GROUP];
            let (count, end) = alone(&order, next, &mut group, &mut left);
            next = end;
            if count == 0 {
                break;
            }
            let is_new = self.are_new(batch, &group[..count]);
            for (bit, (hash, entry)) in group[..count].iter().enumerate() {
                let (key, value) = &batch[*entry as usize];
                let goes = is_new >> bit & 1 == 1
                    && trials.encode(&mut payload, key, value).is_ok()
                    && payload.len() <= PAYLOAD_MAX;
                if !goes {
                    left.push(*entry);
                    continue;
                }
                level.push(*hash, &payload).ok()?;
                // Those before are not looked at again.
                order[new] = (*hash, *entry);
                new += 1;
            }
            if nth % STEP_GROUPS == 0 {
                self.core.log.merge_meanwhile();
            }
            if nth % LOOK_GROUPS == LOOK_GROUPS - 1 && left.len() > new {
                break;
            }
        }
        left.extend(order[next..].iter().map(|(_, entry)| *entry));
        order.truncate(new);
        let hashes = order.iter().map(|(hash, _)| *hash);
        self.core.log.install_level(level, hashes).ok()?;
        Some(left)
    }

    /// Which entries of a group, in the order of their hashes, are of keys that are not there: a bit for each.
    fn are_new(&mut self, batch: &[(K, V)], group: &[(u64, u32)]) -> u64 {
        let mut hashes = [0; GROUP];
        for ((hash, entry), to) in group.iter().zip(&mut hashes) {
            self.core.log.index.prefetch(self.core.log.index_hash(*hash));
            let entry = &raw const batch[*entry as usize];
            prefetch(entry);
            prefetch(entry.wrapping_add(1).cast::<u8>().wrapping_sub(1));
            *to = *hash;
        }
        let may_have = self.core.log.may_have_in_order(&hashes[..group.len()]);
        let mut new = 0;
        for (bit, (hash, entry)) in group.iter().enumerate() {
            let is_new = may_have >> bit & 1 == 0 && {
                let key = &batch[*entry as usize].0;
                let located = self.core.locate_again(self.core.log.index_hash(*hash), key);
                matches!(located, RecordLocation::Absent)
            };
            new |= u64::from(is_new) << bit;
        }
        new
    }
}

/// The next entries that are alone with their hash, as many as a group has, and where the rest begins. Those that share
/// one are left: keys may be equal, of which the last stays.
fn alone(
    order: &[(u64, u32)],
    mut next: usize,
    group: &mut [(u64, u32); GROUP],
    left: &mut Vec<u32>,
) -> (usize, usize) {
    let mut count = 0;
    while count < GROUP && next < order.len() {
        let hash = order[next].0;
        let equal = order[next..].iter().take_while(|other| other.0 == hash).count();
        if equal == 1 {
            group[count] = order[next];
            count += 1;
        } else {
            left.extend(order[next..next + equal].iter().map(|(_, entry)| *entry));
        }
        next += equal;
    }
    (count, next)
}

/// Keeps the entries with these numbers, in order.
fn keep_only<T>(batch: &mut Vec<T>, numbers: &mut [u32]) {
    numbers.sort_unstable();
    let (mut nth, mut kept) = (0, numbers.iter().peekable());
    batch.retain(|_| {
        let stays = kept.next_if_eq(&&nth).is_some();
        nth += 1;
        stays
    });
    batch.shrink_to_fit();
}
