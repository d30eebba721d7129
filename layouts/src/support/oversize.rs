//! The limit on the heap that a key and its value own, and the values that closures enlarged beyond
//! it.
//!
//! A call that passes in a larger key or value is refused. A closure has already changed its value:
//! the state reports it at once, and refuses further changes until the value is taken, replaced or
//! removed. Cost on the record path: one flag, set while such a value may exist.

use alluvium_pagestore::{Error, ErrorKind, Key, Result, key_text};

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
}

impl Oversize {
    /// Creates the record of a state whose keys and values may own `max_bytes` together.
    pub fn new(state: &str, max_bytes: u64) -> Self {
        Self { state: state.into(), max_bytes, is_seen: false, told: 0, longest: None }
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
        if bytes > self.max_bytes {
            self.tell(key, bytes);
        }
    }

    #[cold]
    #[inline(never)]
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
