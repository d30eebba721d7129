//! Opening a store.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use alluvium_compaction::SpacePolicy;
use alluvium_pagestore::io::{Device, IoOptions, open_device};
use alluvium_pagestore::{Error, ErrorKind, Helper, RECORD_BYTES_MAX, Result};

use crate::any_layout::AnyLayout;
use crate::config::{Helpers, StoreConfig};
use crate::expiring::{Clock, WallClock};
use crate::sources::Source;
use crate::store::Store;
use alluvium_pagestore::{IntoByteSize, KIB};

/// Collects options and opens a [`Store`]; start with [`Store::builder`].
///
/// ```
/// use alluvium::{KIB, MIB, Store};
///
/// # let place = tempfile::tempdir().unwrap();
/// # let directory = place.path();
/// let store = Store::builder(directory)
///     .memory(64 * MIB) // for all states: indexes, pages, buffers, the heap of values
///     .max_value(64 * KIB) // a value with its key; larger ones are refused
///     .retain(3) // checkpoints that can be restored
///     .open()?;
/// assert_eq!(store.memory_bytes(), 64 * MIB);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct StoreBuilder {
    config: StoreConfig,
    device: Option<Arc<dyn Device>>,
    owned: Option<Range<u16>>,
    restore: Option<u64>,
    sources: Option<Vec<Source>>,
    clock: Arc<dyn Clock>,
    helper: Option<Helper>,
    /// The first option that cannot be read.
    refused: Option<Error>,
}

/// The least [`StoreBuilder::memory`] that opens a store; each state needs more, by layout.
pub const MEMORY_BYTES_MIN: u64 = 16 * KIB;

impl StoreBuilder {
    pub(crate) fn new(config: StoreConfig) -> Self {
        let clock = Arc::new(WallClock);
        let (device, owned, restore, sources, helper) = (None, None, None, None, None);
        Self { config, device, owned, restore, sources, clock, helper, refused: None }
    }

    /// Memory the store may hold: indexes, pages, buffers and the heap of values together. More
    /// memory means fewer reads from storage. Bytes, or as a configuration has it, such as `"64MiB"`; a
    /// text that is no size is refused when the store is opened. Default:
    /// [`DEFAULT_MEMORY_BYTES`](crate::DEFAULT_MEMORY_BYTES).
    #[must_use]
    pub fn memory(mut self, bytes: impl IntoByteSize) -> Self {
        match bytes.into_byte_size() {
            Ok(bytes) => self.config.memory = bytes,
            Err(error) => self = self.refused("memory", error),
        }
        self
    }

    /// Keeps what is wrong with an option until the store is opened.
    fn refused(mut self, option: &str, error: Error) -> Self {
        self.refused.get_or_insert(error.with("option", option));
        self
    }

    /// Key groups of the job; fixed for the life of a directory. Default: 256.
    #[must_use]
    pub fn key_groups(mut self, groups: u16) -> Self {
        self.config.key_groups = groups;
        self
    }

    /// The key groups this store owns. Default: all.
    #[must_use]
    pub fn owned_groups(mut self, owned: Range<u16>) -> Self {
        self.owned = Some(owned);
        self
    }

    /// The most heap that a value, or an element of a list, may own together with its key; so much of
    /// the budget is kept free for values to grow into. Bytes, or such as `"64KiB"`. Calls that bring a
    /// larger one fail with [`ErrorKind::ValueTooLarge`]. A value that a closure has made larger is told
    /// in [statistics](crate::TableStats::oversized), and changes no more until it is taken, replaced or
    /// removed. At most 31 MiB, which is what the format takes. Default: a sixteenth of the memory,
    /// between 4 KiB and 1 MiB.
    #[must_use]
    pub fn max_value(mut self, bytes: impl IntoByteSize) -> Self {
        match bytes.into_byte_size() {
            Ok(bytes) => self.config.max_value = Some(bytes),
            Err(error) => self = self.refused("max_value", error),
        }
        self
    }

    /// The layout of states that name none. Default: the hybrid log.
    #[must_use]
    pub fn layout(mut self, layout: impl Into<AnyLayout>) -> Self {
        self.config.layout = layout.into();
        self
    }

    /// Where background work runs. Default: [`Helpers::Thread`].
    #[must_use]
    pub fn helpers(mut self, helpers: Helpers) -> Self {
        self.config.helpers = helpers;
        self
    }

    /// Has background work done by this helper, whatever the [configuration](StoreBuilder::helpers): for
    /// tests, whose helper takes turns.
    #[doc(hidden)]
    #[must_use]
    pub fn helper(mut self, helper: Helper) -> Self {
        self.helper = Some(helper);
        self
    }

    /// How files are read and written.
    #[must_use]
    pub fn io(mut self, io: IoOptions) -> Self {
        self.config.io = io;
        self
    }

    /// Keeps files on `device` instead of in a directory: for tests and for storage of one's own.
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// The clock of states whose entries expire in [processing time](crate::Ttl::processing_time).
    /// Default: [`WallClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How many checkpoints are kept that can be restored; see [`StoreConfig::retain`].
    #[must_use]
    pub fn retain(mut self, checkpoints: usize) -> Self {
        self.config.retain = checkpoints;
        self
    }

