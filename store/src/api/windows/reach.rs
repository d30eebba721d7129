//! How far back the open sessions of a key reach, for events that are late for a session of their own.
//!
//! Such an event counts only if it joins a session that is open at the time it was sent with, made by
//! events that were sent before that time. Some of these may still wait, and will extend sessions, or
//! begin some: they count here as if they were in. Events that were sent at the same time do not
//! count: so the answer depends neither on the order of these, nor on how often the watermark was
//! advanced, or with how much fuel.
//!
//! What makes it cheap: the event is before `sent` by more than gap and lateness, and an open session
//! is not. So the event can only join the first open session, and the start of that one says whether.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use alluvium_layouts::{ByTime, tree_bytes};
use alluvium_pagestore::{Account, Key, MemoryKind, Result, Time};

use super::sessions::SessionRules;

/// A session, as far as it matters here: its first and last event.
pub(crate) type SessionSpan = (Time, Time);

/// Where the first open session of each key begins.
type SessionStarts<K> = BTreeMap<K, Option<Time>>;

/// Where the first open session of a key begins, by the time that events are sent with. What is noted for
/// the watermark stays until that moves on: late events that come in change the sessions.
pub(crate) struct SessionReach<K: Key + Ord> {
    known: ByTime<SessionStarts<K>>,
    account: Rc<Account>,
}

impl<K: Key + Ord> SessionReach<K> {
    pub(crate) fn new(account: Rc<Account>) -> Self {
        Self { known: ByTime::new(), account }
    }

    pub(crate) fn get(&self, key: &K, sent: Time) -> Option<Option<Time>> {
        self.known.get(sent)?.get(key).copied()
    }

    /// Notes an answer. Fails if there is no memory for that.
    pub(crate) fn set(&mut self, key: &K, sent: Time, start: Option<Time>) -> Result<()> {
        let (times, known) = (self.known.len(), self.known.get(sent));
        let time = if known.is_some() { 0 } else { time_bytes::<K>(times) };
        let entry = entry_bytes(key, known.map_or(0, BTreeMap::len));
        self.account.reserve(MemoryKind::Buffers, entry + time, "late events")?;
        let starts = self.known.get_or_insert(sent, || Ok(BTreeMap::new()))?;
        if starts.insert(key.clone(), start).is_some() {
            self.account.release(MemoryKind::Buffers, entry);
        }
        Ok(())
    }

    /// Whether there may be answers that an event changes which is sent with `sent`.
    pub(crate) fn may_change(&self, sent: Time) -> bool {
        self.known.range((Bound::Excluded(sent), Bound::Unbounded)).next().is_some()
    }

    /// An event of `key` comes that was sent with `sent`: forgets what it may change.
    pub(crate) fn comes(&mut self, key: &K, sent: Time) {
        let account = &self.account;
        self.known.for_each_after(Some(sent), &mut |starts| {
            if starts.remove(key).is_some() {
                account.release(MemoryKind::Buffers, entry_bytes(key, starts.len()));
                if starts.is_empty() {
                    // It keeps a node otherwise.
                    *starts = BTreeMap::new();
                }
            }
        });
    }

    /// No event is still to come that was sent before `watermark`.
    pub(crate) fn advance(&mut self, watermark: Time) {
        while let Some((_, starts)) = self.known.pop_before(watermark) {
            self.forget(starts);
        }
    }

    fn forget(&self, starts: SessionStarts<K>) {
        let keys = starts.keys().map(|key| key.heap_bytes() as u64).sum::<u64>();
        let bytes = keys + tree_bytes::<K, Option<Time>>(starts.len());
        drop(starts);
        self.account.release(MemoryKind::Buffers, bytes + time_bytes::<K>(self.known.len()));
    }
}

impl<K: Key + Ord> Drop for SessionReach<K> {
    fn drop(&mut self) {
        while let Some((_, starts)) = self.known.pop_first() {
            self.forget(starts);
        }
    }
}

/// What a time takes more than the `times` that are there, without its keys.
fn time_bytes<K>(times: usize) -> u64 {
    ByTime::<SessionStarts<K>>::memory_bytes(times + 1)
        - ByTime::<SessionStarts<K>>::memory_bytes(times)
}

/// What a key takes more than the `others` of its time.
fn entry_bytes<K: Key>(key: &K, others: usize) -> u64 {
    let tree = tree_bytes::<K, Option<Time>>;
    tree(others + 1) - tree(others) + key.heap_bytes() as u64
}

/// Lets late events of one key, in the order of the times they were sent with, into its sessions; says
/// where the first session begins that is open for an event sent with `sent`.
pub(crate) fn first_open(
    rules: &SessionRules,
    mut spans: Vec<SessionSpan>,
    waiting: Vec<(Time, Time)>,
    sent: Time,
) -> Option<Time> {
    for (of, at) in waiting {
        // What is closed for it is closed for all that follow.
        spans.retain(|span| rules.is_open(span.1, of));
        let mut whole = (at, at);
        spans.retain(|span| {
            let joins = rules.touches(*span, at);
            if joins {
                whole = (whole.0.min(span.0), whole.1.max(span.1));
            }
            !joins
        });
        spans.push(whole);
    }
    let open = spans.into_iter().filter(|span| rules.is_open(span.1, sent));
    open.map(|span| span.0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_waits_extends_the_sessions_that_are_open_for_it_and_no_others() {
        let rules = SessionRules::of_gap(10);
        let spans = vec![(Time(0), Time(5)), (Time(20), Time(30))];
        assert_eq!(first_open(&rules, spans.clone(), Vec::new(), Time(15)), Some(Time(0)));
        assert_eq!(first_open(&rules, spans.clone(), Vec::new(), Time(16)), Some(Time(20)));
        // At 15 it joins both sessions, at 16 only the second.
        let joined = first_open(&rules, spans.clone(), vec![(Time(15), Time(12))], Time(40));
        assert_eq!(joined, Some(Time(0)));
        let joined = first_open(&rules, spans.clone(), vec![(Time(16), Time(12))], Time(40));
        assert_eq!(joined, Some(Time(12)));
        assert_eq!(first_open(&rules, spans, Vec::new(), Time(41)), None);
    }
}
