//! Choosing an engine.

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

use super::threads::{DEFAULT_THREADS, ThreadPool, ThreadPoolOptions};
use super::{DEFAULT_QUEUE_DEPTH, Device, DirectIo, descriptors};
use crate::Result;

/// I/O engine of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// io_uring if the kernel allows it, else helper threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Helper threads.
    Threads,
}

/// Options of a directory's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoOptions {
    /// I/O engine. Default: [`EngineChoice::Auto`].
    pub engine: EngineChoice,
    /// Whether to bypass the page cache. Default: [`DirectIo::Auto`].
    pub direct: DirectIo,
    /// Number of helper threads, if the engine uses threads. Default: [`DEFAULT_THREADS`].
    pub threads: usize,
    /// Requests in the kernel at a time, if the engine is io_uring. Default:
    /// [`DEFAULT_QUEUE_DEPTH`].
    pub queue_depth: usize,
    /// Most open files of all stores of the process. The I/O engine closes others and reopens them
    /// on use. Files with unsynced writes or pending requests stay open beyond it. The directory
    /// that is opened last sets the value for all. More files save reopening; fewer leave
    /// descriptors to others. Default (`None`): a quarter of the process's limit, from 16 to
    /// 16,384.
    pub open_files_max: Option<usize>,
}

impl Default for IoOptions {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            threads: DEFAULT_THREADS,
            queue_depth: DEFAULT_QUEUE_DEPTH,
            open_files_max: None,
        }
    }
}

/// Opens `directory` with the engine of the options; creates it if it is missing.
/// [`Device::fallback_reason`] tells why it uses a lesser engine or buffered files.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for an `open_files_max` of 0. Those of
/// [`ThreadPool::new`] and of `Uring::new`. With [`EngineChoice::Auto`] a kernel that refuses
/// io_uring is no error.
pub fn open_device(directory: &Path, options: &IoOptions) -> Result<Arc<dyn Device>> {
    descriptors::checked(options.open_files_max)?;
    let threads = || {
        let IoOptions { threads, direct, .. } = *options;
        ThreadPool::new(directory, ThreadPoolOptions { threads, direct })
    };
    match options.engine {
        EngineChoice::Threads => Ok(Arc::new(threads()?)),
        EngineChoice::Uring => open_uring(directory, options),
        EngineChoice::Auto => match open_uring(directory, options) {
            // Only the ring is replaced: a directory that cannot be used is an error either way.
            Err(e) if e.kind() == crate::ErrorKind::Unsupported => {
                Ok(Arc::new(threads()?.instead_of(e.to_string())))
            }
            opened => opened,
        },
    }
}

#[cfg(target_os = "linux")]
fn open_uring(directory: &Path, options: &IoOptions) -> Result<Arc<dyn Device>> {
    let IoOptions { queue_depth, direct, .. } = *options;
    Ok(Arc::new(super::Uring::new(directory, super::UringOptions { queue_depth, direct })?))
}

#[cfg(not(target_os = "linux"))]
fn open_uring(_: &Path, _: &IoOptions) -> Result<Arc<dyn Device>> {
    Err(crate::Error::new(crate::ErrorKind::Unsupported, "io_uring is Linux only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_from_text_and_refuse_misspelt_names() {
        let options: IoOptions =
            serde_json::from_str(r#"{"engine":"threads","direct":"off"}"#).unwrap();
        assert_eq!((options.engine, options.direct), (EngineChoice::Threads, DirectIo::Off));
        assert_eq!(options.threads, DEFAULT_THREADS);
        assert!(serde_json::from_str::<IoOptions>(r#"{"thread":1}"#).is_err());
    }

    #[test]
    fn the_engine_asked_for_is_used() {
        let place = tempfile::tempdir().unwrap();
        let options = IoOptions { engine: EngineChoice::Threads, ..IoOptions::default() };
        let device = open_device(place.path(), &options).unwrap();
        assert_eq!(device.engine(), "threads");
        let none = IoOptions { threads: 0, ..options };
        assert_eq!(open_device(place.path(), &none).unwrap_err().kind(), crate::ErrorKind::Config);
    }
}