    /// How long a call waits for storage that does nothing; see [`StoreConfig::patience_ms`].
    #[must_use]
    pub fn patience(mut self, most: Duration) -> Self {
        self.config.patience_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// How far the time of a state whose entries expire may move at once; see
    /// [`StoreConfig::time_jump_max_ms`].
    #[must_use]
    pub fn time_jump(mut self, most: Duration) -> Self {
        self.config.time_jump_max_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// The most bytes on storage per byte of live state; see [`StoreConfig::space_amplification`].
    #[must_use]
    pub fn space_amplification(mut self, most: f64) -> Self {
        self.config.space_amplification = most;
        self
    }

    /// Restores the checkpoint of this number instead of the last: one of those retained
    /// ([`Store::checkpoints`]), or one that was [sealed](Store::seal) in full but not confirmed
    /// before a crash.
    ///
    /// This chooses a branch: from now on an open without a number goes on from this checkpoint, also
    /// after a crash. To go back to a later one, restore that by its number. All checkpoints that are
    /// whole stay, whatever becomes of this run, until the next checkpoint is confirmed: it
    /// continues this branch, and the later ones are removed.
    ///
    /// If the manifest is damaged, any checkpoint can be restored whose files are all there, and nothing
    /// is removed until the store is opened again. The error of an open without a number names them.
    #[must_use]
    pub fn restore(mut self, checkpoint: u64) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Makes a new store of checkpoints of other stores: each state that is opened takes what they
    /// have of the [key groups owned](StoreBuilder::owned_groups). Stores of any number can so become
    /// stores of any other number, in other layouts too. The other directories are only read: none
    /// of them may be open in a store meanwhile, but any number of new stores may read one at the
    /// same time, and what each makes of it is its own. (To go on in the directory itself, open it.)
    ///
    /// The store's own directory must have no checkpoint. States are restored when they are opened,
    /// which reads what is wanted of the sources and writes it here as far as it does not fit into
    /// memory; the sources are let go with the last. No checkpoint is taken before all states that
    /// the sources have are open, or [left out](Store::leave_out). A [`Value`](crate::Value) belongs
    /// to the store that owns the key group of `()`.
    ///
    /// ```no_run
    /// # use alluvium::Store;
    /// // Two workers become three: the second of them.
    /// let store = Store::builder("new/worker-1")
    ///     .owned_groups(86..171)
    ///     .restore_from([("old/worker-0", None), ("old/worker-1", None)])
    ///     .open()?;
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    #[must_use]
    pub fn restore_from<S: Into<Source>>(mut self, sources: impl IntoIterator<Item = S>) -> Self {
        self.sources = Some(sources.into_iter().map(Into::into).collect());
        self
    }

    /// Opens the store: takes the directory's lock, reads the last checkpoint (that was confirmed, or
    /// [restored](StoreBuilder::restore) by its number since) and removes what a crash left over.
    /// States are restored when they are opened.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for options that cannot work, [`ErrorKind::Locked`] if the directory
    /// is in use, [`ErrorKind::Corrupt`] and [`ErrorKind::FormatVersion`] for a manifest or
    /// checkpoint that cannot be read (the message names the checkpoints that are there beside it),
    /// [`ErrorKind::Missing`] if the checkpoint asked for is not there, [`ErrorKind::Mismatch`] for
    /// other key groups than the directory's. With [`restore_from`](StoreBuilder::restore_from) also
    /// [`ErrorKind::Mismatch`] for key groups that none or two of the sources have, for sources with
    /// another number of key groups or with states of different types, and if the directory has a
    /// checkpoint; the same errors as for the directory for each source, naming it.
    pub fn open(self) -> Result<Store> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let config = self.config;
        let bad = |message: String| Err(Error::new(ErrorKind::Config, message));
        if config.memory.0 < MEMORY_BYTES_MIN {
            let given = config.memory;
            return bad(format!("memory is {given}; a store needs {MEMORY_BYTES_MIN} bytes"));
        }
        if config.key_groups == 0 || config.key_groups > 1 << 15 {
            return bad(format!("key_groups is {}; 1 to 32768 are possible", config.key_groups));
        }
        let owned = self.owned.unwrap_or(0..config.key_groups);
        if owned.is_empty() || owned.end > config.key_groups {
            return bad(format!("key groups {owned:?} of {} cannot be owned", config.key_groups));
        }
        if config.retain == 0 {
            return bad("no checkpoint would be retained; 1 is the least".into());
        }
        SpacePolicy::with_limit(config.space_amplification)?;
        if config.time_jump_max_ms == 0 {
            return bad("time_jump_max_ms is 0, so that no time could move; 1 is the least".into());
        }
        if config.max_value_bytes() >= config.memory.0 {
            let (value, memory) = (config.max_value_bytes(), config.memory);
            return bad(format!(
                "max_value is {value} bytes, which a memory of {memory} cannot hold"
            ));
        }
        if config.max_value_bytes() > RECORD_BYTES_MAX {
            let value = config.max_value_bytes();
            return bad(format!(
                "max_value is {value} bytes; the format of files takes {RECORD_BYTES_MAX} at most"
            ));
        }
        let device = match (self.device, &config.directory) {
            (Some(device), _) => Some(device),
            (None, Some(directory)) => Some(open_directory(directory, &config.io)?),
            (None, None) => None,
        };
        if self.sources.is_some() && (self.restore.is_some() || device.is_none()) {
            return bad("a store that is restored from others is a new one, in a directory".into());
        }
        Store::open(config, device, self.helper, owned, self.restore, self.sources, self.clock)
    }
}

fn open_directory(directory: &Path, io: &IoOptions) -> Result<Arc<dyn Device>> {
    open_device(directory, io)
}
