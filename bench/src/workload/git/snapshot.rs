//! The files of one commit: what a replay of the history must leave.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use xz2::read::XzDecoder;

use super::Change;
use crate::{Error, Result};

/// Values by path, in order of the paths' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeMap<String, String>);

impl Snapshot {
    /// Makes `change`.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Put { path, value } => {
                self.0.insert(path, value);
            }
            Change::Delete { path } => {
                self.0.remove(&path);
            }
        }
    }

    /// How this, as found, first differs from what is `expected`, in words; `None` if it does not.
    pub fn difference(&self, expected: &Snapshot) -> Option<String> {
        if self == expected {
            return None;
        }
        let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), String::clone);
        let paths = expected.0.keys().chain(self.0.keys());
        let first = paths.filter(|path| self.0.get(*path) != expected.0.get(*path)).min()?;
        let (found, wanted) = (shown(self.0.get(first)), shown(expected.0.get(first)));
        let (have, want) = (self.0.len(), expected.0.len());
        Some(format!("{first:?} is {found}, expected {wanted} ({have} paths, expected {want})"))
    }

    /// Writes `path<TAB>value` lines in order.
    pub fn write_tsv(&self, path: &Path) -> Result<()> {
        let write = || {
            let mut file = BufWriter::new(File::create(path)?);
            for (key, value) in &self.0 {
                writeln!(file, "{key}\t{value}")?;
            }
            file.flush()
        };
        write().map_err(|source| Error::io(path, "write", source))
    }
}

/// Reads `path<TAB>value` lines, as [`Snapshot::write_tsv`] writes them; from a file whose name
/// ends in `.xz`, compressed.
///
/// # Errors
/// Names file and line of what has no tab.
pub fn read_snapshot(path: &Path) -> Result<Snapshot> {
    let read = || {
        let mut file = File::open(path)?;
        let mut text = String::new();
        match path.extension().is_some_and(|extension| extension == "xz") {
            true => XzDecoder::new_multi_decoder(file).read_to_string(&mut text)?,
            false => file.read_to_string(&mut text)?,
        };
        Ok(text)
    };
    let text = read().map_err(|source| Error::io(path, "read", source))?;
    let mut snapshot = Snapshot::default();
    for (index, line) in text.split_terminator('\n').enumerate() {
        let Some((key, value)) = line.rsplit_once('\t') else {
            return Err(Error::in_column(
                path,
                index as u64 + 1,
                None,
                "no tab between path and value",
            ));
        };
        snapshot.0.insert(key.to_owned(), value.to_owned());
    }
    Ok(snapshot)
}
