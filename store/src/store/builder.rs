//! Opening a store.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use alluvium_compaction::SpacePolicy;
use alluvium_pagestore::io::{Device, IoOptions, open_device};
use alluvium_pagestore::{Error, ErrorKind, Helper, RECORD_BYTES_MAX, Result};

use crate::api::expiring::{Clock, WallClock};
use crate::backend::any_layout::AnyLayout;
use crate::cells::recording::TraceOptions;
use crate::durability::sources::Source;
use crate::store::Store;
use crate::store::config::{Helpers, StoreConfig};
use alluvium_pagestore::{IntoByteSize, KIB};

/// Options of a store; [`Store::builder`] makes one, [`open`](StoreBuilder::open) opens the
/// [`Store`].
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

/// Least [`StoreBuilder::memory`] that opens a store. Each state needs more, by its layout.
pub const MEMORY_BYTES_MIN: u64 = 16 * KIB;

impl StoreBuilder {
    pub(crate) fn new(config: StoreConfig) -> Self {
        let clock = Arc::new(WallClock);
        let (device, owned, restore, sources, helper) = (None, None, None, None, None);
        Self { config, device, owned, restore, sources, clock, helper, refused: None }
    }

    /// Sets the memory that the store may hold: indexes, pages, buffers and heap of values
    /// together. More memory means fewer reads from storage. Takes bytes, or text such as
    /// `"64MiB"`; `open` refuses text that is no size. Default:
    /// [`DEFAULT_MEMORY_BYTES`](crate::config::DEFAULT_MEMORY_BYTES).
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

    /// Sets the number of key groups of the job; fixed for the life of a directory. Default: 256.
    #[must_use]
    pub fn key_groups(mut self, groups: u16) -> Self {
        self.config.key_groups = groups;
        self
    }

    /// Sets the key groups that this store owns. Default: all.
    #[must_use]
    pub fn owned_groups(mut self, owned: Range<u16>) -> Self {
        self.owned = Some(owned);
        self
    }

    /// Sets the most heap that a value, or an element of a list, may own together with its key. The
    /// store keeps this much of the budget free for values to grow into. Takes bytes, or text such
    /// as `"64KiB"`.
    ///
    /// A call with a larger value fails with [`ErrorKind::ValueTooLarge`]. A value that a closure
    /// makes larger is counted in the [statistics](crate::stats::TableStats::oversized), and refuses
    /// changes until it is taken, replaced or removed. At most 31 MiB, the limit of the format.
    /// Default: a sixteenth of the memory, between 4 KiB and 1 MiB.
    #[must_use]
    pub fn max_value(mut self, bytes: impl IntoByteSize) -> Self {
        match bytes.into_byte_size() {
            Ok(bytes) => self.config.max_value = Some(bytes),
            Err(error) => self = self.refused("max_value", error),
        }
        self
    }

    /// Sets the layout of states that name none. Default: [`AnyLayout::Auto`], which chooses by the
    /// kind of state.
    #[must_use]
    pub fn layout(mut self, layout: impl Into<AnyLayout>) -> Self {
        self.config.layout = layout.into();
        self
    }

    /// Sets where background work runs. Default: [`Helpers::Thread`].
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

    /// Sets how files are read and written. Default: those of [`IoOptions`].
    #[must_use]
    pub fn io(mut self, io: IoOptions) -> Self {
        self.config.io = io;
        self
    }

    /// Keeps files on `device` instead of in a directory: for tests and for storage of your own.
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Sets the clock of states that expire in [processing time](crate::Ttl::processing_time).
    /// Default: [`WallClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how many checkpoints stay restorable; see [`StoreConfig::retain`].
    #[must_use]
    pub fn retain(mut self, checkpoints: usize) -> Self {
        self.config.retain = checkpoints;
        self
    }

