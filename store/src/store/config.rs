//! Configuration of a store, from code or from a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use alluvium_compaction::DEFAULT_MAX_AMPLIFICATION;
use alluvium_pagestore::io::IoOptions;
use alluvium_pagestore::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::backend::any_layout::AnyLayout;
use crate::cells::recording::TraceOptions;
use alluvium_pagestore::{ByteSize, KIB, MIB};

/// Options of a store. Unknown options are refused.
///
/// ```toml
/// directory = "state"
/// memory = "512MiB"
///
/// [layout]
/// kind = "hybrid-log"
///
/// [states.people]
/// kind = "heap"
/// memory = "64MiB"
/// ```
///
/// ```
/// use alluvium::{Store, StoreConfig};
///
/// let config: StoreConfig = toml::from_str(r#"memory = "64MiB""#).unwrap();
/// let store = Store::from_config(config).open()?;
/// assert_eq!(store.memory_bytes(), 64 << 20);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct StoreConfig {
    /// Directory of segments and checkpoints; `None` keeps everything in memory.
    pub directory: Option<PathBuf>,
    /// Memory that the store may hold: indexes, pages, buffers and heap of values together. More
    /// memory means fewer reads from storage. Default: [`DEFAULT_MEMORY_BYTES`].
    pub memory: ByteSize,
    /// Number of key groups of the job. A key group is the smallest unit that a worker owns. Fixed
    /// for the life of a directory. Default: 256.
    pub key_groups: u16,
    /// Most heap that a value, or an element of a list, may own together with its key. The store
    /// keeps this much of the budget free for values to grow into. At most 31 MiB, the limit of the
    /// format. Default: a sixteenth of the memory, between 4 KiB and 1 MiB.
    pub max_value: Option<ByteSize>,
    /// Number of checkpoints that stay restorable. Each keeps the files that it names, also those
    /// that nothing else needs. With 1, damage to a file of the newest checkpoint leaves nothing to
    /// go back to. Default: [`DEFAULT_RETAIN`].
    pub retain: usize,
    /// Most bytes that segments of a [`HybridLog`](crate::HybridLog) may take on storage per byte
    /// of live state; segments that only a checkpoint needs do not count. Beyond that, compaction
    /// rewrites them. A value nearer to 1 copies more. Default: [`DEFAULT_SPACE_AMPLIFICATION`].
    pub space_amplification: f64,
    /// How files are read and written. Default: io_uring if the kernel allows it, else threads; see
    /// [`IoOptions`].
    pub io: IoOptions,
    /// Where background work runs. Default: [`Helpers::Thread`].
    pub helpers: Helpers,
    /// Milliseconds after which a call that waits for a hung device fails with
    /// [`ErrorKind::Backpressure`]: checkpoints, opening, restoring and exports. Layouts have
    /// timeouts of their own. Default: [`DEFAULT_PATIENCE_MS`].
    pub patience_ms: u64,
    /// Milliseconds by which the time of an expiring state may move at once: by one reading of the
    /// clock, one [`advance`](crate::ExpiringMap::advance), or one entry from another store. A
    /// larger jump fails with [`ErrorKind::Input`] and expires nothing; otherwise a wrong clock
    /// would expire all entries for good. Set it above the longest time for which a job may stand
    /// still. Default: [`DEFAULT_TIME_JUMP_MAX_MS`].
    pub time_jump_max_ms: u64,
    /// Layout of states that name none. Default: [`AnyLayout::Auto`], which chooses by the kind of state.
    pub layout: AnyLayout,
    /// Layouts of single states, by name. They override `layout`; one that code names
    /// (`StateBuilder::layout`) wins over both.
    pub states: BTreeMap<String, AnyLayout>,
    /// Records the calls on states as files that `alluvium-gadget` reads. Default: no.
    pub trace: Option<TraceOptions>,
}

/// Where background work runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Helpers {
    /// On a helper thread of the store.
    #[default]
    Thread,
    /// On the calling thread, when it waits or ticks: no threads are started.
    Inline,
}

/// Default of [`StoreConfig::space_amplification`].
pub const DEFAULT_SPACE_AMPLIFICATION: f64 = DEFAULT_MAX_AMPLIFICATION;

/// Default of [`StoreConfig::retain`].
pub const DEFAULT_RETAIN: usize = 2;

/// Default of [`StoreConfig::patience_ms`].
pub const DEFAULT_PATIENCE_MS: u64 = 20_000;

/// Default of [`StoreConfig::time_jump_max_ms`]: ten years.
pub const DEFAULT_TIME_JUMP_MAX_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// Default of [`StoreConfig::memory`].
pub const DEFAULT_MEMORY_BYTES: u64 = 256 * MIB;

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            directory: None,
            memory: ByteSize(DEFAULT_MEMORY_BYTES),
            key_groups: 256,
            max_value: None,
            retain: DEFAULT_RETAIN,
            space_amplification: DEFAULT_SPACE_AMPLIFICATION,
            io: IoOptions::default(),
            helpers: Helpers::default(),
            patience_ms: DEFAULT_PATIENCE_MS,
            time_jump_max_ms: DEFAULT_TIME_JUMP_MAX_MS,
            layout: AnyLayout::default(),
            states: BTreeMap::new(),
            trace: None,
        }
    }
}

impl StoreConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], which names the file; its cause names line and option. Those of reading
    /// the file, such as [`ErrorKind::Missing`].
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::io("read the configuration", path.display(), e))?;
        toml::from_str(&text).map_err(|e| {
            Error::new(ErrorKind::Config, "cannot parse the configuration")
                .with("file", path.display())
                .caused_by(e)
        })
    }

    /// How far the time of a state may move at once, in nanoseconds.
    pub(crate) fn time_jump_max_nanos(&self) -> u64 {
        self.time_jump_max_ms.saturating_mul(1_000_000)
    }

    /// Returns the most heap that one value may own.
    pub fn max_value_bytes(&self) -> u64 {
        self.max_value_bytes_in(self.memory.0)
    }

    /// The most heap that one value may own in a store of so much memory with these options.
    pub(crate) fn max_value_bytes_in(&self, memory: u64) -> u64 {
        let default = (memory / 16).clamp(4 * KIB, MIB);
        self.max_value.map_or(default, |size| size.0)
    }
}
