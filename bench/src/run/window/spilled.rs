//! What was written to storage in a round, and how fast the same directory takes as many bytes from
//! a program that does nothing else.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Bytes written at a time: more are not faster.
const WRITE_BYTES: usize = 1 << 20;
/// Direct writes begin where a block of a device may begin.
const ALIGN: usize = 4096;
/// Fewer bytes say nothing about a device.
const BYTES_MIN: u64 = 16 << 20;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spilled {
    pub(super) bytes: u64,
    /// In the time that calls took, and in all the time of the round, that of reading events
    /// included. While events are read, storage goes on.
    pub(super) in_calls: f64,
    pub(super) in_all: f64,
    /// One after the other, and nothing else.
    pub(super) sequential: f64,
}

impl Spilled {
    /// Measures the directory, if `bytes` were enough to compare.
    pub(super) fn of(
        bytes: u64,
        in_calls: Duration,
        in_all: Duration,
        directory: &Path,
    ) -> Result<Option<Self>> {
        if bytes < BYTES_MIN {
            return Ok(None);
        }
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
        let sequential = rate(write_sequentially(directory, bytes)?);
        let (in_calls, in_all) = (rate(in_calls), rate(in_all));
        Ok(Some(Spilled { bytes, in_calls, in_all, sequential }))
    }

    /// A line for people.
    pub(super) fn line(&self) -> String {
        let mb = |rate: f64| rate / 1e6;
        format!(
            "spilled {:.1} MB, {:.1} MB/s of the time in calls, {:.1} MB/s of all the time; the \
             same directory takes {:.1} MB/s one after the other: {:.2} and {:.2} of it",
            self.bytes as f64 / 1e6,
            mb(self.in_calls),
            mb(self.in_all),
            mb(self.sequential),
            self.in_calls / self.sequential,
            self.in_all / self.sequential,
        )
    }
}

/// Writes so many bytes to a file of the directory, past the page cache where that can be, and
/// removes it.
fn write_sequentially(directory: &Path, bytes: u64) -> Result<Duration> {
    let path = directory.join("sequential-write");
    let failed = |source| Error::io(&path, "write", source);
    let start = Instant::now();
    let mut file = open(&path).map_err(failed)?;
    let buffer = vec![0x5a; WRITE_BYTES + ALIGN];
    let skip = buffer.as_ptr().align_offset(ALIGN);
    for _ in 0..bytes.div_ceil(WRITE_BYTES as u64) {
        file.write_all(&buffer[skip..skip + WRITE_BYTES]).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let took = start.elapsed();
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(took)
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
    direct.or_else(|_| options.open(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let second = Duration::from_secs(1);
        let few = Spilled::of(BYTES_MIN - 1, second, second, directory.path()).unwrap();
        assert!(few.is_none());
        let spilled =
            Spilled::of(BYTES_MIN, second, 2 * second, directory.path()).unwrap().unwrap();
        assert_eq!((spilled.in_calls, spilled.in_all), (16.0 * 1048576.0, 8.0 * 1048576.0));
        assert!(spilled.sequential > 0.0 && spilled.line().contains("16.8 MB"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(write_sequentially(Path::new("/nowhere/at/all"), 1).is_err());
    }
}
