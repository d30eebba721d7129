//! Items that wait for the read of their key, each with its capability.
//!
//! Per key the items stand in a queue, in order of arrival; what comes for a key that waits queues
//! up behind. A key waits until nothing it needs in any of the operator's states is on storage
//! only; then its items are handed out, first in first out. One read that never ends holds up its
//! key only. What is held is bounded: places are made, and booked, when the operator is built. An operator
//! that goes leaves no read behind in states that the next one opens.

use std::collections::VecDeque;
use std::rc::Rc;

use alluvium::states::{Fetch, Fetcher, Ticket};
use alluvium::{Key, Result};
use hashbrown::HashTable;
use timely::dataflow::operators::Capability;
use timely::progress::Timestamp;

use crate::intake::staged::Times;

/// The operator's states that are read by key.
pub(crate) type Fetchers<K> = Vec<Rc<dyn Fetcher<K>>>;

/// Items that wait.
pub(crate) struct Parking<T: Timestamp, K: Key, I> {
    states: Fetchers<K>,
    places: Vec<Option<ParkedItem<T, I>>>,
    /// Of the items that wait.
    times: Times<T>,
    vacant: Vec<u32>,
    queues: HashTable<(K, ParkedQueue)>,
    /// Reads under way: state, ticket, key.
    reads: Vec<(usize, Ticket, K)>,
    /// Reads that ended; released once their keys have used them.
    ended: Vec<(usize, Ticket, K)>,
    /// Keys for which a state had no buffer free.
    unread: VecDeque<K>,
    /// Keys whose items can be applied.
    ready: VecDeque<K>,
    /// The most items that ever waited.
    peak: usize,
}

/// One item, and the place of the next of its key.
struct ParkedItem<T: Timestamp, I> {
    item: I,
    capability: Rc<Capability<T>>,
    next: Option<u32>,
}

/// A key's items, first to last, and how many of its reads have not ended.
struct ParkedQueue {
    first: u32,
    last: u32,
    reads: u32,
}

impl<T: Timestamp, K: Key, I> Parking<T, K, I> {
    /// Places for `limit` items.
    pub(crate) fn new(states: Fetchers<K>, limit: usize) -> Self {
        Self {
            states,
            places: (0..limit).map(|_| None).collect(),
            times: Times::new(),
            vacant: (0..limit).rev().filter_map(|place| u32::try_from(place).ok()).collect(),
            queues: HashTable::with_capacity(limit),
            reads: Vec::new(),
            ended: Vec::new(),
            unread: VecDeque::new(),
            ready: VecDeque::new(),
            peak: 0,
        }
    }

    /// Memory for each item that may wait: its place, its time, its capability, its key's queue, and its key
    /// where it waits for a read or a buffer, or has waited.
    pub(crate) fn bytes_each() -> u64 {
        let capability = size_of::<Capability<T>>() + 2 * size_of::<usize>() + size_of::<T>() + 64;
        let time = 2 * size_of::<(T, usize)>();
        let place = size_of::<Option<ParkedItem<T, I>>>() + size_of::<u32>() + time;
        let queue = 2 * (size_of::<(K, ParkedQueue)>() + 1);
        let waited = 2 * (size_of::<K>() + 1);
        (place + capability + queue + waited + 2 * size_of::<(usize, Ticket, K)>() + size_of::<K>())
            as u64
    }

    /// Items that wait.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// The most items that ever waited.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// The least time of the items that wait.
    pub(crate) fn least_time(&self) -> Option<&T> {
        self.times.least()
    }

    /// Whether nothing more may be parked.
    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// Whether something can go on that no read wakes anybody for: buffers are free again that a key
    /// found taken, or items can be applied.
    pub(crate) fn needs_poll(&self) -> bool {
        !self.ready.is_empty() || (!self.unread.is_empty() && self.reads.is_empty())
    }

