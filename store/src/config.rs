//! Configuration of a store, from code or from a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use alluvium_compaction::DEFAULT_MAX_AMPLIFICATION;
use alluvium_pagestore::io::IoOptions;
use alluvium_pagestore::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::any_layout::AnyLayout;
use alluvium_pagestore::{ByteSize, KIB, MIB};

/// What a store is opened with. Unknown options are refused.
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
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct StoreConfig {
    /// Where segments and checkpoints live; none keeps everything in memory.
    pub directory: Option<PathBuf>,
    /// Memory the store may hold: indexes, pages, buffers and what values own together. More
    /// memory means fewer reads from storage. Default: [`DEFAULT_MEMORY_BYTES`].
    pub memory: ByteSize,
    /// Key groups of the job: the smallest unit that is assigned to a worker. Fixed for the life
    /// of a directory. Default: 256.
    pub key_groups: u16,
    /// The most heap a single value may own; so much of the budget is kept free for values to
    /// grow into. Default: a sixteenth of the memory, between 4 KiB and 1 MiB.
    pub max_value: Option<ByteSize>,
    /// How many checkpoints are kept that can be restored. Each keeps the files it names, also those
    /// that nothing else needs any more. With 1, damage to a file of the newest leaves nothing to go
    /// back to. Default: [`DEFAULT_RETAIN`].
    pub retain: usize,
    /// The most bytes that segments of a [`HybridLog`](crate::HybridLog) may take on storage per byte
    /// of live state, without those that only a checkpoint needs: beyond that compaction rewrites
    /// them. Nearer to 1 it copies more. Default: [`DEFAULT_SPACE_AMPLIFICATION`].
    pub space_amplification: f64,
    /// How files are read and written.
    pub io: IoOptions,
    /// Where background work runs.
    pub helpers: Helpers,
    /// Milliseconds after which a call that waits for storage, which does nothing at all, fails with
    /// [`ErrorKind::Backpressure`]: for checkpoints, opening, restoring and exports. Layouts have a patience of their own. Default:
    /// [`DEFAULT_PATIENCE_MS`].
    pub patience_ms: u64,
    /// The layout of states that name none.
    pub layout: AnyLayout,
    /// Layouts of single states, by name; these win over code that asks for [`AnyLayout`].
    pub states: BTreeMap<String, AnyLayout>,
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
            layout: AnyLayout::default(),
            states: BTreeMap::new(),
        }
    }
}

impl StoreConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the file, line and option.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::io("read the configuration", path.display(), e))?;
        toml::from_str(&text).map_err(|e| {
            Error::new(ErrorKind::Config, "the configuration is not understood")
                .with("file", path.display())
                .caused_by(e)
        })
    }

    /// The cap on what one value may own.
    pub fn max_value_bytes(&self) -> u64 {
        let default = (self.memory.0 / 16).clamp(4 * KIB, MIB);
        self.max_value.map_or(default, |size| size.0)
    }
}
