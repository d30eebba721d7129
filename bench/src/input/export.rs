//! Writing a stream as the three CSV files that [`CsvStream`](super::CsvStream) reads.

use std::fs::{self, File};
use std::path::Path;

use super::columns::{self, Table};
use crate::nexmark::Record;
use crate::{Error, Result};

/// Writes `records` as `person.csv`, `auction.csv` and `bid.csv` in `dir`, which is made if it is
/// not there. Reading them back gives the same rows; rows of equal milliseconds may change places.
pub fn export(dir: &Path, records: impl IntoIterator<Item = Record>) -> Result<()> {
    fs::create_dir_all(dir).map_err(|source| Error::io(dir, "make directory", source))?;
    let mut files = Vec::new();
    for table in Table::ALL {
        let path = dir.join(table.file_name());
        let file = File::create(&path).map_err(|source| Error::io(&path, "create", source))?;
        let mut writer = csv::Writer::from_writer(file);
        writer.write_record(table.columns()).map_err(|error| failed(&path, error))?;
        files.push((path, writer));
    }
    for record in records {
        let (path, writer) = &mut files[Table::of(&record.event) as usize];
        let row = columns::fields(&record.event);
        writer
            .write_record(row.iter().map(|field| field.as_bytes()))
            .map_err(|error| failed(path, error))?;
    }
    for (path, mut writer) in files {
        writer.flush().map_err(|source| Error::io(&path, "write", source))?;
    }
    Ok(())
}

fn failed(path: &Path, error: csv::Error) -> Error {
    Error::io(path, "write", error.into())
}
