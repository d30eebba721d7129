//! Files of traces, and a trace in memory.
//!
//! In memory an access takes 16 bytes, and each key is kept once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::frames::{is_compressed, is_cut, open};
use super::line::{BYTES_MAX, Line, Note, Op, purge_of, slice_of};
use crate::access::{Class, Keys};
use crate::{Error, Result};

/// A frame of a compressed file has so many bytes of lines.
const FRAME_BYTES: usize = 4 << 20;
/// The longest line; those of YCSB have values in them.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// One access in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, in units of event time; 0 in files without times.
    pub time: i64,
    /// The number of the key.
    pub key: u32,
    /// Operation and bytes.
    packed: u32,
}

impl Entry {
    /// An access; `bytes` are below [`BYTES_MAX`].
    pub fn new(time: i64, op: Op, key: u32, bytes: u32) -> Self {
        debug_assert!(bytes < BYTES_MAX, "{bytes} bytes");
        Entry { time, key, packed: (op as u32) << 24 | bytes }
    }

    /// What is asked.
    #[inline]
    pub fn op(&self) -> Op {
        Op::ALL[(self.packed >> 24) as usize]
    }

    /// Bytes that are written.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.packed & (BYTES_MAX - 1)
    }
}

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Count bad lines and go on, instead of failing at the first.
    pub skip_bad: bool,
    /// Bytes of a put or merge whose line does not say.
    pub value_bytes: u32,
}

impl Default for Reading {
    fn default() -> Self {
        Reading { skip_bad: false, value_bytes: 256 }
    }
}

/// A trace in memory.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    keys: Keys,
    numbers: HashTable<u32>,
    entries: Vec<Entry>,
    /// Whether lines have times; `None` before the first.
    is_timed: Option<bool>,
    skipped: u64,
    /// Keys of slices that were not purged yet.
    sliced: BTreeMap<i64, Vec<u32>>,
    missing: u64,
    unit_us: Option<u64>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// The file's; [`Error::Input`] with the line for one that is bad, unless they are skipped.
    pub fn read(path: &Path, reading: &Reading) -> Result<Self> {
        let mut lines = Lines { reader: open(path)?, line: Vec::new(), number: 0 };
        let mut recording = Recording::default();
        loop {
            let taken = match lines.next() {
                Ok(false) => return Ok(recording),
                Ok(true) => recording.take_line(&lines.line, reading.value_bytes),
                Err(error) if is_cut(&error) && reading.skip_bad => {
                    recording.skipped += 1;
                    return Ok(recording);
                }
                Err(error) => return Err(Error::input(path, lines.number, unreadable(&error))),
            };
            match taken {
                Ok(()) => {}
                Err(_) if reading.skip_bad => recording.skipped += 1,
                Err(message) => return Err(Error::input(path, lines.number, message)),
            }
        }
    }

    fn take_line(&mut self, line: &[u8], value_bytes: u32) -> std::result::Result<(), String> {
        let Some(text) = line.strip_suffix(b"\n") else {
            return Err(match line.len() as u64 {
                LINE_BYTES_MAX => format!("a line of more than {LINE_BYTES_MAX} bytes"),
                _ => "the file ends in the middle of this line".to_owned(),
            });
        };
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if let Some(note) = Note::parse(text) {
            self.take_note(note);
            return Ok(());
        }
        if let Some((time, bound)) = purge_of(text) {
            return self.purge(time, bound);
        }
        let line = Line::parse(text)?;
        let last = self.entries.last().map_or(i64::MIN, |entry| entry.time);
        match (line.time, self.is_timed) {
            (Some(time), _) if time < last && self.is_timed == Some(true) => {
                return Err(format!("time runs backwards: {time} after {last}"));
            }
            (time, Some(is_timed)) if time.is_some() != is_timed => {
                return Err("lines with and without times in one file".to_owned());
            }
            _ => {}
        }
        self.push(line, value_bytes);
        Ok(())
    }

    fn take_note(&mut self, note: Note) {
        match note {
            Note::Missing(accesses) => self.missing += accesses,
            Note::UnitUs(unit) => self.unit_us = Some(unit),
            Note::Text => {}
        }
    }

    /// Deletes each key of slices before `bound`.
    fn purge(&mut self, time: i64, bound: i64) -> std::result::Result<(), String> {
        let last = self.entries.last().map_or(i64::MIN, |entry| entry.time);
        if time < last || self.is_timed == Some(false) {
            return Err(format!("time runs backwards: {time} after {last}"));
        }
        let kept = self.sliced.split_off(&bound);
        for key in std::mem::replace(&mut self.sliced, kept).into_values().flatten() {
            self.entries.push(Entry::new(time, Op::Delete, key, 0));
        }
        Ok(())
    }

    /// Appends an access.
    pub fn push(&mut self, line: Line<'_>, value_bytes: u32) {
        self.is_timed = Some(line.time.is_some());
        let bytes = match line.op {
            Op::Put | Op::Merge => line.bytes.unwrap_or(value_bytes),
            _ => 0,
        };
        let key = self.number(line.key);
        self.entries.push(Entry::new(line.time.unwrap_or(0), line.op, key, bytes));
    }

    fn number(&mut self, key: &[u8]) -> u32 {
        let state = FixedState::with_seed(0);
        let (keys, hash) = (&mut self.keys, state.hash_one(key));
        if let Some(number) = self.numbers.find(hash, |number| keys.get(*number) == key) {
            return *number;
        }
        let number = keys.make(Class::State, key);
        if let Some(slice) = slice_of(key) {
            self.sliced.entry(slice).or_default().push(number);
        }
        self.numbers.insert_unique(hash, number, |number| state.hash_one(keys.get(*number)));
        number
    }

    /// The first accesses.
    pub fn first(&self, accesses: usize) -> Recording {
        let mut first = Recording { is_timed: self.is_timed, ..Recording::default() };
        for entry in &self.entries[..accesses.min(self.entries.len())] {
            let key = first.number(self.keys.get(entry.key));
            first.entries.push(Entry { key, ..*entry });
        }
        first
    }

    /// The accesses, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The keys, numbered as they come.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether lines have times.
    pub fn is_timed(&self) -> bool {
        self.is_timed == Some(true)
    }

    /// Accesses that the file says are missing.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Microseconds of a unit of its times, if it says so.
    pub fn unit_us(&self) -> Option<u64> {
        self.unit_us
    }

    /// Bad lines that were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// An access in words, for messages; lines count from 1.
    pub fn describe(&self, place: usize) -> String {
        let entry = &self.entries[place];
        let key = String::from_utf8_lossy(self.keys.get(entry.key));
        format!("access {} ({} {key})", place + 1, entry.op())
    }
}

