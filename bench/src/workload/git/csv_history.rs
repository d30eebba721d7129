//! A history from a CSV file, as `make_git_events.py` writes them.
//!
//! Columns `seq,commit,ts,author,op,path,value`; `op` is A, M or T for a put and D for a delete.
//! Rows of a commit stand together. A file whose name ends in `.xz` is decompressed on the way.

use std::io::Read;
use std::path::{Path, PathBuf};

use csv::StringRecord;

use super::{Batch, Change};
use crate::input::compressed;
use crate::{Error, Result};

const COLUMNS: [&str; 7] = ["seq", "commit", "ts", "author", "op", "path", "value"];

/// Batches of a history file; after an error there are no more.
pub struct CsvHistory {
    path: PathBuf,
    rows: csv::Reader<Box<dyn Read + Send>>,
    row: StringRecord,
    /// Events still wanted.
    wanted: u64,
    /// The first change of the batch that comes next, read to see where the last one ends.
    next: Option<(u64, i64, Change)>,
    seq: u64,
    failed: bool,
}

impl CsvHistory {
    /// Opens the file and checks its header. The first `upto` events are given, even where that
    /// ends within a commit; all if it is `None`.
    pub fn open(path: &Path, upto: Option<u64>) -> Result<Self> {
        let input = compressed::open(path)?;
        let mut history = CsvHistory {
            path: path.to_owned(),
            rows: csv::Reader::from_reader(input),
            row: StringRecord::new(),
            wanted: upto.unwrap_or(u64::MAX),
            next: None,
            seq: 0,
            failed: false,
        };
        match history.rows.headers() {
            Ok(header) if *header == COLUMNS[..] => {}
            Ok(_) => {
                let message = format!("the header is not {}", COLUMNS.join(","));
                return Err(Error::in_column(path, 1, None, message));
            }
            Err(error) => return Err(history.broken_row(error)),
        }
        history.next = history.read_change()?;
        Ok(history)
    }

    fn read_batch(&mut self) -> Result<Option<Batch>> {
        let Some((commit, committed_s, first)) = self.next.take() else { return Ok(None) };
        let mut changes = vec![first];
        self.next = loop {
            match self.read_change()? {
                Some((next, _, change)) if next == commit => changes.push(change),
                other => break other,
            }
        };
        Ok(Some(Batch { commit, committed_s, changes }))
    }

    fn read_change(&mut self) -> Result<Option<(u64, i64, Change)>> {
        if self.wanted == 0 {
            return Ok(None);
        }
        match self.rows.read_record(&mut self.row) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.broken_row(error)),
        }
        let seq: u64 = self.number(0)?;
        if seq != self.seq {
            return Err(self.fault(Some(0), format!("{seq} where {} is due", self.seq)));
        }
        self.seq += 1;
        self.wanted -= 1;
        let (path, value) = (self.row[5].to_owned(), self.row[6].to_owned());
        let change = match &self.row[4] {
            "A" | "M" | "T" if value.is_empty() => {
                return Err(self.fault(Some(6), "a put without a value".to_owned()));
            }
            "A" | "M" | "T" => Change::Put { path, value },
            "D" => Change::Delete { path },
            other => return Err(self.fault(Some(4), format!("{other:?} is none of A, M, T, D"))),
        };
        Ok(Some((self.number(1)?, self.number(2)?, change)))
    }

    fn number<N: std::str::FromStr>(&self, column: usize) -> Result<N> {
        let text = &self.row[column];
        text.parse().map_err(|_| self.fault(Some(column), format!("{text:?} is not a number")))
    }

    fn fault(&self, column: Option<usize>, message: String) -> Error {
        let line = self.row.position().map_or(0, csv::Position::line);
        Error::in_column(&self.path, line, column.map(|column| COLUMNS[column]), message)
    }

    fn broken_row(&self, error: csv::Error) -> Error {
        let line = error.position().map_or(1, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => Error::io(&self.path, "read", source),
            csv::ErrorKind::UnequalLengths { len, .. } => {
                let message = format!("{len} fields, the header has {}", COLUMNS.len());
                Error::in_column(&self.path, line, None, message)
            }
            kind => Error::in_column(&self.path, line, None, format!("malformed row: {kind:?}")),
        }
    }
}

