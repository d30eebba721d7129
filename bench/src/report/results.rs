//! Results as CSV after RFC 4180, with one refinement: NULL and the empty string differ.
//!
//! NULL is an empty field without quotes, the empty string is `""`. The `csv` crate cannot quote
//! field by field, so fields are quoted here: when they hold a comma, a quote or a line break, or
//! are empty. Lines end in CR LF, as the RFC has it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Writes a header and rows to a file.
#[derive(Debug)]
pub struct ResultsWriter {
    path: PathBuf,
    file: BufWriter<File>,
    columns: usize,
    line: Vec<u8>,
}

impl ResultsWriter {
    /// Creates the file, or replaces it, and writes the header.
    pub fn create(path: &Path, columns: &[&str]) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::io(path, "create", source))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        let (path, line) = (path.to_owned(), Vec::new());
        let mut writer = ResultsWriter { path, file, columns: columns.len(), line };
        writer.row(columns.iter().map(|&name| Some(name)))?;
        Ok(writer)
    }

    /// Goes on with a file of so many columns that another writer has finished.
    pub fn append(path: &Path, columns: usize) -> Result<Self> {
        let file = File::options().append(true).open(path);
        let file = file.map_err(|source| Error::io(path, "open", source))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(ResultsWriter { path: path.to_owned(), file, columns, line: Vec::new() })
    }

    /// Writes a row; `None` is NULL.
    ///
    /// # Panics
    /// If the row has not as many fields as the header.
    pub fn row<T: AsRef<str>>(
        &mut self,
        fields: impl IntoIterator<Item = Option<T>>,
    ) -> Result<()> {
        self.line.clear();
        let mut count = 0;
        for field in fields {
            if count > 0 {
                self.line.push(b',');
            }
            if let Some(text) = field {
                push_field(&mut self.line, text.as_ref());
            }
            count += 1;
        }
        assert_eq!(count, self.columns, "fields in a row of {}", self.path.display());
        self.line.extend_from_slice(b"\r\n");
        let written = self.file.write_all(&self.line);
        written.map_err(|source| Error::io(&self.path, "write", source))
    }

    /// Writes what is still buffered; without it an error at the end would go unseen.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::io(&self.path, "write", source))
    }
}

fn push_field(line: &mut Vec<u8>, text: &str) {
    if !text.is_empty() && !text.contains([',', '"', '\r', '\n']) {
        return line.extend_from_slice(text.as_bytes());
    }
    line.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_differ_and_quotes_are_doubled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.csv");
        let mut writer = ResultsWriter::create(&path, &["a", "b", "c"]).unwrap();
        writer.row([Some("1"), None, Some("")]).unwrap();
        writer.row([Some("x,y"), Some("say \"hi\""), Some("two\nlines")]).unwrap();
        writer.finish().unwrap();
        let found = std::fs::read_to_string(&path).unwrap();
        let expected = "a,b,c\r\n1,,\"\"\r\n\"x,y\",\"say \"\"hi\"\"\",\"two\nlines\"\r\n";
        assert_eq!(found, expected);
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let rows: Vec<_> = reader.records().map(|row| row.unwrap()).collect();
        assert_eq!(&rows[1][1], "say \"hi\"");
    }

    #[test]
    #[should_panic(expected = "fields in a row")]
    fn a_row_of_another_width_is_a_mistake_of_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ResultsWriter::create(&dir.path().join("r.csv"), &["a"]).unwrap();
        writer.row([Some("1"), Some("2")]).unwrap();
    }
}