    /// Sets how long a call waits for a hung device; see [`StoreConfig::patience_ms`].
    #[must_use]
    pub fn patience(mut self, most: Duration) -> Self {
        self.config.patience_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Sets how far the time of an expiring state may move at once; see
    /// [`StoreConfig::time_jump_max_ms`].
    #[must_use]
    pub fn time_jump(mut self, most: Duration) -> Self {
        self.config.time_jump_max_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the most bytes on storage per byte of live state; see
    /// [`StoreConfig::space_amplification`].
    #[must_use]
    pub fn space_amplification(mut self, most: f64) -> Self {
        self.config.space_amplification = most;
        self
    }

    /// Records the calls on states; see [`TraceOptions`]. Default: no.
    #[must_use]
    pub fn trace(mut self, options: TraceOptions) -> Self {
        self.config.trace = Some(options);
        self
    }

    /// Restores the checkpoint with this number instead of the last. Take one that is retained
    /// ([`Store::checkpoints`]), or one that was completely [sealed](Store::seal) but not confirmed
    /// before a crash.
    ///
    /// This chooses a branch: later opens without a number continue from this checkpoint, also
    /// after a crash. To return to a later checkpoint, restore it by its number. Every complete
    /// checkpoint stays until this branch confirms its next one; that removes the later checkpoints
    /// of the other branch.
    ///
    /// If the manifest is damaged, a checkpoint can be restored if all its files exist. Nothing is
    /// removed until the store is opened again. The error of an open without a number names these
    /// checkpoints.
    #[must_use]
    pub fn restore(mut self, checkpoint: u64) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Creates a store from checkpoints of other stores. Each state that you open takes their
    /// records of the [key groups owned](StoreBuilder::owned_groups). So any number of stores can
    /// become any other number, also in other layouts. The store only reads the other directories.
    /// Several new stores may read one at the same time, but no store may have it open. To continue
    /// in a directory, open it instead.
    ///
    /// The store's own directory must have no checkpoint. Opening a state restores it: the store
    /// reads its part of the sources, and writes here what does not fit into memory. It releases
    /// the sources after the last state. It takes no checkpoint until every state of the sources is
    /// open or [left out](Store::leave_out). A [`Value`](crate::Value) belongs to the store that
    /// owns the key group of `()`.
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

    /// Opens the store: takes the directory's lock, reads the last checkpoint (the last that was
    /// confirmed, or [restored](StoreBuilder::restore) by its number since) and removes leftovers
    /// of a crash. Opening a state restores it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for impossible options. [`ErrorKind::Locked`] if the directory is in
    /// use. [`ErrorKind::Corrupt`] and [`ErrorKind::FormatVersion`] for a manifest or checkpoint
    /// that cannot be read; the message names the other checkpoints there. [`ErrorKind::Missing`]
    /// if the requested checkpoint does not exist. [`ErrorKind::Mismatch`] if the directory has
    /// other key groups.
    ///
    /// With [`restore_from`](StoreBuilder::restore_from) the same errors for each source, naming
    /// it. Also [`ErrorKind::Mismatch`] if no source or two have a key group, if sources differ in
    /// their number of key groups or in the types of a state, and if the directory has a
    /// checkpoint.
    pub fn open(self) -> Result<Store> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let config = self.config;
        let bad = |message: String| Err(Error::new(ErrorKind::Config, message));
        if config.memory.0 < MEMORY_BYTES_MIN {
            let given = config.memory;
            return bad(format!(
                "memory is {given}; a store needs at least {MEMORY_BYTES_MIN} bytes"
            ));
        }
        if config.key_groups == 0 || config.key_groups > 1 << 15 {
            return bad(format!("key_groups is {}; it must be 1 to 32768", config.key_groups));
        }
        let owned = self.owned.unwrap_or(0..config.key_groups);
        if owned.is_empty() || owned.end > config.key_groups {
            return bad(format!(
                "owned_groups {owned:?} is empty or exceeds the {} key groups",
                config.key_groups
            ));
        }
        if config.retain == 0 {
            return bad("retain is 0; it must be at least 1".into());
        }
        SpacePolicy::with_limit(config.space_amplification)?;
        if config.time_jump_max_ms == 0 {
            return bad("time_jump_max_ms is 0; it must be at least 1".into());
        }
        if config.max_value_bytes() >= config.memory.0 {
            let (value, memory) = (config.max_value_bytes(), config.memory);
            return bad(format!(
                "max_value is {value} bytes and does not fit into the memory of {memory}"
            ));
        }
        if config.max_value_bytes() > RECORD_BYTES_MAX {
            let value = config.max_value_bytes();
            return bad(format!(
                "max_value is {value} bytes; the file format takes {RECORD_BYTES_MAX} at most"
            ));
        }
        config.trace.as_ref().map_or(Ok(()), TraceOptions::check)?;
        let device = match (self.device, &config.directory) {
            (Some(device), _) => Some(device),
            (None, Some(directory)) => Some(open_directory(directory, &config.io)?),
            (None, None) => None,
        };
        if self.sources.is_some() && (self.restore.is_some() || device.is_none()) {
            return bad("restore_from needs a new directory, and no restore beside it".into());
        }
        Store::open(config, device, self.helper, owned, self.restore, self.sources, self.clock)
    }
}

fn open_directory(directory: &Path, io: &IoOptions) -> Result<Arc<dyn Device>> {
    open_device(directory, io)
}