impl Iterator for CsvHistory {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.failed {
            return None;
        }
        let batch = self.read_batch();
        self.failed = batch.is_err();
        batch.transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::super::{Snapshot, read_snapshot};
    use super::*;
    use crate::input::shared_dir;

    const HEADER: &str = "seq,commit,ts,author,op,path,value\n";

    fn read(rows: &str, upto: Option<u64>) -> Result<Vec<Batch>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.csv");
        fs::write(&path, format!("{HEADER}{rows}")).unwrap();
        CsvHistory::open(&path, upto)?.collect()
    }

    #[test]
    fn rows_of_a_commit_are_a_batch() {
        let rows = "0,0,9,0,A,a,11\n1,0,9,0,A,\"b,c\",22\n2,1,8,0,D,a,\n3,2,8,0,T,b,33\n";
        let batches = read(rows, None).unwrap();
        let sizes: Vec<_> =
            batches.iter().map(|batch| (batch.commit, batch.changes.len())).collect();
        assert_eq!(sizes, [(0, 2), (1, 1), (2, 1)]);
        assert_eq!(batches[0].changes[1].to_string(), "put b,c 22");
        assert_eq!(batches[1].changes[0], Change::Delete { path: "a".into() });
        let cut = read(rows, Some(1)).unwrap();
        assert_eq!((cut.len(), cut[0].changes.len()), (1, 1));
        assert!(read(rows, Some(0)).unwrap().is_empty());
    }

    #[test]
    fn a_malformed_row_is_named_by_file_line_and_column() {
        for (rows, expected) in [
            ("0,0,9,0,A,a,11\n1,0,9,0,X,b,22\n", "line 3, column op: \"X\""),
            ("0,0,9,0,A,a,\n", "line 2, column value: a put without"),
            ("0,x,9,0,A,a,11\n", "line 2, column commit"),
            ("1,0,9,0,A,a,11\n", "line 2, column seq: 1 where 0 is due"),
            ("0,0,9,0,A,a\n", "line 2: 6 fields"),
        ] {
            let message = read(rows, None).unwrap_err().to_string();
            assert!(message.contains("h.csv") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_truncated_archive_is_an_error_not_a_short_history() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.csv.xz");
        let rows: String = (0..20_000).map(|k| format!("{k},{k},9,0,A,p{k},{k}\n")).collect();
        let mut packed = Vec::new();
        let text = format!("{HEADER}{rows}");
        xz2::read::XzEncoder::new(text.as_bytes(), 1).read_to_end(&mut packed).unwrap();
        fs::write(&path, &packed).unwrap();
        assert_eq!(CsvHistory::open(&path, None).unwrap().count(), 20_000);
        fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let read =
            CsvHistory::open(&path, None).and_then(|history| history.collect::<Result<Vec<_>>>());
        assert!(read.unwrap_err().to_string().contains("h.csv.xz"));
    }

    #[test]
    fn the_shared_histories_end_in_their_snapshots() {
        let Some(shared) = shared_dir("the_shared_histories_end_in_their_snapshots") else {
            return;
        };
        let dir = shared.join("data/git-changes");
        for (name, upto, percent) in [("kafka", 49_288, 50), ("risingwave", 140_709, 100)] {
            let mut state = Snapshot(BTreeMap::new());
            let history = CsvHistory::open(&dir.join(format!("{name}.csv.xz")), Some(upto));
            for batch in history.unwrap() {
                batch.unwrap().changes.into_iter().for_each(|change| state.apply(change));
            }
            let expected =
                read_snapshot(&dir.join(format!("{name}-snap-{percent}.tsv.xz"))).unwrap();
            assert_eq!(state.difference(&expected), None, "{name}");
        }
    }
}
