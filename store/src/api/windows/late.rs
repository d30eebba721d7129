//! Events that wait until the windows that were closed for them have fired.
//!
//! They are in a list of its own, by the time they were sent with. When that has come they are taken
//! out of it, by fuel, and let in one by one. What it keeps true: an event is in the list, or on its
//! way, until it is in; none comes twice. Those on their way are booked before they are copied.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;

use alluvium_layouts::{Cursor, Heap, HeapLists, Lists};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Key, KeyGroup, MemoryKind, Rejected, Result, State, Time, rounded,
};

use crate::cells::ListsCell;
use crate::cells::cell_handle::CellHandle;
use crate::durability::moving::{Mover, in_order};
use crate::store::Store;

/// Events that are taken out of their list at once: they are in memory, and booked, twice until they are in.
const COMING_MAX: usize = 64;

type LateLists<K, E> = ListsCell<K, E, HeapLists<K, E>>;

/// Events that wait, by the time they were sent with.
pub(crate) struct LateEvents<K: Key, I: State> {
    lists: CellHandle<LateLists<K, (Time, I)>>,
    /// Those that may come in now, and where their list was left.
    coming: VecDeque<(Time, K, I)>,
    unloading: Option<(Time, Cursor)>,
    account: Rc<Account>,
    /// For those that may come in, and for their places.
    booked: (u64, u64),
    /// The hashes of all keys that the store may have.
    hashes: RangeInclusive<u64>,
}

impl<K: Key, I: State> LateEvents<K, I> {
    /// Those of the windows `name`, restored from the last checkpoint.
    pub(crate) fn open(store: &Store, name: &str, mover: Option<&Mover>) -> Result<Self> {
        let lists = store.open_lists(&format!("{name}/late"), &Heap::new(), mover)?;
        let (account, groups) = (store.root().clone(), store.0.config.key_groups);
        let owned = match mover {
            Some(_) => 0..groups,
            None => store.0.owned.clone(),
        };
        let [first, last] =
            [owned.start, owned.end - 1].map(|group| KeyGroup(group).hashes(groups));
        let hashes = *first.start()..=*last.end();
        let (coming, unloading, booked) = (VecDeque::new(), None, (0, 0));
        Ok(Self { lists, coming, unloading, account, booked, hashes })
    }

    /// For what is noted of late events beside them.
    pub(crate) fn account(&self) -> Rc<Account> {
        self.account.clone()
    }

    /// Keeps an event that was sent with `sent`.
    pub(crate) fn keep(
        &self,
        sent: Time,
        key: &K,
        at: Time,
        item: I,
    ) -> std::result::Result<(), Rejected<(Time, I)>> {
        match self.lists.enter() {
            Ok(mut lists) => lists.append(sent, key, (at, item)),
            Err(error) => Err(Rejected::new(error, (at, item))),
        }
    }

    /// Those of a key that were sent before `before`, in the order in which they come in: the time each
    /// was sent with, and its own. Those that come in now may be among them. Cost: O(n).
    pub(crate) fn of_key(&self, key: &K, before: Time) -> Result<Vec<(Time, Time)>> {
        let (mut lists, mut all) = (self.lists.enter()?, Vec::new());
        let mut next = lists.next_bucket(Time::MIN);
        while let Some(sent) = next.filter(|sent| *sent < before) {
            lists.read(sent, key, &mut |(at, _)| {
                all.push((sent, *at));
                Ok(())
            })?;
            next = lists.next_bucket(sent.plus(1));
        }
        Ok(all)
    }

    /// The time that the first were sent with.
    pub(crate) fn first(&self) -> Result<Option<Time>> {
        Ok(self.lists.enter()?.next_bucket(Time::MIN))
    }

    /// Lets those come that were sent with `sent`, the first.
    pub(crate) fn begin(&mut self, sent: Time) {
        self.unloading = Some((sent, Cursor::default()));
    }

    /// The next event that may come in, and the time that it was sent with. If a copy of it [is in](LateEvents::is_in),
    /// its memory comes back; if it cannot, it is [given back](LateEvents::give_back).
    pub(crate) fn take(&mut self) -> Option<(Time, (Time, K, I))> {
        let sent = self.unloading.map_or(Time::MIN, |(sent, _)| sent);
        Some((sent, self.coming.pop_front()?))
    }

