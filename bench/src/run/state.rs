//! The store of a workload that drives state without Timely: where it lives, what it says at the
//! end.

use std::path::{Path, PathBuf};

use alluvium::{AnyLayout, Store, StoreBuilder};
use tempfile::TempDir;

use crate::args::StateArgs;
use crate::report::{Io, Memory, Report, peak_rss_bytes};
use crate::{Error, Result};

/// An open store and the temporary directory it lives in, if it was given none.
pub(crate) struct State {
    pub(crate) store: Store,
    directory: PathBuf,
    /// Released after the store.
    _temporary: Option<TempDir>,
}

impl State {
    /// Opens a store as the options say.
    pub(crate) fn open(args: &StateArgs) -> Result<State> {
        let temporary = match args.dir {
            Some(_) => None,
            None => Some(temporary_dir()?),
        };
        Self::open_in(args, temporary, |builder| builder)
    }

    /// The same beside the directory that the options give.
    pub(crate) fn open_beside(args: &StateArgs) -> Result<State> {
        Self::open_in(args, Some(dir_beside(args)?), |builder| builder)
    }

    /// The same without compaction.
    pub(crate) fn open_uncompacted(args: &StateArgs) -> Result<State> {
        let builder = |builder: StoreBuilder| builder.space_amplification(1e6);
        Self::open_in(args, Some(dir_beside(args)?), builder)
    }

    fn open_in(
        args: &StateArgs,
        temporary: Option<TempDir>,
        configured: impl FnOnce(StoreBuilder) -> StoreBuilder,
    ) -> Result<State> {
        let dir = temporary.as_ref().map(TempDir::path).or(args.dir.as_deref());
        let dir = dir.expect("one of the two is there").to_owned();
        let layout = match args.layout.layout.clone() {
            AnyLayout::HybridLog(log) => AnyLayout::HybridLog(log.cold_runs(args.cold_runs)),
            layout if !args.cold_runs => layout,
            _ => {
                let message = format!("--cold-runs: {} has no runs for them", args.layout.name);
                return Err(Error::Usage(message));
            }
        };
        let builder = Store::builder(&dir).memory(args.memory.0).layout(layout);
        Ok(State { store: configured(builder).open()?, directory: dir, _temporary: temporary })
    }

    /// Where it lives.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Closes the store; the directory stays while what this gives does.
    pub(crate) fn close(self) -> Option<TempDir> {
        self._temporary
    }

    /// Adds the store's own figures to a report.
    pub(crate) fn describe(&self, report: &mut Report) -> Result<()> {
        let stats = self.store.stats()?;
        let total = stats.total();
        report.memory = Memory {
            budget: stats.memory.limit,
            peak_tracked: stats.memory.peak,
            peak_rss: peak_rss_bytes(),
            live_bytes: total.live_bytes,
            live_keys: total.live_keys,
        };
        report.io = Io {
            bytes_written: stats.io.bytes_written,
            bytes_read: stats.io.bytes_read,
            reads: stats.io.reads,
            flushes: total.pages_flushed,
            bytes_prefetched: total.prefetched_bytes,
            bytes_prefetched_in_vain: total.prefetch_wasted_bytes,
            ..Io::default()
        };
        report.codec_calls = total.codec_calls;
        Ok(())
    }
}

/// A directory beside another, as a store's is its own; it goes when it is dropped.
fn temporary_dir_beside(dir: &Path) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("alluvium-bench-")
        .tempdir_in(dir.parent().unwrap_or(dir))
        .map_err(|source| Error::io(dir, "make a directory beside", source))
}

/// A directory beside the one that the options give, or any; it goes when it is dropped.
pub(crate) fn dir_beside(args: &StateArgs) -> Result<TempDir> {
    match &args.dir {
        Some(dir) => temporary_dir_beside(dir),
        None => temporary_dir(),
    }
}

/// A directory that goes when it is dropped.
pub(crate) fn temporary_dir() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("alluvium-bench-")
        .tempdir()
        .map_err(|source| Error::io(&std::env::temp_dir(), "make a directory in", source))
}
