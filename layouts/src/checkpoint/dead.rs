//! Records that have died: a list in parts, so that noting one moves no others.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind};

use crate::heap::record_position::RecordPosition;
use crate::support::booked::Booked;

/// Records in the first part of a list of places, and in the longest.
const DEAD_MIN: usize = 256;
const DEAD_MAX: usize = 64 << 10;

/// Where a record stands in a [`DeadList`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadListPosition {
    part: usize,
    at: usize,
}

/// Dead records, each told by a `T`. Parts are made by the owner, who books them.
#[derive(Debug)]
pub(crate) struct DeadList<T>(Vec<Vec<T>>);

impl<T> Default for DeadList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> DeadList<T> {
    /// Adds one to the last part, if that has room; says whether it had.
    #[inline]
    pub fn push(&mut self, dead: T) -> bool {
        match self.0.last_mut() {
            Some(part) if part.len() < part.capacity() => part.push(dead),
            _ => return false,
        }
        true
    }

    /// Adds a part behind the others: the room that they have left is not used any more.
    pub fn add(&mut self, part: Vec<T>) {
        self.0.push(part);
    }

    pub fn len(&self) -> u64 {
        self.0.iter().map(|part| part.len() as u64).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.0.len()
    }

    /// How many more the last part has room for.
    pub fn room(&self) -> usize {
        self.0.last().map_or(0, |part| part.capacity() - part.len())
    }

    /// How many the last part can have.
    pub fn last_capacity(&self) -> Option<usize> {
        self.0.last().map(Vec::capacity)
    }

    /// Behind all of them.
    pub fn end(&self) -> DeadListPosition {
        let part = self.0.len().saturating_sub(1);
        DeadListPosition { part, at: self.0.get(part).map_or(0, Vec::len) }
    }

    /// Some from a place on and before another, `most` at most and of one part; and the place to go on at.
    pub fn some(
        &self,
        from: DeadListPosition,
        to: DeadListPosition,
        most: usize,
    ) -> (&[T], DeadListPosition) {
        // Without such a part there are no more: they were forgotten since.
        let Some(part) = self.0.get(from.part) else { return (&[], to) };
        let end = if from.part == to.part { to.at.min(part.len()) } else { part.len() };
        let next = end.min(from.at + most);
        let some = &part[from.at.min(next)..next];
        match next == end && from.part < to.part {
            true => (some, DeadListPosition { part: from.part + 1, at: 0 }),
            false if some.is_empty() => (some, to),
            false => (some, DeadListPosition { part: from.part, at: next }),
        }
    }

    /// Takes all parts out: to have them written, or for another list.
    pub fn take_parts(&mut self) -> Vec<Vec<T>> {
        std::mem::take(&mut self.0)
    }

    /// Takes the last part out, if there is one.
    pub fn pop_part(&mut self) -> Option<Vec<T>> {
        self.0.pop()
    }

    /// Puts parts before the others, such as those that were lent.
    pub fn give_back(&mut self, parts: Vec<Vec<T>>) {
        self.0.splice(0..0, parts);
    }

    /// Puts the parts of another list behind these.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Forgets all of them, and gives all parts, empty, but for the first. Cost: the parts, whatever is in them.
    pub fn clear(&mut self) -> impl Iterator<Item = Vec<T>> + '_ {
        self.0.iter_mut().for_each(Vec::clear);
        self.0.drain(1.min(self.0.len())..)
    }
}

/// Places of records that are dead. All booked.
#[derive(Debug)]
pub(crate) struct DeadPlaces {
    list: DeadList<RecordPosition>,
    booked: Booked,
}

impl DeadPlaces {
    pub fn new(account: Rc<Account>) -> Self {
        let booked = Booked::none(account, MemoryKind::Tables);
        Self { list: DeadList::default(), booked }
    }

    /// None, and room for so many.
    pub fn with_room(account: Rc<Account>, count: u64) -> Option<Self> {
        let mut dead = Self::new(account);
        (count == 0 || dead.add_part(count as usize)).then_some(dead)
    }

    fn add_part(&mut self, count: usize) -> bool {
        let bytes = (count * size_of::<RecordPosition>() + 64) as u64;
        let is_booked = self.booked.try_reserve_more(bytes);
        if is_booked {
            self.list.add(Vec::with_capacity(count));
        }
        is_booked
    }

    /// Adds one; says whether there was room.
    #[inline]
    pub fn push(&mut self, place: RecordPosition) -> bool {
        self.list.push(place) || self.push_in_new(place)
    }

    #[cold]
    fn push_in_new(&mut self, place: RecordPosition) -> bool {
        let count = self.list.last_capacity().map_or(0, |capacity| 2 * capacity);
        self.add_part(count.clamp(DEAD_MIN, DEAD_MAX)) && self.list.push(place)
    }

    pub fn list(&self) -> &DeadList<RecordPosition> {
        &self.list
    }

    /// Takes the parts out to have them written; what they take stays booked while this lives.
    pub fn lend(&mut self) -> Vec<Vec<RecordPosition>> {
        self.list.take_parts()
    }

    /// Takes parts back that were lent.
    pub fn give_back(&mut self, parts: Vec<Vec<RecordPosition>>) {
        self.list.give_back(parts);
    }

    /// Puts others behind these.
    pub fn append(&mut self, other: Self) {
        self.booked.append(other.booked);
        self.list.append(other.list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_whatever_parts_are_full_and_however_many_at_a_time() {
        let mut list = DeadList::default();
        let mut expected = Vec::new();
        for (part, count) in [(4, 4), (8, 3), (16, 0), (4, 4), (2, 1)] {
            assert!(list.room() == 0 || count == 0 || part != 4 || list.parts() == 3);
            list.add(Vec::with_capacity(part));
            for _ in 0..count {
                expected.push(expected.len());
                assert!(list.push(expected.len() - 1));
            }
        }
        assert_eq!((list.len(), list.parts(), list.room()), (12, 5, 1));
        for most in 1..7 {
            let (mut found, mut at) = (Vec::new(), DeadListPosition::default());
            while at != list.end() {
                let (some, next) = list.some(at, list.end(), most);
                assert!(some.len() <= most && next != at);
                found.extend_from_slice(some);
                at = next;
            }
            assert_eq!(found, expected);
        }
        // One that comes later is not before the end of now.
        let end = list.end();
        assert!(list.push(99) && !list.push(100));
        assert_eq!(list.some(end, end, 10), (&[][..], end));
        assert_eq!(list.some(end, list.end(), 10).0, [99]);
        let lent = list.take_parts();
        assert_eq!(list.some(DeadListPosition::default(), end, 10), (&[][..], end));
        list.give_back(lent);
        assert_eq!((list.clear().count(), list.is_empty(), list.parts()), (4, true, 1));
    }
}
