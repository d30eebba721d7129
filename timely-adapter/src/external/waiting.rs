//! Rows that wait for the answer of an external table, in a queue per key.
//!
//! What it keeps true: the rows of a key go out in the order in which they came in. A key is asked for
//! by one question at a time. An answer counts for the rows that had come before the last change that
//! was told before the question: rows after a later change wait for another answer, as this one may be
//! from before the change. Rows before it do not, so that each row waits for two answers at most,
//! however often its key changes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use alluvium::{Error, Key};
use hashbrown::HashTable;

use super::Question;

/// No place.
const NONE: u32 = u32::MAX;

/// Items that wait, by key.
pub(super) struct WaitingByKey<K, I> {
    places: Vec<Option<WaitingItem<I>>>,
    vacant: Vec<u32>,
    queues: HashTable<(K, WaitingQueue)>,
    /// Keys to be asked for.
    due: VecDeque<K>,
    asked: BTreeMap<u64, PendingQuestion<K>>,
    next_number: u64,
    peak: usize,
}

struct WaitingItem<I> {
    item: I,
    /// Changes that were told before it came.
    changes: u64,
    next: u32,
}

/// A key's items, first to last.
struct WaitingQueue {
    first: u32,
    last: u32,
    /// Changes told since it began.
    changes: u64,
    /// Since when the table could not be asked for the key.
    failing: Option<Instant>,
}

/// A question under way.
struct PendingQuestion<K> {
    key: K,
    /// Changes told before it was asked.
    changes: u64,
    since: Instant,
}

/// What an answer is for.
pub(super) struct AnsweredQuestion<K> {
    pub(super) key: K,
    changes: u64,
    /// Nothing was told since the question was asked: the answer may be cached.
    pub(super) is_current: bool,
}

impl<K: Key, I> WaitingByKey<K, I> {
    /// Places for so many items.
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: (0..places).map(|_| None).collect(),
            vacant: (0..places as u32).rev().collect(),
            queues: HashTable::with_capacity(places * 2),
            due: VecDeque::with_capacity(places),
            asked: BTreeMap::new(),
            next_number: 0,
            peak: 0,
        }
    }

    /// Memory for each item that may wait: its place, its key's queue and its key.
    pub(super) fn bytes_each() -> usize {
        let place = size_of::<Option<WaitingItem<I>>>() + size_of::<u32>();
        place + 5 * (size_of::<(K, WaitingQueue)>() + 1) + size_of::<K>()
    }

    /// Memory for each question under way. Nodes of the map are half full at least.
    pub(super) fn bytes_a_question() -> usize {
        2 * size_of::<(u64, PendingQuestion<K>)>() + 32
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// Whether items of `key` wait.
    pub(super) fn waits(&self, key: &K) -> bool {
        !self.queues.is_empty() && self.queues.find(key.key_hash(), |(k, _)| k == key).is_some()
    }

    /// Puts an item behind those of its key; there must be a place.
    pub(super) fn push(&mut self, key: &K, item: I) {
        let place = self.vacant.pop().expect("a place is free");
        if !self.waits(key) {
            let queue = WaitingQueue { first: NONE, last: NONE, changes: 0, failing: None };
            self.queues
                .insert_unique(key.key_hash(), (key.clone(), queue), |(key, _)| key.key_hash());
            self.due.push_back(key.clone());
        }
        let queue = queue_of(&mut self.queues, key).expect("just made sure of");
        self.places[place as usize] =
            Some(WaitingItem { item, changes: queue.changes, next: NONE });
        match queue.last {
            NONE => queue.first = place,
            last => self.places[last as usize].as_mut().expect("a queued item").next = place,
        }
        queue.last = place;
        self.peak = self.peak.max(self.len());
    }

    /// A change of `key` was told.
    pub(super) fn changed(&mut self, key: &K) {
        if let Some(queue) = queue_of(&mut self.queues, key) {
            queue.changes += 1;
        }
    }

    /// Adds questions for keys that wait, until `limit` are under way.
    pub(super) fn ask(&mut self, limit: usize, now: Instant, questions: &mut Vec<Question<K>>) {
        while self.asked.len() < limit {
            let Some(key) = self.due.pop_front() else { break };
            let Some(queue) = queue_of(&mut self.queues, &key) else { continue };
            let number = self.next_number;
            self.next_number += 1;
            let asked = PendingQuestion { key: key.clone(), changes: queue.changes, since: now };
            self.asked.insert(number, asked);
            questions.push(Question { number, key });
        }
    }

    /// What the question of this number was for; `None` if there is none under way.
    pub(super) fn answered(&mut self, number: u64) -> Option<AnsweredQuestion<K>> {
        let PendingQuestion { key, changes, .. } = self.asked.remove(&number)?;
        let queue = queue_of(&mut self.queues, &key)?;
        let is_current = queue.changes == changes;
        Some(AnsweredQuestion { key, changes, is_current })
    }

    /// Takes the next item that the answer counts for.
    pub(super) fn next(&mut self, due: &AnsweredQuestion<K>) -> Option<I> {
        self.take(&due.key, due.changes)
    }

    /// Takes the next item of `key`.
    pub(super) fn next_of(&mut self, key: &K) -> Option<I> {
        self.take(key, u64::MAX)
    }

    fn take(&mut self, key: &K, changes: u64) -> Option<I> {
        let queue = queue_of(&mut self.queues, key)?;
        let first = queue.first;
        if self.places.get(first as usize)?.as_ref()?.changes > changes {
            return None;
        }
        let WaitingItem { item, next, .. } = self.places[first as usize].take()?;
        queue.first = next;
        if next == NONE {
            queue.last = NONE;
        }
        self.vacant.push(first);
        Some(item)
    }

    /// Ends what an answer has brought: a key for which nothing waits any more is forgotten, another one
    /// is to be asked for anew. Says whether that is so.
    pub(super) fn settle(&mut self, key: K) -> bool {
        let found = self.queues.find_entry(key.key_hash(), |(k, _)| *k == key);
        let Ok(mut found) = found else { return false };
        if found.get().1.first == NONE {
            found.remove();
            return false;
        }
        found.get_mut().1.failing = None;
        self.due.push_back(key);
        true
    }

    /// The key could not be asked for: it is to be asked for again. Says since when that is so.
    pub(super) fn failed(&mut self, due: AnsweredQuestion<K>, now: Instant) -> Instant {
        let Some(queue) = queue_of(&mut self.queues, &due.key) else { return now };
        let since = *queue.failing.get_or_insert(now);
        self.due.push_back(due.key);
        since
    }

    /// Whether keys wait to be asked for.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Questions under way.
    pub(super) fn under_way(&self) -> usize {
        self.asked.len()
    }

    /// Since when the oldest question is under way.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.asked.first_key_value().map(|(_, asked)| asked.since)
    }

    /// Drops all that waits, and hands it out.
    pub(super) fn clear(&mut self, each: impl FnMut(I)) {
        self.places.iter_mut().filter_map(Option::take).map(|place| place.item).for_each(each);
        self.vacant.clear();
        self.vacant.extend(0..self.places.len() as u32);
        self.queues.clear();
        self.due.clear();
        self.asked.clear();
    }
}

