//! What a worker says in a checkpoint besides what is in its store, and what a run makes of what all
//! have said: which events are done, whatever the numbers of workers then and now.
//!
//! Each worker has done the events of its share before its next one. The shares of all together are
//! the stream, so that what they have said is exactly the set of events done. In event time that is
//! all before some ordinal, as a checkpoint is taken at one time. By the wall clock it may have gaps,
//! which a run with other shares closes as it goes; until it has, its own checkpoints say so.

use alluvium_timely::JobCheckpoint;

use crate::nexmark::Stride;
use crate::{Error, Result};

/// The events of a share before some ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    stride: Stride,
    next: u64,
}

impl Share {
    fn has(&self, ordinal: u64) -> bool {
        ordinal < self.next && self.stride.contains(ordinal)
    }

    /// Whether none of its events is `next` or later.
    fn is_before(&self, next: u64) -> bool {
        self.next <= next || self.stride.first_from(next) >= self.next
    }
}

/// The events that a run before this one has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Done(Vec<Share>);

impl Done {
    /// Whether the event with this ordinal is done.
    pub(super) fn has(&self, ordinal: u64) -> bool {
        self.0.iter().any(|share| share.has(ordinal))
    }
}

/// What a worker says in a checkpoint, besides what is in its store.
#[derive(Debug)]
pub(super) struct Said {
    /// The ordinal of its next event; after the last that of no event.
    pub(super) next: u64,
    /// Sum of the digests of its changes.
    pub(super) checksum: u64,
    /// Bytes of the ledger, on the first worker.
    pub(super) ledger_bytes: u64,
}

impl Said {
    /// As words, with what of `done` is not before the next event.
    pub(super) fn words(&self, done: &Done) -> Vec<u64> {
        let gaps = done.0.iter().filter(|share| !share.is_before(self.next));
        let mut words = vec![self.next, self.checksum, self.ledger_bytes];
        words.extend(gaps.flat_map(|share| {
            let (offset, step) = share.stride.parts();
            [offset, step, share.next]
        }));
        words
    }
}

/// What a run goes on from.
#[derive(Debug)]
pub(super) struct Restored {
    /// The first event that is not done.
    pub(super) next: u64,
    pub(super) done: Done,
    /// Sum of the digests of all changes.
    pub(super) checksum: u64,
    /// Bytes of the ledger.
    pub(super) ledger_bytes: u64,
}

impl Restored {
    /// What the workers have said together.
    ///
    /// # Errors
    /// It was not this program that made the checkpoint.
    pub(super) fn of(checkpoint: &JobCheckpoint) -> Result<Self> {
        let positions = checkpoint.workers.iter().map(|worker| &worker.position[..]);
        Self::of_positions(positions).ok_or_else(|| {
            Error::Usage("the directory's checkpoint is not one of this program".to_owned())
        })
    }

    fn of_positions<'a>(positions: impl ExactSizeIterator<Item = &'a [u64]>) -> Option<Self> {
        let workers = positions.len();
        let mut all = Self { next: u64::MAX, done: Done::default(), checksum: 0, ledger_bytes: 0 };
        for (index, position) in positions.enumerate() {
            let &[next, checksum, ledger_bytes, ref gaps @ ..] = position else { return None };
            all.next = all.next.min(next);
            all.checksum = all.checksum.wrapping_add(checksum);
            if index == 0 {
                all.ledger_bytes = ledger_bytes;
            }
            all.done.0.push(Share { stride: Stride::of_worker(index, workers), next });
            let (gaps, rest) = gaps.as_chunks::<3>();
            for &[offset, step, next] in gaps {
                all.done.0.push(Share { stride: Stride::of_parts(offset, step)?, next });
            }
            if !rest.is_empty() {
                return None;
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Runs with other numbers of workers, each of which stops anywhere: not at one ordinal.
    #[test]
    fn whatever_the_numbers_of_workers_each_event_is_done_once() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut dice = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        const EVENTS: u64 = 400;
        for _ in 0..300 {
            let mut applied = BTreeSet::new();
            let mut positions: Vec<Vec<u64>> = vec![vec![0, 0, 0]];
            while applied.len() < EVENTS as usize {
                let restored =
                    Restored::of_positions(positions.iter().map(|words| &words[..])).unwrap();
                let first = (0..).find(|ordinal| !applied.contains(ordinal)).unwrap();
                assert_eq!(restored.next, first);
                assert_eq!(restored.checksum, applied.len() as u64);
                for ordinal in 0..EVENTS {
                    assert_eq!(restored.done.has(ordinal), applied.contains(&ordinal));
                }
                let workers = 1 + dice(5) as usize;
                let (fed, far) = (dice(60), 1 + dice(60));
                positions = Vec::new();
                for index in 0..workers {
                    let stride = Stride::of_worker(index, workers);
                    let until = fed + restored.next + dice(far);
                    let mut checksum = if index == 0 { restored.checksum } else { 0 };
                    let mut next = stride.first_from(restored.next);
                    // As a feed does: what is done is passed over also at the end.
                    loop {
                        while restored.done.has(next) {
                            next = stride.after(next);
                        }
                        if next >= until || next >= EVENTS {
                            break;
                        }
                        assert!(applied.insert(next), "{next} is done twice");
                        checksum += 1;
                        next = stride.after(next);
                    }
                    let said = Said { next, checksum, ledger_bytes: 0 };
                    positions.push(said.words(&restored.done));
                }
            }
        }
    }

    #[test]
    fn where_all_stop_at_one_ordinal_nothing_is_said_of_gaps() {
        let stop = 1_000;
        let words = |workers: usize, done: &Done| {
            let next = |index| Stride::of_worker(index, workers).first_from(stop);
            let said = |index| Said { next: next(index), checksum: 0, ledger_bytes: 7 };
            (0..workers).map(|index| said(index).words(done)).collect::<Vec<_>>()
        };
        let three = words(3, &Done::default());
        let restored = Restored::of_positions(three.iter().map(|words| &words[..])).unwrap();
        assert_eq!((restored.next, restored.ledger_bytes), (1_000, 7));
        assert!(words(2, &restored.done).iter().all(|words| words.len() == 3));
    }

    #[test]
    fn what_another_program_said_is_not_taken_for_a_position() {
        for position in [&[][..], &[1, 2], &[1, 2, 3, 4], &[1, 2, 3, 4, 0, 6], &[1, 2, 3, 4, 4, 6]]
        {
            assert!(Restored::of_positions([position].into_iter()).is_none(), "{position:?}");
        }
    }
}