    pub(crate) fn give_back(&mut self, event: (Time, K, I)) {
        self.coming.push_front(event);
    }

    /// An event that was taken is in, and dropped.
    pub(crate) fn is_in(&mut self, (_, key, item): (Time, K, I)) {
        let heap = heap_of(&key, &item);
        drop((key, item));
        self.account.release(MemoryKind::Values, heap);
        self.booked.0 -= heap;
    }

    /// Books the copies of so many events that own so much heap, and makes places for them.
    fn make_room(&mut self, events: usize, heap: u64) -> Result<()> {
        let places = self.coming.capacity().max(events);
        let bytes = rounded(places * size_of::<(Time, K, I)>()) as u64;
        let more = bytes.saturating_sub(self.booked.1);
        self.account.ensure(heap + more, "late events that come in")?;
        self.account.charge(MemoryKind::Values, heap);
        self.account.charge(MemoryKind::Buffers, more);
        self.booked = (self.booked.0 + heap, self.booked.1 + more);
        self.coming.reserve_exact(events);
        Ok(())
    }

    /// Goes on taking events out of their list, when all that were taken are in; says whether there
    /// was something to do.
    pub(crate) fn unload(&mut self, fuel: usize) -> Result<bool> {
        let Some((sent, mut cursor)) = self.unloading else { return Ok(false) };
        let shared = self.lists.clone();
        let mut lists = shared.enter()?;
        if !cursor.done {
            // In runs, as a key may have any number of them.
            let all = self.hashes.clone();
            let lists = in_order(lists.by_hash())?;
            let mut fuel = fuel.clamp(1, COMING_MAX);
            let (events, booked) = loop {
                let (mut events, mut heap, mut after) = (0, 0, cursor);
                lists.visit_hashes(sent, &all, &mut after, fuel, &mut |key, _, run| {
                    // What is left of a key group that has gone is no event of this store.
                    if shared.counts(key) {
                        events += run.len();
                        heap += run.iter().map(|(_, item)| heap_of(key, item)).sum::<u64>();
                    }
                    Ok(())
                })?;
                match self.make_room(events, heap) {
                    Ok(()) => break (events, heap),
                    Err(error) if fuel == 1 => return Err(error),
                    Err(_) => fuel /= 2,
                }
            };
            let (coming, mut left, mut copied) = (&mut self.coming, events, 0);
            let mut is_over = false;
            let visited = lists.visit_hashes(sent, &all, &mut cursor, fuel, &mut |key, _, run| {
                if !shared.counts(key) {
                    return Ok(());
                }
                // The same fuel may reach further the second time: what has no place comes with the next call.
                is_over = run.len() > left;
                if is_over {
                    return Err(Error::new(ErrorKind::OverBudget, "late events that were counted"));
                }
                left -= run.len();
                copied += run.iter().map(|(_, item)| heap_of(key, item)).sum::<u64>();
                let run = run.iter().cloned();
                coming.extend(run.map(|(at, item)| (at, key.clone(), item)));
                Ok(())
            });
            self.unloading = Some((sent, cursor));
            let unused = booked.saturating_sub(copied);
            self.account.release(MemoryKind::Values, unused);
            self.booked.0 -= unused;
            if !is_over {
                visited?;
            }
        } else {
            // Not seen any more from the first call on; what is left of it goes with the next.
            lists.purge(sent.plus(1), fuel)?;
            self.unloading = None;
        }
        Ok(true)
    }
}

impl<K: Key, I: State> Drop for LateEvents<K, I> {
    fn drop(&mut self) {
        self.coming = VecDeque::new();
        self.account.release(MemoryKind::Values, self.booked.0);
        self.account.release(MemoryKind::Buffers, self.booked.1);
    }
}

/// What the copy of an event owns.
fn heap_of<K: Key, I: State>(key: &K, item: &I) -> u64 {
    (key.heap_bytes() + item.heap_bytes()) as u64
}
