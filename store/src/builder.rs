//! Opening a store.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use alluvium_pagestore::io::{Device, IoOptions, open_device};
use alluvium_pagestore::{Error, ErrorKind, Result};

use crate::any_layout::AnyLayout;
use crate::config::{Helpers, StoreConfig};
use crate::store::Store;
use alluvium_pagestore::{ByteSize, KIB};

/// Collects options and opens a [`Store`]; start with [`Store::builder`].
#[derive(Debug)]
pub struct StoreBuilder {
    config: StoreConfig,
    device: Option<Arc<dyn Device>>,
    owned: Option<Range<u16>>,
    restore: Option<u64>,
}

/// The least [`StoreBuilder::memory`] that opens a store; each state needs more, by layout.
pub const MEMORY_BYTES_MIN: u64 = 16 * KIB;

impl StoreBuilder {
    pub(crate) fn new(config: StoreConfig) -> Self {
        Self { config, device: None, owned: None, restore: None }
    }

    /// Memory the store may hold: indexes, pages, buffers and the heap of values together. More
    /// memory means fewer reads from storage. Default:
    /// [`DEFAULT_MEMORY_BYTES`](crate::DEFAULT_MEMORY_BYTES).
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.config.memory = ByteSize(bytes);
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

    /// The most heap a single value may own; so much of the budget is kept free for values to
    /// grow into. Default: a sixteenth of the memory, between 4 KiB and 1 MiB.
    #[must_use]
    pub fn max_value(mut self, bytes: u64) -> Self {
        self.config.max_value = Some(ByteSize(bytes));
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

    /// How many checkpoints are kept that can be restored. Each keeps the files it names, also those
    /// that nothing else needs any more. Default: 1.
    #[must_use]
    pub fn retain(mut self, checkpoints: usize) -> Self {
        self.config.retain = checkpoints;
        self
    }

    /// Restores the checkpoint of this number instead of the newest: one of those retained
    /// ([`Store::checkpoints`]), or one that was [sealed](Store::seal) in full but not confirmed
    /// before a crash. Later ones stay until the next checkpoint replaces them.
    #[must_use]
    pub fn restore(mut self, checkpoint: u64) -> Self {
        self.restore = Some(checkpoint);
        self
    }

    /// Opens the store: takes the directory's lock, reads the last checkpoint and removes what a
    /// crash left over. States are restored when they are opened.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for options that cannot work, [`ErrorKind::Locked`] if the directory
    /// is in use, [`ErrorKind::Corrupt`] and [`ErrorKind::FormatVersion`] for a manifest or
    /// checkpoint that cannot be read (the message names the checkpoints that are there beside it),
    /// [`ErrorKind::Missing`] if the checkpoint asked for is not there, [`ErrorKind::Mismatch`] for
    /// other key groups than the directory's.
    pub fn open(self) -> Result<Store> {
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
        if config.max_value_bytes() >= config.memory.0 {
            let (value, memory) = (config.max_value_bytes(), config.memory);
            return bad(format!(
                "max_value is {value} bytes, which a memory of {memory} cannot hold"
            ));
        }
        let device = match (self.device, &config.directory) {
            (Some(device), _) => Some(device),
            (None, Some(directory)) => Some(open_directory(directory, &config.io)?),
            (None, None) => None,
        };
        Store::open(config, device, owned, self.restore)
    }
}

fn open_directory(directory: &Path, io: &IoOptions) -> Result<Arc<dyn Device>> {
    open_device(directory, io)
}
