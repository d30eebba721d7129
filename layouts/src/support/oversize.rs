//! The limit on the heap that a key and its value own, and the values that closures enlarged beyond
//! it.
//!
//! A call that passes in a larger key or value is refused. A closure has already changed its value:
//! the state reports it at once, and refuses further changes until the value is taken, replaced or
//! removed. Cost on the record path: one flag, set while such a value may exist.
//!
//! It also knows how long values have been, about: a state tells its account what the longest takes beside it, which the
//! growth of other states leaves free.

use std::rc::Rc;

use alluvium_pagestore::{Account, Error, ErrorKind, Key, Result, key_text};

use crate::trace_event;

/// Records of up to so many bytes tell of the state itself, or have several short values.
const OWN_RECORD_BYTES: u64 = 16 << 10;

/// What a state knows of values that are too large.
#[derive(Clone, Debug)]
pub struct Oversize {
    state: String,
    max_bytes: u64,
    /// Whether there may be a larger value.
    is_seen: bool,
    /// How often a closure made one.
    told: u64,
    /// The bytes of the longest that a closure made, and its key.
    longest: Option<(u64, String)>,
    /// Values that own no more are not noted: as much as one has owned, about, or all that one may own.
    noted_bytes: u64,
    /// Whose memory has room for the longest, and how many times.
    keeps: Option<(Rc<Account>, u64)>,
}

/// What is noted is a multiple of so much, or of an eighth of itself, about: few values are longer than all before.
const NOTED_BYTES: u64 = 64;

impl Oversize {
    /// Creates the record of a state whose keys and values may own `max_bytes` together.
    pub fn new(state: &str, max_bytes: u64) -> Self {
        let (is_seen, told, longest, keeps) = Default::default();
        let (state, noted_bytes) = (state.into(), max_bytes);
        Self { state, max_bytes, is_seen, told, longest, noted_bytes, keeps }
    }

    /// Has the account's memory leave room for the longest value that is seen from now on, so many times.
    pub(crate) fn keep_room_in(&mut self, account: &Rc<Account>, times: u64) {
        self.keeps = Some((account.clone(), times));
        self.note_longest(0);
    }

    /// Has another limit from now on, which it was to have before.
    pub(crate) fn limit_to(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
        self.noted_bytes = self.noted_bytes.min(max_bytes);
        self.note_longest(self.noted_bytes);
    }

    /// The most that a key and its value have owned, about: no more than the limit. The limit if that is not noted.
    #[inline]
    pub(crate) fn noted_bytes(&self) -> u64 {
        self.noted_bytes
    }

    /// Notes a key and a value that own so much.
    #[inline]
    pub(crate) fn note(&mut self, bytes: u64) {
        if bytes > self.noted_bytes {
            self.note_longest(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_longest(&mut self, bytes: u64) {
        let Some((account, times)) = &self.keeps else { return };
        let step = (bytes.next_power_of_two() / 8).max(NOTED_BYTES);
        self.noted_bytes = bytes.next_multiple_of(step).min(self.max_bytes);
        account.keep_free_for_values(times * self.noted_bytes);
    }

    /// Returns the most heap that a key and its value may own, in bytes.
    #[inline]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Returns whether a value may be too large. If so, [check](Oversize::check) each value before
    /// you change it.
    #[inline(always)]
    pub fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Returns the number of times that a closure made a value too large.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// What the longest value owns that a closure has made too large, with its key, and the key. It
    /// may be gone.
    pub(crate) fn longest(&self) -> Option<&(u64, String)> {
        self.longest.as_ref()
    }

    /// Notes that a closure changed a value, which owns `bytes` with its key now.
    #[inline(always)]
    pub fn grown<K: Key>(&mut self, key: &K, bytes: u64) {
        if bytes > self.noted_bytes {
            self.grown_longest(key, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn grown_longest<K: Key>(&mut self, key: &K, bytes: u64) {
        self.note_longest(bytes);
        if bytes > self.max_bytes {
            self.tell(key, bytes);
        }
    }

    fn tell<K: Key>(&mut self, key: &K, bytes: u64) {
        self.is_seen = true;
        self.told += 1;
        let (state, key, most) = (&*self.state, key_text(key), self.max_bytes);
        if self.longest.as_ref().is_none_or(|(longest, _)| *longest < bytes) {
            self.longest = Some((bytes, key.clone()));
        }
        trace_event!(
            WARN,
            "a value is larger than max_value",
            state = state,
            key = key.as_str(),
            bytes = bytes,
            max_value = most,
        );
    }

    /// Notes a value read from storage, which owns `bytes` with its key.
    #[inline]
    pub fn found(&mut self, bytes: u64) {
        self.is_seen |= bytes > self.max_bytes;
        self.note(bytes);
    }

    /// The most that a key and a value own of which an image has so long a record: `max_value`,
    /// unless it was larger when the record was written, or a closure has made the value so.
    pub(crate) fn most_of(max_value_bytes: u64, record_bytes: u64) -> u64 {
        // A record may be a little longer than its heap, and one of ours own none.
        let usual = max_value_bytes + max_value_bytes / 4 + OWN_RECORD_BYTES;
        if record_bytes > usual { record_bytes } else { max_value_bytes }
    }

    /// Notes that the state is empty.
    pub fn forget(&mut self) {
        (self.is_seen, self.longest) = (false, None);
        self.note_longest(0);
    }

    /// Checks that the state accepts a key and a value that own `bytes` together.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`], which names state and key, if they own more than the limit.
    #[inline]
    pub fn check<K: Key>(&self, key: &K, bytes: u64) -> Result<()> {
        if bytes > self.max_bytes { Err(self.refused(key, bytes)) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn refused<K: Key>(&self, key: &K, bytes: u64) -> Error {
        let most = self.max_bytes;
        let message = format!(
            "a value and its key own {bytes} bytes of heap, max_value is {most}; take, replace or \
             remove it, or raise max_value"
        );
        let error = Error::new(ErrorKind::ValueTooLarge, message);
        error.with("state", &self.state).with("key", key_text(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_of_others_leaves_room_for_the_longest_value() {
        let root = Account::root(1 << 20);
        let account = Account::below(&root, "state", u64::MAX);
        let mut oversize = Oversize::new("state", 1000);
        assert_eq!((oversize.noted_bytes(), root.left_free()), (1000, 0));
        oversize.keep_room_in(&account, 2);
        assert_eq!((oversize.noted_bytes(), root.left_free()), (0, 0));
        for (bytes, noted) in [(1, 64), (64, 64), (65, 128), (500, 512), (300, 512), (5000, 1000)] {
            oversize.grown(&7u64, bytes);
            assert_eq!(oversize.noted_bytes(), noted, "{bytes}");
            assert_eq!(root.left_free(), 2 * noted + (8 << 10));
        }
        assert_eq!((oversize.told(), oversize.is_seen()), (1, true));
        oversize.forget();
        assert_eq!((oversize.noted_bytes(), root.left_free()), (0, 0));
        oversize.found(200);
        assert_eq!((oversize.noted_bytes(), oversize.is_seen()), (256, false));
        oversize.limit_to(100);
        assert_eq!(root.left_free(), 2 * 100 + (8 << 10));
    }
}