/// The lines of a file, one at a time.
struct Lines {
    reader: Box<dyn BufRead>,
    /// The last one, with its end if it has one; cut after [`LINE_BYTES_MAX`].
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Reads the next line; there is none after the last.
    fn next(&mut self) -> io::Result<bool> {
        self.number += 1;
        if self.line.len() as u64 == LINE_BYTES_MAX && !self.line.ends_with(b"\n") {
            self.reader.skip_until(b'\n')?;
        }
        self.line.clear();
        Ok((&mut self.reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)? > 0)
    }
}

fn unreadable(error: &io::Error) -> String {
    match is_cut(error) {
        true => "the compressed file ends in the middle, here or in the frame after".to_owned(),
        false => format!("cannot be read from here on: {error}"),
    }
}

/// Writes a file; compresses it if its name ends in `.zst`. The file has its name when all is
/// written, and ends in `.part` before.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    lines: Vec<u8>,
    brief: bool,
    compresses: bool,
}

impl Writer {
    /// Makes the file; lines have operation and key only if `brief`.
    ///
    /// # Errors
    /// The file's.
    pub fn new(path: &Path, brief: bool) -> Result<Self> {
        let compresses = is_compressed(path)?;
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create(&part).map_err(|error| Error::io(&part, "create", error))?;
        let (path, file) = (path.to_owned(), BufWriter::new(file));
        Ok(Writer { path, part, file, lines: Vec::new(), brief, compresses })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The file's.
    pub fn line(&mut self, line: &Line<'_>) -> Result<()> {
        line.write(self.brief, &mut self.lines);
        if self.lines.len() >= FRAME_BYTES { self.frame() } else { Ok(()) }
    }

    fn frame(&mut self) -> Result<()> {
        let written = match self.compresses {
            true => {
                self.file.write_all(&compress_to_vec(&self.lines[..], CompressionLevel::Fastest))
            }
            false => self.file.write_all(&self.lines),
        };
        self.lines.clear();
        written.map_err(|error| Error::io(&self.part, "write", error))
    }

    /// Writes the rest and gives the file its name.
    ///
    /// # Errors
    /// The file's.
    pub fn finish(mut self) -> Result<()> {
        if !self.lines.is_empty() {
            self.frame()?;
        }
        let flushed = self.file.flush();
        flushed.map_err(|error| Error::io(&self.part, "write", error))?;
        fs::rename(&self.part, &self.path).map_err(|error| Error::io(&self.path, "rename", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, skip_bad: bool) -> Result<Recording> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        fs::write(&path, text).unwrap();
        Recording::read(&path, &Reading { skip_bad, ..Reading::default() })
    }

    #[test]
    fn bad_lines_are_named_or_counted() {
        let good = "1 get a 0\n1 put a 16\n";
        for (bad, message) in [
            ("2 steal a 0\n", "unknown operation"),
            ("0 get a 0\n", "time runs backwards: 0 after 1"),
            ("2 get a", "ends in the middle"),
            ("get a\n", "with and without times"),
            (&format!("2 get {} 0\n", "k".repeat(600)), "a key of 600 bytes"),
            ("\n", "unknown operation"),
        ] {
            let text = format!("{good}{bad}");
            let error = read(&text, false).unwrap_err().to_string();
            assert!(error.contains("a.trace: line 3: ") && error.contains(message), "{error}");
            let recording = read(&text, true).unwrap();
            assert_eq!((recording.entries().len(), recording.skipped()), (2, 1), "{bad}");
        }
        assert_eq!(read("", false).unwrap().entries().len(), 0);
    }

    #[test]
    fn a_line_of_any_length_is_one_bad_line() {
        let long = "k".repeat(5 << 19);
        let text = format!("1 get a 0\n1 get {long} 0\n2 get a 0\n3 steal a 0\n");
        let recording = read(&text, true).unwrap();
        assert_eq!((recording.entries().len(), recording.skipped()), (2, 2));
        let error = read(&text, false).unwrap_err().to_string();
        assert!(error.contains("line 2: a line of more than 1048576 bytes"), "{error}");
        let error = read(&text.replace(&format!("1 get {long} 0\n"), ""), false).unwrap_err();
        assert!(error.to_string().contains("line 3: unknown operation"), "{error}");
    }

    #[test]
    fn traces_of_a_store_have_notes_and_purges() {
        let text = "# state a: keys, 1 of them\n# unit-us 1000\n1 put 7@10 8\n1 put 8@20 8\n\
                    1 put 7@20 8\n2 purge @20 0\n# 12 accesses are missing here\n3 get 8@20 0\n\
                    4 purge @30 0\n";
        let recording = read(text, false).unwrap();
        let name = |key| String::from_utf8(recording.keys().get(key).to_vec()).unwrap();
        let found =
            recording.entries().iter().map(|entry| (entry.time, entry.op(), name(entry.key)));
        let found: Vec<_> = found.map(|(time, op, key)| format!("{time} {op} {key}")).collect();
        let wanted = [
            "1 put 7@10",
            "1 put 8@20",
            "1 put 7@20",
            "2 delete 7@10",
            "3 get 8@20",
            "4 delete 8@20",
            "4 delete 7@20",
        ];
        assert_eq!(found, wanted);
        assert_eq!((recording.missing(), recording.unit_us()), (12, Some(1000)));
        let error = read("3 put 7@10 8\n2 purge @20 0\n", false).unwrap_err().to_string();
        assert!(error.contains("line 2: time runs backwards"), "{error}");
        assert!(read("2 purge 20 0\n", false).is_err());
    }

    #[test]
    fn keys_are_numbered_and_sizes_filled_in() {
        let recording = read("put b\nget a\nmerge b\n", false).unwrap();
        let found: Vec<_> =
            recording.entries().iter().map(|entry| (entry.key, entry.bytes())).collect();
        assert_eq!(found, [(0, 256), (1, 0), (0, 256)]);
        assert_eq!((recording.keys().len(), recording.is_timed()), (2, false));
        assert_eq!(recording.describe(2), "access 3 (merge b)");
    }

    #[test]
    fn compressed_files_of_several_frames_are_read_back_and_cut_ones_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zst");
        let mut writer = Writer::new(&path, false).unwrap();
        let count = 400_000;
        for number in 0..count {
            let key = format!("{:010}", number % 1000);
            let (time, bytes) = (Some(number), Some(16));
            writer.line(&Line { time, op: Op::Put, key: key.as_bytes(), bytes }).unwrap();
        }
        writer.finish().unwrap();
        let size = fs::metadata(&path).unwrap().len();
        assert!(size < 6 << 20, "{size}");
        let recording = Recording::read(&path, &Reading::default()).unwrap();
        assert_eq!((recording.entries().len(), recording.keys().len()), (count as usize, 1000));
        assert_eq!(recording.entries()[399_999].time, 399_999);
        assert!(Writer::new(&dir.path().join("a.gz"), false).is_err());
        // Cut within its last frame, in which there are 20,000 lines.
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1000]).unwrap();
        let error = Recording::read(&path, &Reading::default()).unwrap_err().to_string();
        assert!(error.contains("ends in the middle") && error.contains("line 3"), "{error}");
        let skipping = Reading { skip_bad: true, ..Reading::default() };
        let recording = Recording::read(&path, &skipping).unwrap();
        assert_eq!(recording.skipped(), 1);
        assert!(recording.entries().len() > 300_000, "{}", recording.entries().len());
        fs::write(&path, "1 get a 0\n").unwrap();
        for reading in [Reading::default(), skipping] {
            let error = Recording::read(&path, &reading).unwrap_err().to_string();
            assert!(error.contains("line 1: cannot be read"), "{error}");
        }
    }
}