    /// Whether every item can be applied at once: none waits and no state is on storage.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        if self.len() > 0 {
            return Ok(false);
        }
        for state in &self.states {
            if !state.is_resident()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether an item of `key` has to be parked: others of its key wait, or a read is needed,
    /// which is started. Never so when no place is left.
    pub(crate) fn must_wait(&mut self, key: &K) -> Result<bool> {
        if self.waits(key) {
            return Ok(true);
        }
        if self.is_full() {
            return Ok(false);
        }
        let (reads, busy) = self.start(key)?;
        if reads > 0 || busy {
            let queue = ParkedQueue { first: NONE, last: NONE, reads };
            self.queues
                .insert_unique(key.key_hash(), (key.clone(), queue), |(key, _)| key.key_hash());
            if reads == 0 {
                self.unread.push_back(key.clone());
            }
        }
        Ok(reads > 0 || busy)
    }

    /// Whether items of `key` wait.
    pub(crate) fn waits(&self, key: &K) -> bool {
        !self.queues.is_empty() && self.queues.find(key.key_hash(), |(k, _)| k == key).is_some()
    }

    /// Puts an item behind the others of its key, which must wait.
    ///
    /// # Errors
    /// The item, if no place is left.
    pub(crate) fn park(
        &mut self,
        key: &K,
        item: I,
        capability: &Rc<Capability<T>>,
    ) -> std::result::Result<(), I> {
        let Some(place) = self.vacant.pop() else { return Err(item) };
        self.times.add(capability.time());
        self.places[place as usize] =
            Some(ParkedItem { item, capability: capability.clone(), next: None });
        let queue = queue_of(&mut self.queues, key).expect("the key waits");
        if queue.first == NONE {
            queue.first = place;
        } else {
            let last = self.places[queue.last as usize].as_mut().expect("a queued item");
            last.next = Some(place);
        }
        queue.last = place;
        self.peak = self.peak.max(self.len());
        Ok(())
    }

    /// Takes in which reads have ended, and starts further ones.
    pub(crate) fn poll(&mut self) -> Result<()> {
        self.release_used()?;
        let new = self.ended.len();
        for at in 0..self.states.len() {
            let state = self.states[at].clone();
            let (reads, ended) = (&mut self.reads, &mut self.ended);
            state.fetched(&mut |ticket| {
                if let Some(i) = reads.iter().position(|read| (read.0, read.1) == (at, ticket)) {
                    ended.push(reads.swap_remove(i));
                }
            })?;
        }
        for i in new..self.ended.len() {
            let key = &self.ended[i].2;
            let Some(queue) = queue_of(&mut self.queues, key) else { continue };
            queue.reads = queue.reads.saturating_sub(1);
            if queue.reads == 0 {
                let key = key.clone();
                self.again(key)?;
            }
        }
        for _ in 0..self.unread.len() {
            let Some(key) = self.unread.pop_front() else { break };
            self.again(key)?;
        }
        if self.reads.is_empty() && self.ready.is_empty() {
            // Somebody else keeps the buffers: the call has to wait for its read.
            self.ready.extend(self.unread.pop_front());
        }
        Ok(())
    }

    /// Looks again what a waiting key needs.
    fn again(&mut self, key: K) -> Result<()> {
        let (reads, busy) = self.start(&key)?;
        let Some(queue) = queue_of(&mut self.queues, &key) else { return Ok(()) };
        queue.reads = reads;
        match (reads, busy) {
            (0, false) => self.ready.push_back(key),
            (0, true) => self.unread.push_back(key),
            _ => {}
        }
        Ok(())
    }

    /// Starts the reads of a key; says how many are under way, and whether one lacks a buffer.
    fn start(&mut self, key: &K) -> Result<(u32, bool)> {
        let (mut under_way, mut busy) = (0, false);
        for (at, state) in self.states.iter().enumerate() {
            match state.fetch(key)? {
                Fetch::Ready => {}
                // Another key's record that only looks like this one's, or a look at a key twice.
                Fetch::Pending(ticket)
                    if self.reads.iter().any(|read| (read.0, read.1) == (at, ticket)) =>
                {
                    busy = true;
                }
                Fetch::Pending(ticket) => {
                    self.reads.push((at, ticket, key.clone()));
                    under_way += 1;
                }
                Fetch::Busy => busy = true,
            }
        }
        Ok((under_way, busy))
    }

    /// Gives buffers back that keys did not need after all, or have used.
    fn release_used(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.ended.len() {
            if self.waits(&self.ended[at].2) {
                at += 1;
                continue;
            }
            let (state, ticket, _) = self.ended.swap_remove(at);
            self.states[state].release(ticket)?;
        }
        Ok(())
    }

    /// Takes the next item that can be applied.
    pub(crate) fn next(&mut self) -> Option<(Rc<Capability<T>>, K, I)> {
        while let Some(key) = self.ready.front() {
            let found = self.queues.find_entry(key.key_hash(), |(k, _)| k == key);
            let Some(mut entry) = found.ok() else {
                self.ready.pop_front();
                continue;
            };
            let queue = &mut entry.get_mut().1;
            if queue.first == NONE {
                entry.remove();
                self.ready.pop_front();
                continue;
            }
            let place = queue.first;
            let ParkedItem { item, capability, next } =
                self.places[place as usize].take().expect("a queued item");
            queue.first = next.unwrap_or(NONE);
            self.vacant.push(place);
            self.times.remove(capability.time());
            return Some((capability, key.clone(), item));
        }
        None
    }

    /// Puts an item back that was taken and not applied, before the others of its key.
    pub(crate) fn put_back(&mut self, key: K, item: I, capability: &Rc<Capability<T>>) {
        let place = self.vacant.pop().expect("the place it had");
        self.times.add(capability.time());
        if !self.waits(&key) {
            let queue = ParkedQueue { first: NONE, last: place, reads: 0 };
            self.queues
                .insert_unique(key.key_hash(), (key.clone(), queue), |(key, _)| key.key_hash());
            self.ready.push_front(key.clone());
        }
        let queue = queue_of(&mut self.queues, &key).expect("just made sure of");
        let next = (queue.first != NONE).then_some(queue.first);
        if next.is_none() {
            queue.last = place;
        }
        self.places[place as usize] =
            Some(ParkedItem { item, capability: capability.clone(), next });
        queue.first = place;
    }

    /// Drops all items, giving up their reads, and hands out their capabilities.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(&Capability<T>)) {
        for place in self.places.iter_mut().filter_map(Option::take) {
            each(&place.capability);
        }
        self.times.clear();
        self.vacant.clear();
        let places = 0..u32::try_from(self.places.len()).unwrap_or(NONE);
        self.vacant.extend(places);
        self.queues.clear();
        self.unread.clear();
        self.ready.clear();
        self.give_up_reads();
    }

    fn give_up_reads(&mut self) {
        for (state, ticket, _) in self.reads.drain(..).chain(self.ended.drain(..)) {
            // A state that is in use keeps the buffer until a call for the key.
            let _ = self.states[state].release(ticket);
        }
    }
}

impl<T: Timestamp, K: Key, I> Drop for Parking<T, K, I> {
    fn drop(&mut self) {
        self.give_up_reads();
    }
}

fn queue_of<'a, K: Key>(
    queues: &'a mut HashTable<(K, ParkedQueue)>,
    key: &K,
) -> Option<&'a mut ParkedQueue> {
    queues.find_mut(key.key_hash(), |(k, _)| k == key).map(|(_, queue)| queue)
}

/// No place.
const NONE: u32 = u32::MAX;
