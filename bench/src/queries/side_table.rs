//! Side inputs: bounded tables of a key and a value, which do not change while a query runs.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Where the rows of a side input come from.
#[derive(Clone, Debug)]
pub enum SideTable {
    /// Keys 0 to 9999, each with itself as its value.
    Generated,
    /// A CSV file with the columns `key` and `value`, both integers, in any order.
    File(PathBuf),
    /// These.
    Rows(Vec<(u64, i64)>),
}

/// Keys of the generated side input.
pub(super) const GENERATED_KEYS: u64 = 10_000;

impl SideTable {
    /// Gives each row to `row`; keeps none.
    ///
    /// # Errors
    /// Names file, line and column of what is not a row; the first error of `row`.
    pub fn visit(&self, mut row: impl FnMut(u64, i64) -> Result<()>) -> Result<()> {
        match self {
            SideTable::Generated => {
                (0..GENERATED_KEYS).try_for_each(|key| row(key, key.cast_signed()))
            }
            SideTable::File(path) => visit_file(path, row),
            SideTable::Rows(rows) => rows.iter().try_for_each(|&(key, value)| row(key, value)),
        }
    }
}

fn visit_file(path: &Path, mut row: impl FnMut(u64, i64) -> Result<()>) -> Result<()> {
    let broken = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => Error::io(path, "read", source),
            kind => Error::in_column(path, line, None, format!("not a row of CSV: {kind:?}")),
        }
    };
    let mut rows = csv::Reader::from_path(path).map_err(broken)?;
    let header = rows.headers().map_err(broken)?;
    let place = |name: &'static str| {
        let missing = || Error::in_column(path, 1, Some(name), "the header has no such column");
        header.iter().position(|column| column == name).ok_or_else(missing)
    };
    let (keys, values) = (place("key")?, place("value")?);
    let mut record = csv::StringRecord::new();
    while rows.read_record(&mut record).map_err(broken)? {
        let line = record.position().map_or(1, csv::Position::line);
        let number = |column, text: &str, error| {
            Error::in_column(path, line, Some(column), format!("{text:?} is no number: {error}"))
        };
        // The reader has made sure that the row is as long as the header.
        let (key, value) = (&record[keys], &record[values]);
        row(
            key.parse().map_err(|error| number("key", key, error))?,
            value.parse().map_err(|error| number("value", value, error))?,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(table: &SideTable) -> Result<Vec<(u64, i64)>> {
        let mut rows = Vec::new();
        table.visit(|key, value| {
            rows.push((key, value));
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn files_are_read_in_any_order_of_columns_and_faults_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("side.csv");
        for (text, expected) in [
            ("key,value\n1,-2\n3,4\n", Ok(vec![(1, -2), (3, 4)])),
            ("note,value,key\nx,5,6\n", Ok(vec![(6, 5)])),
            ("key,value\n", Ok(vec![])),
            ("key,price\n1,2\n", Err("side.csv: line 1, column value: the header")),
            ("key,value\n1,2\n-1,2\n", Err("side.csv: line 3, column key: \"-1\"")),
            ("key,value\n1,2.5\n", Err("side.csv: line 2, column value: \"2.5\"")),
            ("key,value\n1\n", Err("side.csv: line 2: not a row of CSV")),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = rows(&SideTable::File(path.clone())).map_err(|error| error.to_string());
            match expected {
                Ok(expected) => assert_eq!(found, Ok(expected), "{text}"),
                Err(part) => assert!(found.as_ref().unwrap_err().contains(part), "{found:?}"),
            }
        }
        let missing = rows(&SideTable::File(dir.path().join("none.csv"))).unwrap_err();
        assert!(missing.to_string().contains("none.csv"), "{missing}");
    }

    #[test]
    fn the_generated_rows_map_keys_to_themselves() {
        let rows = rows(&SideTable::Generated).unwrap();
        assert_eq!(rows.len(), 10_000);
        assert!(rows.iter().zip(0..).all(|(row, key)| *row == (key, key as i64)));
    }
}
