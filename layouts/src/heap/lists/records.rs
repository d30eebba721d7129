//! Where the elements of a list on the heap are in the last checkpoint, and which of them the next one writes.
//!
//! Elements come at the end and do not change, so that a list has records of some elements each, in order, and what has
//! come since is behind them. A checkpoint writes that, and with it the records before it that are no longer than what is
//! written, as the runs of an append log are merged: a list has few short records, and of few elements more is written
//! than has come. What is written anew begins at a record and goes to the end of the list, so that records of a list
//! stand in segments in the order of its elements.
//!
//! What it keeps true: records are of an *epoch*. Those of another, of which nothing is remembered, are none.

use alluvium_pagestore::{State, rounded};

use crate::heap::lists::reading::record_elements;
use crate::heap::record_position::RecordPosition;

/// Some elements of a list, on storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRecord {
    pub place: RecordPosition,
    pub elements: u32,
}

/// The records of a list. One needs no memory of its own.
#[derive(Debug, Default)]
pub(crate) enum ListRecords {
    #[default]
    None,
    One(u32, ListRecord),
    Many(Box<ManyRecords>),
}

#[derive(Debug)]
pub(crate) struct ManyRecords {
    epoch: u32,
    /// Elements of them all.
    elements: usize,
    records: Vec<ListRecord>,
}

impl ListRecords {
    /// Those of this epoch, in order.
    pub fn of(&self, epoch: u32) -> &[ListRecord] {
        match self {
            Self::One(of, record) if *of == epoch => std::slice::from_ref(record),
            Self::Many(many) if many.epoch == epoch => &many.records,
            _ => &[],
        }
    }

    /// Elements of them all.
    #[inline]
    pub fn elements(&self, epoch: u32) -> usize {
        match self {
            Self::One(of, record) if *of == epoch => record.elements as usize,
            Self::Many(many) if many.epoch == epoch => many.elements,
            _ => 0,
        }
    }

    /// Adds one.
    pub fn push(&mut self, epoch: u32, record: ListRecord) {
        let elements = self.elements(epoch) + record.elements as usize;
        match self {
            Self::One(of, first) if *of == epoch => {
                let records = vec![*first, record];
                *self = Self::Many(Box::new(ManyRecords { epoch, elements, records }));
            }
            Self::Many(many) if many.epoch == epoch => {
                many.elements = elements;
                many.records.push(record);
            }
            _ => *self = Self::One(epoch, record),
        }
    }

    /// Keeps the first `count`, and gives the others.
    pub fn split_off(&mut self, epoch: u32, count: usize) -> Vec<ListRecord> {
        let rest = self.of(epoch).get(count..).unwrap_or_default().to_vec();
        if rest.is_empty() {
            return rest;
        }
        if count == 0 {
            *self = Self::None;
        } else if let Self::Many(many) = self {
            many.records.truncate(count);
            many.elements -= rest.iter().map(|record| record.elements as usize).sum::<usize>();
        }
        rest
    }

    /// Memory that they take beside themselves.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Many(many) => {
                let records = many.records.capacity() * size_of::<ListRecord>();
                (rounded(size_of::<ManyRecords>()) + rounded(records)) as u64
            }
            _ => 0,
        }
    }

    /// The most that another one takes, while both are there.
    pub fn growth_bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::One(..) => {
                (rounded(size_of::<ManyRecords>()) + 4 * size_of::<ListRecord>()) as u64 + 32
            }
            Self::Many(many) => {
                rounded(2 * many.records.capacity() * size_of::<ListRecord>()) as u64
            }
        }
    }
}

/// What a checkpoint writes of a list: elements from the first on, and how many records before that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListDelta {
    pub from: usize,
    pub keeps: usize,
}

impl ListDelta {
    /// Of the elements of a `list` at a barrier, with these records. By slot, what is `anew` is written again.
    pub fn of<E: State>(
        list: &[E],
        records: &[ListRecord],
        anew: &[bool],
        record_bytes: usize,
    ) -> Self {
        let (mut from, mut keeps) = (0, 0);
        for record in records {
            if anew.get(record.place.slot()) == Some(&true) {
                break;
            }
            (from, keeps) = (from + record.elements as usize, keeps + 1);
        }
        while from < list.len() && keeps > 0 {
            let before = records[keeps - 1].elements as usize;
            let is_full = || record_elements(&list[from - before..], record_bytes) <= before;
            if before > list.len() - from || is_full() {
                break;
            }
            (from, keeps) = (from - before, keeps - 1);
        }
        Self { from, keeps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(slot: u32, elements: u32) -> ListRecord {
        ListRecord { place: RecordPosition::of(slot, 1), elements }
    }

    #[test]
    fn records_of_another_epoch_are_none() {
        let mut records = ListRecords::default();
        for elements in 1..=5 {
            records.push(3, record(0, elements));
        }
        assert_eq!((records.of(3).len(), records.elements(3)), (5, 15));
        assert_eq!((records.of(4).len(), records.elements(4)), (0, 0));
        assert_eq!(records.split_off(3, 3), [record(0, 4), record(0, 5)]);
        assert_eq!((records.of(3).len(), records.elements(3)), (3, 6));
        assert_eq!(records.split_off(3, 3), []);
        records.push(4, record(1, 7));
        assert_eq!((records.of(4).len(), records.elements(4)), (1, 7));
        assert_eq!(records.of(3).len(), 0);
        assert_eq!(records.split_off(4, 0), [record(1, 7)]);
        assert_eq!((records.of(4).len(), records.memory_bytes()), (0, 0));
    }

    /// One element comes before each checkpoint: few are written again, and few records are left.
    #[test]
    fn short_records_are_written_with_what_comes() {
        let (mut list, mut records, mut written, mut most) =
            (Vec::new(), ListRecords::default(), 0, 0);
        let count = 3_000;
        for n in 0..count {
            list.push(n as u64);
            let due = ListDelta::of(&list, records.of(0), &[], 8 << 10);
            records.split_off(0, due.keeps);
            let elements = (list.len() - due.from) as u32;
            assert_eq!(records.elements(0), due.from);
            records.push(0, record(0, elements));
            written += elements;
            most = most.max(records.of(0).len());
        }
        assert!(most <= 14, "{most} records");
        assert!(written <= 7 * count, "{written} elements were written of {count}");
        assert_eq!(ListDelta::of(&list, records.of(0), &[], 8 << 10).from, list.len());
    }

    #[test]
    fn what_is_behind_a_record_that_goes_is_written_again() {
        let list = vec![0u64; 70];
        let records = [record(0, 40), record(1, 20), record(0, 5), record(2, 5)];
        let due = |anew: &[bool]| ListDelta::of(&list, &records, anew, 8 << 10);
        assert_eq!(due(&[]), ListDelta { from: 70, keeps: 4 });
        assert_eq!(due(&[false, false, true]), ListDelta { from: 60, keeps: 2 });
        assert_eq!(due(&[false, true]), ListDelta { from: 40, keeps: 1 });
        assert_eq!(due(&[true]), ListDelta { from: 0, keeps: 0 });
        // A record is no longer than what is behind it.
        assert_eq!(
            ListDelta::of(&list, &records[..1], &[], 8 << 10),
            ListDelta { from: 40, keeps: 1 }
        );
        assert_eq!(
            ListDelta::of(&list, &records[..2], &[], 8 << 10),
            ListDelta { from: 60, keeps: 2 }
        );
        assert_eq!(
            ListDelta::of(&list, &records[1..2], &[], 8 << 10),
            ListDelta { from: 0, keeps: 0 }
        );
    }
}
