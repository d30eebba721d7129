//! Files of a result's partitions, such as `date=2015-07-15/time=00:00/part-0.csv`, one a worker.
//!
//! A file ends in `.open` while its partition may still get rows, and gets its name when the
//! watermark has passed the partition. So a file without that ending is whole. At most
//! [`OPEN_MAX`] files are open at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use alluvium::Time;

use crate::queries::{Fields, Partition};
use crate::report::ResultsWriter;
use crate::{Error, Result};

/// Files open at a time. Each has a buffer of 256 KiB.
const OPEN_MAX: usize = 16;

/// Partitions that may still get rows from this worker.
pub(super) struct Partitions {
    root: PathBuf,
    /// Of the file that this worker has in each.
    name: String,
    /// Names of the columns. The last ones name the partition.
    columns: &'static [&'static str],
    /// How many of them name the partition.
    naming: usize,
    live: BTreeMap<Partition, File>,
    bytes: u64,
}

struct File {
    directory: PathBuf,
    /// `None` while too many others are open.
    writer: Option<ResultsWriter>,
}

/// Refuses a directory with files of another run: nobody could tell them from this one's.
///
/// # Errors
/// It has some, or it cannot be read.
pub(super) fn check_empty(root: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(root, "read", error)),
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::Usage(format!(
            "{} is not empty: partitions go to a directory of their own",
            root.display()
        ))),
    }
}

impl Partitions {
    pub(super) fn new(
        root: &Path,
        worker: usize,
        columns: &'static [&'static str],
        naming: usize,
    ) -> Self {
        let (name, live) = (format!("part-{worker}.csv"), BTreeMap::new());
        Partitions { root: root.to_owned(), name, columns, naming, live, bytes: 0 }
    }

    /// Bytes of the finished files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a row without the columns that name its partition.
    ///
    /// # Panics
    /// If the row is taken back: files are only appended to.
    pub(super) fn add(&mut self, partition: Partition, row: &Fields, times: i64) -> Result<()> {
        assert!(times > 0, "a row of a partition is taken back {times} times");
        let own = self.columns.len() - self.naming;
        let writer = self.writer(partition, row)?;
        (0..times).try_for_each(|_| writer.row(row[..own].iter().map(Option::as_deref)))
    }

    /// Finishes the partitions that end before or at a time: no row of theirs is still to come.
    pub(super) fn finish_before(&mut self, watermark: Time) -> Result<()> {
        while let Some(first) = self.live.first_entry() {
            if first.key().end > watermark.0 {
                break;
            }
            let File { directory, writer } = first.remove();
            writer.map_or(Ok(()), ResultsWriter::finish)?;
            let (from, to) = (self.open_path(&directory), directory.join(&self.name));
            let failed = |source| Error::io(&from, "rename", source);
            self.bytes += fs::metadata(&from).map_err(failed)?.len();
            fs::rename(&from, to).map_err(failed)?;
        }
        Ok(())
    }

    fn open_path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.open", self.name))
    }

    fn writer(&mut self, partition: Partition, row: &Fields) -> Result<&mut ResultsWriter> {
        let own = self.columns.len() - self.naming;
        if self.live.get(&partition).is_none_or(|file| file.writer.is_none()) {
            self.close_others()?;
            let known = self.live.remove(&partition);
            let directory = known.map(|file| file.directory);
            let is_new = directory.is_none();
            let directory = directory.unwrap_or_else(|| self.directory_of(row));
            let path = self.open_path(&directory);
            let writer = if is_new {
                let failed = |source| Error::io(&directory, "make", source);
                fs::create_dir_all(&directory).map_err(failed)?;
                ResultsWriter::create(&path, &self.columns[..own])?
            } else {
                ResultsWriter::append(&path, own)?
            };
            self.live.insert(partition, File { directory, writer: Some(writer) });
        }
        let file = self.live.get_mut(&partition).and_then(|file| file.writer.as_mut());
        Ok(file.expect("it was opened"))
    }

    /// Closes files until a further one may be opened.
    fn close_others(&mut self) -> Result<()> {
        let open = self.live.values().filter(|file| file.writer.is_some()).count();
        let too_many = (open + 1).saturating_sub(OPEN_MAX);
        let mut writers = self.live.values_mut().filter_map(|file| file.writer.take());
        (&mut writers).take(too_many).try_for_each(ResultsWriter::finish)
    }

    /// `name=value` of the columns that name the partition of a row.
    fn directory_of(&self, row: &Fields) -> PathBuf {
        let own = self.columns.len() - self.naming;
        let parts = self.columns[own..].iter().zip(&row[own..]);
        let parts = parts.map(|(name, value)| format!("{name}={}", value.as_deref().unwrap_or("")));
        self.root.join(parts.collect::<PathBuf>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: i64, minute: i64) -> (Partition, Fields) {
        let partition = Partition { start: minute * 60, end: (minute + 1) * 60 };
        (partition, vec![Some(value.to_string()), Some(minute.to_string())])
    }

    /// Rows without their header, in the order of the file.
    fn rows(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_partition_is_whole_once_the_watermark_has_passed_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut partitions = Partitions::new(dir.path(), 3, &["value", "minute"], 1);
        for (value, minute) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
            let (partition, row) = row(value, minute);
            partitions.add(partition, &row, 1).unwrap();
        }
        let done = |minute: i64| dir.path().join(format!("minute={minute}/part-3.csv"));
        partitions.finish_before(Time(59)).unwrap();
        assert!(!done(0).exists());
        partitions.finish_before(Time(60)).unwrap();
        assert_eq!((rows(&done(0)), done(1).exists()), (vec!["1".into(), "3".into()], false));
        partitions.finish_before(Time::MAX).unwrap();
        assert_eq!(rows(&done(1)), ["2", "4"]);
        // A header and two rows each.
        assert_eq!(partitions.bytes(), 2 * ("value\r\n".len() + "1\r\n2\r\n".len()) as u64);
    }

    /// With more partitions than may be open, a file that was closed goes on where it ended.
    #[test]
    fn more_partitions_than_files_may_be_open_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut partitions = Partitions::new(dir.path(), 0, &["value", "minute"], 1);
        let minutes = 3 * OPEN_MAX as i64;
        for value in 0..4 {
            for minute in 0..minutes {
                let (partition, row) = row(value, minute);
                partitions.add(partition, &row, 1 + value % 2).unwrap();
                let open = partitions.live.values().filter(|file| file.writer.is_some());
                assert!(open.count() <= OPEN_MAX);
            }
        }
        partitions.finish_before(Time::MAX).unwrap();
        for minute in 0..minutes {
            let path = dir.path().join(format!("minute={minute}/part-0.csv"));
            assert_eq!(rows(&path), ["0", "1", "1", "2", "3", "3"], "{minute}");
        }
    }

    #[test]
    fn a_directory_with_files_of_another_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        check_empty(&dir.path().join("none")).unwrap();
        check_empty(dir.path()).unwrap();
        fs::write(dir.path().join("x"), "").unwrap();
        let message = check_empty(dir.path()).unwrap_err().to_string();
        assert!(message.contains("is not empty"), "{message}");
    }
}
