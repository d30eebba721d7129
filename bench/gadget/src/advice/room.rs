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
/// What it takes beside runs: buffers of its helper and of reads, and lists that are in no run yet.
const LIST_BUFFERS_BYTES: u64 = 280 << 10;
/// The share of the rest that places of blocks and notes may take.
const LIST_PLACES: f64 = 0.48;
/// Blocks of its runs are such a part of the memory, between the two.
const BLOCKS_IN_MEMORY: u64 = 256;
const BLOCK_BYTES_MIN: u64 = 4 << 10;
const BLOCK_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a block's index entry, with its share of its run's table.
const BLOCK_PLACE_BYTES: u64 = 36;
/// What an element takes in a run beside its bytes.
const ELEMENT_IN_RUN_BYTES: u64 = 16;
/// What a part of a list in a run takes beside its elements and its key.
const PART_IN_RUN_BYTES: u64 = 56;
/// Runs that have a part of the same list.
const PARTS_OF_LIST: u64 = 8;
/// Bytes on storage for each that is not cut off, at most: a third is left before runs are merged, merging takes
/// its time, and the merged run stands beside them.
const CUT_OFF: f64 = 4.0;
/// A note that a list was cleared, in a table at its worst.
const NOTE_BYTES: u64 = 150;
/// Most notes there are: those that start a merge, and those that arrive during it.
const NOTES_MAX: u64 = 5000;

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
    /// Keys that are deleted at least once.
    pub deleted: u64,
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
                let each = ELEMENT_BYTES + allocated(element);
                self.keys * (LIST_BYTES + allocated(self.key_bytes)) + self.elements() * each
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
            // What fits in memory has no runs.
            _ => self.least_of_lists().min(self.all_in(engine) + LIST_BUFFERS_BYTES),
        }
    }

    /// Elements of all lists.
    fn elements(&self) -> u64 {
        self.element_bytes.map_or(self.keys, |bytes| self.value_bytes.div_ceil(bytes.max(1)))
    }

    /// Memory that an append log takes for lists on storage, with blocks that end after so many bytes: the
    /// places of these blocks, and notes of lists that were cleared.
    fn of_runs(&self, block_bytes: u64) -> u64 {
        let element = self.element_bytes.unwrap_or(0);
        let elements = self.elements();
        let parts = elements.min(self.keys * PARTS_OF_LIST);
        let beside = elements * ELEMENT_IN_RUN_BYTES + parts * (PART_IN_RUN_BYTES + self.key_bytes);
        let cut_off = if self.deleted > 0 { CUT_OFF } else { 1.0 };
        let stored = (self.value_bytes + beside) as f64 * cut_off;
        // An eighth is left for headers; the last element goes beyond the end.
        let blocks = stored / (block_bytes - block_bytes / 8 + element / 2) as f64;
        let notes = self.deleted.min(NOTES_MAX) * (NOTE_BYTES + allocated(self.key_bytes));
        (blocks * BLOCK_PLACE_BYTES as f64) as u64 + notes
    }

    /// The least memory for the lists of an append log. More memory has longer blocks, which are fewer.
    fn least_of_lists(&self) -> u64 {
        let least = |block: u64| {
            let used = LIST_BUFFERS_BYTES + (self.of_runs(block) as f64 / LIST_PLACES) as u64;
            // So much memory has blocks so long.
            if block == BLOCK_BYTES_MIN { used } else { used.max(block * BLOCKS_IN_MEMORY) }
        };
        let blocks = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).step_by(1024);
        blocks.map(least).min().expect("there are sizes of blocks")
    }

    /// Why a layout cannot hold it in so much memory, if it cannot.
    pub fn refused(&self, engine: &str, memory_bytes: u64) -> Option<String> {
        let least = self.least(engine);
        let why = match engine {
            "ours-heap" => "it keeps all in memory, and the state takes up to",
            "ours-append-log" => "the places of its blocks and its buffers have to fit, up to",
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
        let block = (memory_bytes / BLOCKS_IN_MEMORY).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let index = match engine {
            "ours-append-log" => self.of_runs(block),
            _ => keys * LOG_INDEX_BYTES,
        };
        let room = (memory_bytes as f64 * (1.0 - free)) as u64;
        room.saturating_sub(index) / each.max(1)
    }
}

fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use alluvium::config::Helpers;
    use alluvium::{AppendLog, ErrorKind, List, Store};

    use super::*;
    use crate::access::digits;
    use crate::engine::{Open, built_in};
    use crate::error::Error;
    use crate::operator::{Name, Options};

    fn state(keys: u64, value_bytes: u64) -> State {
        let (key_bytes, value_max) = (10, value_bytes);
        let value_bytes = keys * value_bytes;
        State { keys, key_bytes, value_bytes, value_max, ..State::default() }
    }

    /// Keys that a store takes until it refuses one.
    fn keys_in(engine: &str, memory_bytes: u64, value: &[u8]) -> u64 {
        let made = tempfile::tempdir().unwrap();
        let kind = built_in().into_iter().find(|kind| kind.name == engine).unwrap();
        let (directory, options) = (made.path().to_owned(), Options::default());
        let operator = Name::Aggregation;
        let open = Open { directory, memory_bytes, operator, options, events: 1000 };
        let mut engine = kind.open(&open).unwrap();
        let mut is_full = |key: &u64| match engine.put(&digits(*key), value) {
            Ok(()) => false,
            Err(Error::Store(error)) if error.kind() == ErrorKind::OverBudget => true,
            Err(error) => panic!("{error}"),
        };
        (0..memory_bytes).find(&mut is_full).unwrap()
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

    fn lists(keys: u64, elements: u64, element: &[u8], deleted: u64) -> State {
        let bytes = element.len() as u64;
        let (value_bytes, value_max) = (elements * bytes, elements * bytes / keys);
        State { keys, key_bytes: 10, value_bytes, value_max, element_bytes: Some(bytes), deleted }
    }

    fn open_lists(place: &Path, memory_bytes: u64) -> (Store, List<Vec<u8>, Vec<u8>>) {
        let builder = Store::builder(place).memory(memory_bytes).layout(AppendLog::new());
        // How much fits does not depend on what else the machine does.
        let store = builder.helpers(Helpers::Inline).open().unwrap();
        let lists = store.list("lists").open().unwrap();
        (store, lists)
    }

    #[test]
    fn an_append_log_holds_what_is_said_and_not_much_more() {
        let (memory_bytes, keys, element) = (416 << 10, 500, [7; 1000]);
        let place = tempfile::tempdir().unwrap();
        let (_store, mut all) = open_lists(place.path(), memory_bytes);
        let append = |at: &u64| all.append(&digits(at % keys)[..], element.to_vec()).is_err();
        let most = (0..memory_bytes).find(append).unwrap();
        let fits = |elements| {
            lists(keys, elements, &element, 0).refused("ours-append-log", memory_bytes).is_none()
        };
        assert!(!fits(most * 3 / 2) && fits(most / 2), "{most} elements were the most");
        // Few lists have no runs, however many were cleared.
        let few = lists(10, 100, &element, 100_000);
        assert_eq!(few.refused("ours-append-log", 512 << 10), None);
        assert!(few.refused("ours-append-log", 256 << 10).is_some());
    }

    #[test]
    fn an_append_log_works_where_lists_are_cleared_again_and_again() {
        let (memory_bytes, keys, element) = (1 << 20, 500, [7; 1000]);
        let state = lists(keys, 10 * keys, &element, keys);
        assert_eq!(state.refused("ours-append-log", memory_bytes), None);
        let place = tempfile::tempdir().unwrap();
        let (_store, mut all) = open_lists(place.path(), memory_bytes);
        for _ in 0..4 {
            for at in 0..10 * keys {
                all.append(&digits(at % keys)[..], element.to_vec()).unwrap();
            }
            for key in 0..keys {
                assert_eq!(all.read(&digits(key)[..], |_| Ok(())).unwrap(), 10);
                all.clear(&digits(key)[..]).unwrap();
            }
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
        let why = state.refused("ours-hybrid-log", 1 << 20).unwrap();
        assert!(why.contains("index") && why.contains("2344 KiB"), "{why}");
        let why = State { value_max: 1 << 20, ..state }.refused("ours-hybrid-log", 8 << 20);
        assert!(why.unwrap().contains("a value of 1024 KiB"));
    }
}
