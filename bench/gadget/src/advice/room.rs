//! What memory the layouts take for a state of byte vectors, and how much of it stays in memory.
//!
//! Slots, allocations and index entries are counted as `docs/src/sizing.md` has them, at their worst,
//! because a layout has to hold the state at every moment. A test fills stores until they refuse.

/// Key and value, as vectors in a slot.
const PAIR_BYTES: u64 = 48;
/// Slots of the heap a pair, at most: a block is half full after it was split.
const HEAP_SLOTS: f64 = 2.1;
/// The share of the memory that the heap keeps free for two largest values and the next checkpoint.
const HEAP_FREE: f64 = 0.16;
/// A slot of the hybrid log.
const LOG_SLOT_BYTES: u64 = PAIR_BYTES + 8;
/// Its index entry, in the mean of full logs.
const LOG_INDEX_BYTES: u64 = 17;
/// Memory that each key of a hybrid log takes at least, wherever its record is: its index entry at its
/// worst, and the share of buffers and pages that the index leaves.
const LOG_KEY_BYTES_MIN: u64 = 24;
/// The share of the memory that its buffers, and the largest values, take.
const LOG_BUFFERS: f64 = 0.3;
/// A value of a map takes at most such a part of the memory.
const VALUES_IN_MEMORY: u64 = 16;
/// A vector that grows by appends has room for so many times its bytes, in the mean.
const GROWN: f64 = 1.4;
/// A key of an append log with the places of its chain.
const LIST_BYTES: u64 = 48;
/// An element of its list.
const ELEMENT_BYTES: u64 = 24;
/// The share of the memory that it keeps from appends.
const LIST_FREE: f64 = 0.2;

/// A state at its largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// The most keys that live.
    pub keys: u64,
    /// The mean bytes of a key.
    pub key_bytes: u64,
    /// The most bytes of values that live.
    pub value_bytes: u64,
    /// The bytes of the largest value.
    pub value_max: u64,
    /// The mean bytes of what is appended, if all values are lists.
    pub element_bytes: Option<u64>,
}

/// What an allocation of so many bytes takes.
fn allocated(bytes: u64) -> u64 {
    (bytes + 8).next_multiple_of(16).max(32)
}

impl State {
    /// Heap that keys and values own.
    fn owned_bytes(&self) -> u64 {
        let grown = if self.element_bytes.is_some() { GROWN } else { 1.0 };
        let value = (self.value_bytes as f64 * grown) as u64 / self.keys.max(1);
        self.keys * (allocated(self.key_bytes) + allocated(value))
    }

    /// What a hybrid log takes that has all of it in memory, without its buffers.
    pub fn bytes(&self) -> u64 {
        self.keys * (LOG_SLOT_BYTES + LOG_INDEX_BYTES) + self.owned_bytes()
    }

    /// What a layout takes that has all of it in memory, without what it keeps free.
    fn bytes_of(&self, engine: &str) -> u64 {
        match (engine, self.element_bytes) {
            ("ours-heap", _) => {
                let slots = self.keys as f64 * PAIR_BYTES as f64 * HEAP_SLOTS;
                slots as u64 + self.owned_bytes()
            }
            ("ours-append-log", Some(element)) => {
                let elements = self.value_bytes.div_ceil(element.max(1));
                let each = ELEMENT_BYTES + allocated(element);
                self.keys * (LIST_BYTES + allocated(self.key_bytes)) + elements * each
            }
            _ => self.bytes(),
        }
    }

    /// The memory in which a layout has all of it.
    pub fn all_in(&self, engine: &str) -> u64 {
        let free = match engine {
            "ours-heap" => HEAP_FREE,
            "ours-append-log" => LIST_FREE,
            _ => LOG_BUFFERS,
        };
        (self.bytes_of(engine) as f64 / (1.0 - free)) as u64
    }

    /// The least memory in which a layout works with it.
    pub fn least(&self, engine: &str) -> u64 {
        match engine {
            "ours-heap" => self.all_in(engine),
            "ours-hybrid-log" => self.keys * LOG_KEY_BYTES_MIN,
            _ => 0,
        }
    }

