//! All changes of the result so far, in a file, so that a run which goes on from a checkpoint has
//! those of the runs before it.
//!
//! A checkpoint says how long the file is; what a killed run wrote after it is cut off. One JSON line
//! per change.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::output::Line;
use crate::{Error, Result};

pub(super) struct Ledger {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

impl Ledger {
    /// The file in the directory of a run's state. Its first `bytes` are told to `each`, and the
    /// rest is cut off.
    pub(super) fn open(
        directory: &Path,
        bytes: u64,
        each: &mut dyn FnMut(&Line) -> Result<()>,
    ) -> Result<Self> {
        let path = directory.join("changes.jsonl");
        let failed = |source| Error::io(&path, "open", source);
        std::fs::create_dir_all(directory).map_err(failed)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found < bytes {
            let message = format!("has {found} bytes, of which the checkpoint needs {bytes}");
            return Err(Error::in_column(&path, 0, None, message));
        }
        for (line, text) in (1..).zip(BufReader::new((&file).take(bytes)).lines()) {
            let change = serde_json::from_str(&text.map_err(failed)?);
            let wrong =
                |error: serde_json::Error| Error::in_column(&path, line, None, error.to_string());
            each(&change.map_err(wrong)?)?;
        }
        file.set_len(bytes).map_err(failed)?;
        file.seek(SeekFrom::Start(bytes)).map_err(failed)?;
        Ok(Self { file: BufWriter::with_capacity(1 << 18, file), path, bytes })
    }

    pub(super) fn add(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line).expect("texts and numbers can be written");
        text.push(b'\n');
        self.bytes += text.len() as u64;
        self.file.write_all(&text).map_err(|source| Error::io(&self.path, "write", source))
    }

    /// Makes durable what was added, and gives the length of the file.
    pub(super) fn sync(&mut self) -> Result<u64> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        synced.map_err(|source| Error::io(&self.path, "write", source))?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_the_length_of_a_checkpoint_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let line = |n: i64| (vec![Some(n.to_string()), None], n, 1);
        let open = |bytes, expected: &[i64]| {
            let mut told = Vec::new();
            let ledger = Ledger::open(dir.path(), bytes, &mut |line| {
                told.push(line.clone());
                Ok(())
            });
            assert_eq!(told, expected.iter().copied().map(line).collect::<Vec<_>>());
            ledger.unwrap()
        };
        let mut ledger = open(0, &[]);
        (1..4).for_each(|n| ledger.add(&line(n)).unwrap());
        let bytes = ledger.sync().unwrap();
        (4..9).for_each(|n| ledger.add(&line(n)).unwrap());
        drop(ledger);
        let mut ledger = open(bytes, &[1, 2, 3]);
        ledger.add(&line(7)).unwrap();
        let longer = ledger.sync().unwrap();
        drop(ledger);
        drop(open(longer, &[1, 2, 3, 7]));
        drop(open(0, &[]));
        let error = Ledger::open(dir.path(), 1, &mut |_| Ok(())).map(drop).unwrap_err();
        assert!(error.to_string().contains("has 0 bytes"), "{error}");
    }
}