/// The error of an answer to a question that is not under way.
pub(super) fn unasked(number: u64) -> Error {
    let message = format!("the external table answered question {number}, which is not under way");
    Error::new(alluvium::ErrorKind::Input, message)
}

fn queue_of<'a, K: Key>(
    queues: &'a mut HashTable<(K, WaitingQueue)>,
    key: &K,
) -> Option<&'a mut WaitingQueue> {
    queues.find_mut(key.key_hash(), |(k, _)| k == key).map(|(_, queue)| queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(waiting: &mut WaitingByKey<u64, u64>, limit: usize) -> Vec<Question<u64>> {
        let mut questions = Vec::new();
        waiting.ask(limit, Instant::now(), &mut questions);
        questions
    }

    fn all(waiting: &mut WaitingByKey<u64, u64>, due: &AnsweredQuestion<u64>) -> Vec<u64> {
        std::iter::from_fn(|| waiting.next(due)).collect()
    }

    #[test]
    fn an_answer_counts_for_rows_before_the_change_and_no_others() {
        let mut waiting = WaitingByKey::new(8);
        waiting.push(&7, 0);
        let first = ask(&mut waiting, 4);
        assert_eq!(first, [Question { number: 0, key: 7 }]);
        waiting.push(&7, 1);
        waiting.changed(&7);
        waiting.push(&7, 2);
        waiting.changed(&7);
        waiting.push(&7, 3);
        assert!(ask(&mut waiting, 4).is_empty(), "a key is asked for once at a time");
        let due = waiting.answered(0).unwrap();
        assert!(!due.is_current);
        assert_eq!(all(&mut waiting, &due), [0, 1]);
        assert!(waiting.settle(7));
        let second = ask(&mut waiting, 4);
        assert_eq!(second, [Question { number: 1, key: 7 }]);
        let due = waiting.answered(1).unwrap();
        assert!(due.is_current);
        assert_eq!(all(&mut waiting, &due), [2, 3]);
        assert!(!waiting.settle(7) && !waiting.waits(&7) && waiting.len() == 0);
        assert!(waiting.answered(1).is_none());
    }

    #[test]
    fn no_more_is_asked_and_held_than_was_allowed() {
        let mut waiting = WaitingByKey::new(6);
        (0..6).for_each(|key| waiting.push(&key, key));
        assert!(waiting.is_full());
        assert_eq!((ask(&mut waiting, 2).len(), waiting.under_way()), (2, 2));
        assert!(ask(&mut waiting, 2).is_empty() && waiting.has_due());
        let due = waiting.answered(1).unwrap();
        let begin = Instant::now();
        assert_eq!(waiting.failed(due, begin), begin);
        // It comes after those that have not been asked for.
        let keys: Vec<_> = ask(&mut waiting, 9).into_iter().map(|question| question.key).collect();
        assert_eq!(keys, [2, 3, 4, 5, 1]);
        let due = waiting.answered(6).unwrap();
        assert_eq!(waiting.failed(due, begin + std::time::Duration::from_secs(1)), begin);
        let mut rest = Vec::new();
        waiting.clear(|item| rest.push(item));
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 2, 3, 4, 5]);
        assert_eq!((waiting.len(), waiting.peak(), waiting.oldest()), (0, 6, None));
    }
}
