//! What memory a number of keys wants in each layout, before there is one of them.
//!
//! The layouts say it, by the functions that they book by. Here they are asked, each with its options, as for a state that
//! has a store of any memory for itself.

use std::fmt;

use alluvium_layouts::{ExpectedKeys, Heap, HybridLog, MemoryNeeds};
use alluvium_pagestore::{ByteSize, Key, State};

use crate::api::expiring::{ExpiringMapOf, Timed};
use crate::backend::any_layout::AnyLayout;
use crate::store::{MapOf, StateBuilder};

/// Memory that a state wants in each layout: the result of `explain_memory` of a [`StateBuilder`]. Prints as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryExplanation {
    /// The state's name.
    pub state: String,
    /// What was asked for.
    pub keys: ExpectedKeys,
    /// Each layout with its options.
    pub rows: Vec<MemoryRow>,
}

/// Memory that a state wants in one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRow {
    /// The layout's name.
    pub layout: &'static str,
    /// Options that are not the defaults, as in a configuration file.
    pub options: &'static str,
    /// The memory. `None`: the layout does not keep such a state, whatever the memory.
    pub needs: Option<MemoryNeeds>,
}

impl fmt::Display for MemoryExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExpectedKeys { hot, cold, owned_bytes, .. } = self.keys;
        write!(f, "{}: {hot} hot keys, {cold} cold keys", self.state)?;
        match owned_bytes {
            0 => writeln!(f)?,
            owned => writeln!(f, ", each owns {owned} bytes")?,
        }
        let heads =
            ["smallest", "wanted", "index", "records", "filters", "tables", "buffers", "work"];
        let heads = heads.map(|head| format!("{head:>9}")).concat();
        writeln!(f, "{:<11} {:<18}{heads}", "layout", "options")?;
        for MemoryRow { layout, options, needs } in &self.rows {
            write!(f, "{layout:<11} {options:<18}")?;
            let Some(MemoryNeeds { smallest, wanted, parts }) = needs else {
                writeln!(f, "{:>9}", "none")?;
                continue;
            };
            let filled =
                [parts.index, parts.records, parts.filters, parts.directories, parts.buffers];
            for bytes in [*smallest, *wanted].into_iter().chain(filled).chain([parts.work]) {
                write!(f, "{:>9}", ByteSize(bytes).short())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<P> StateBuilder<'_, P> {
    fn memory_of<K: Key, V: State>(&self, keys: ExpectedKeys) -> MemoryExplanation {
        let context_of =
            &|memory| self.store().context_alone(self.name(), memory, self.mover().is_some());
        let log = match self.chosen_layout() {
            AnyLayout::HybridLog(log) => log.clone(),
            _ => HybridLog::new(),
        };
        let of_log = |options, log: HybridLog| MemoryRow {
            layout: "hybrid-log",
            options,
            needs: log.memory_for::<K, V>(&keys, context_of),
        };
        let heap = Heap::new().memory_for::<K, V>(&keys, context_of);
        MemoryExplanation {
            state: self.name().to_owned(),
            keys,
            rows: vec![
                MemoryRow { layout: "heap", options: "", needs: heap },
                of_log("", log.clone()),
                of_log("cold-runs = false", log.clone().cold_runs(false)),
                of_log("generations = 2", log.clone().generations(2)),
                of_log("cold-runs = true", log.cold_runs(true)),
            ],
        }
    }
}

impl<K: Key, V: State> StateBuilder<'_, MapOf<K, V>> {
    /// Says what memory so many keys want in each layout, if the map has a store for itself: the smallest that does, the
    /// memory in which hot keys need no read, and what it is for. Options of a hybrid log that the state was given count.
    /// Cost: some tens of milliseconds, and up to 1.4 MiB beside the store's memory meanwhile.
    ///
    /// ```
    /// # use alluvium::Store;
    /// use alluvium::config::ExpectedKeys;
    ///
    /// let store = Store::in_memory().open()?;
    /// let keys = ExpectedKeys::new(100_000, 10_000_000);
    /// let explained = store.map::<u64, u64>("counts").explain_memory(keys);
    /// println!("{explained}");
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn explain_memory(&self, keys: ExpectedKeys) -> MemoryExplanation {
        self.memory_of::<K, V>(keys)
    }
}

impl<K: Key, V: State> StateBuilder<'_, ExpiringMapOf<K, V>> {
    /// Says what memory so many keys want in each layout, as for a map. Keys count that have not expired, and those of
    /// another eighth of their time to live.
    pub fn explain_memory(&self, keys: ExpectedKeys) -> MemoryExplanation {
        self.memory_of::<K, Timed<V>>(ExpectedKeys { expire: true, ..keys })
    }
}