    /// Why a layout cannot hold it in so much memory, if it cannot.
    pub fn refused(&self, engine: &str, memory_bytes: u64) -> Option<String> {
        let least = self.least(engine);
        let why = match engine {
            "ours-heap" => "it keeps all in memory, and the state takes up to",
            _ => "the index has to fit, and with its pages takes up to",
        };
        if least > memory_bytes {
            return Some(format!("refused: {why} {} KiB", kib(least)));
        }
        let is_too_long =
            engine != "ours-append-log" && self.value_max > memory_bytes / VALUES_IN_MEMORY;
        let longest = kib(self.value_max);
        is_too_long.then(|| format!("refused: a value of {longest} KiB is too long for the memory"))
    }

    /// How many keys a layout has in memory at a time.
    pub fn cached(&self, engine: &str, memory_bytes: u64) -> u64 {
        if self.all_in(engine) <= memory_bytes {
            return self.keys;
        }
        let keys = self.keys.max(1);
        let (free, each) = match engine {
            "ours-append-log" => (LIST_FREE, self.bytes_of(engine) / keys),
            _ => (LOG_BUFFERS, LOG_SLOT_BYTES + self.owned_bytes() / keys),
        };
        let index = if engine == "ours-append-log" { 0 } else { keys * LOG_INDEX_BYTES };
        let room = (memory_bytes as f64 * (1.0 - free)) as u64;
        room.saturating_sub(index) / each.max(1)
    }
}

fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::digits;
    use crate::engine::{Open, built_in};
    use crate::operator::{Name, Options};

    fn state(keys: u64, value_bytes: u64) -> State {
        let (key_bytes, value_max) = (10, value_bytes);
        State { keys, key_bytes, value_bytes: keys * value_bytes, value_max, element_bytes: None }
    }

    /// Keys that a store takes until it refuses one.
    fn keys_in(engine: &str, memory_bytes: u64, value: &[u8]) -> u64 {
        let made = tempfile::tempdir().unwrap();
        let kind = built_in().into_iter().find(|kind| kind.name == engine).unwrap();
        let (directory, options) = (made.path().to_owned(), Options::default());
        let operator = Name::Aggregation;
        let open = Open { directory, memory_bytes, operator, options, events: 1000 };
        let mut engine = kind.open(&open).unwrap();
        (0..memory_bytes).find(|key| engine.put(&digits(*key), value).is_err()).unwrap()
    }

    #[test]
    fn layouts_hold_what_is_said_and_not_much_more() {
        for (engine, memory_bytes) in [("ours-heap", 3 << 20), ("ours-hybrid-log", 2 << 20)] {
            let keys = keys_in(engine, memory_bytes, &[7; 16]);
            let fits = |keys| state(keys, 16).refused(engine, memory_bytes).is_none();
            assert!(!fits(keys * 21 / 20), "{engine}: {keys} keys were the most");
            assert!(fits(keys * 3 / 4), "{engine}: {keys} keys were the most");
        }
    }

    #[test]
    fn less_memory_has_fewer_keys_until_there_are_none() {
        let state = state(100_000, 16);
        for engine in ["ours-hybrid-log", "ours-append-log"] {
            let all = state.all_in(engine);
            let cached = [all, all / 2, all / 4, 0].map(|memory| state.cached(engine, memory));
            assert_eq!((cached[0], cached[3]), (100_000, 0), "{engine}");
            assert!(cached.is_sorted_by(|more, less| more > less), "{engine}: {cached:?}");
        }
        assert_eq!(state.refused("ours-append-log", 0), None);
        let why = state.refused("ours-hybrid-log", 1 << 20).unwrap();
        assert!(why.contains("index") && why.contains("2344 KiB"), "{why}");
        let why = State { value_max: 1 << 20, ..state }.refused("ours-hybrid-log", 8 << 20);
        assert!(why.unwrap().contains("a value of 1024 KiB"));
    }
}
