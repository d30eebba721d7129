//! Where lines go.

use std::collections::BTreeMap;
use std::io::{ErrorKind as IoKind, Write};

use alluvium_pagestore::{Error, Result};

use crate::archive::{ArchiveValue, Undecodable};
use crate::verify::Damage;

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Lines written.
    pub lines: u64,
    /// States with records written as bytes, with the number of these records and the reason for
    /// the first.
    pub undecoded: BTreeMap<String, (u64, String)>,
    /// States of which nothing was written, or not all, and the reason.
    pub skipped: BTreeMap<String, String>,
    /// Whether the export ended early, at the limit or because the reader closed its end.
    pub cut: bool,
    /// Number of the exported checkpoint.
    pub checkpoint: u64,
    /// Damage that was skipped while salvaging.
    pub damage: Vec<Damage>,
}

/// Writes lines up to a limit.
pub struct LimitedWriter<'o> {
    out: &'o mut dyn Write,
    limit: u64,
    done: ExportSummary,
}

impl<'o> LimitedWriter<'o> {
    pub fn new(out: &'o mut dyn Write, limit: Option<u64>) -> Self {
        Self { out, limit: limit.unwrap_or(u64::MAX), done: ExportSummary::default() }
    }

    /// Whether no more lines are wanted.
    pub fn is_full(&self) -> bool {
        self.done.cut
    }

    /// Writes a line of these fields after the state's name, and says whether that was enough.
    pub fn line(&mut self, state: &str, fields: Vec<(&str, ArchiveValue)>) -> Result<bool> {
        if self.done.lines >= self.limit {
            self.done.cut = true;
            return Ok(true);
        }
        let mut all = vec![("state".to_owned(), ArchiveValue::Text(state.into()))];
        all.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let line = ArchiveValue::Fields(all).to_json();
        match writeln!(self.out, "{line}") {
            Ok(()) => {
                self.done.lines += 1;
                Ok(false)
            }
            // As with `| head`.
            Err(error) if error.kind() == IoKind::BrokenPipe => {
                self.done.cut = true;
                Ok(true)
            }
            Err(error) => Err(Error::io("write", "the output", error)),
        }
    }

    /// Writes a record that is not decoded, as its bytes with its type.
    pub fn undecoded(
        &mut self,
        state: &str,
        type_text: String,
        payload: &[u8],
        why: Undecodable,
    ) -> Result<bool> {
        let record = ArchiveValue::Bytes { type_text, bytes: payload.to_vec() };
        let enough = self.line(state, vec![("record", record)])?;
        if !enough {
            let count = self.done.undecoded.entry(state.into()).or_insert((0, why.0));
            count.0 += 1;
        }
        Ok(enough)
    }

    /// Notes that a state cannot be exported, or not all of it.
    pub fn skip(&mut self, state: &str, why: &str) {
        self.done.skipped.insert(state.into(), why.into());
    }

    pub fn finish(self) -> Result<ExportSummary> {
        match self.out.flush() {
            Err(error) if error.kind() != IoKind::BrokenPipe => {
                Err(Error::io("write", "the output", error))
            }
            _ => Ok(self.done),
        }
    }
}
