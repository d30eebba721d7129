//! One line of a trace: `t OP key bytes`, `OP key`, or a line of YCSB's log.
//!
//! `t` is in units of event time and never runs backwards. `bytes` are those that a put or merge
//! writes; other operations have 0. A range is a seek, and a next for each key that it visits. A line that
//! begins with `#` is a note.

use std::fmt;

/// The longest key: what every peer takes.
pub const KEY_BYTES_MAX: usize = 511;
/// The largest value of a line, less one.
pub const BYTES_MAX: u32 = 1 << 24;

/// An operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Reads a value.
    Get,
    /// Sets a value.
    Put,
    /// Appends to a value.
    Merge,
    /// Removes a key.
    Delete,
    /// Starts a range at a key.
    Seek,
    /// Steps to the next key of a range.
    Next,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub const ALL: [Op; 6] = [Op::Get, Op::Put, Op::Merge, Op::Delete, Op::Seek, Op::Next];

    /// As lines have it.
    pub fn text(self) -> &'static str {
        ["get", "put", "merge", "delete", "seek", "next"][self as usize]
    }

    fn of(word: &[u8]) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.text().as_bytes() == word)
    }

    /// YCSB's operations, in its log's words.
    fn of_ycsb(word: &[u8]) -> Option<Op> {
        match word {
            b"READ" => Some(Op::Get),
            b"UPDATE" | b"INSERT" => Some(Op::Put),
            b"DELETE" => Some(Op::Delete),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A line that is no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Accesses before it were not recorded.
    Missing(u64),
    /// Microseconds of a unit of the trace's times.
    UnitUs(u64),
    /// For people.
    Text,
}

impl Note {
    /// Reads a note; `None` for other lines.
    pub fn parse(text: &[u8]) -> Option<Note> {
        let text = std::str::from_utf8(text.strip_prefix(b"#")?).unwrap_or_default().trim();
        if let Some(count) = text.strip_suffix(" accesses are missing here") {
            return Some(count.parse().map_or(Note::Text, Note::Missing));
        }
        let unit = text.strip_prefix("unit-us ").and_then(|unit| unit.parse().ok());
        Some(unit.filter(|unit| *unit > 0).map_or(Note::Text, Note::UnitUs))
    }
}

/// The bound of a line that purges: `t purge @BOUND 0`. It removes each key that ends in `@` and a smaller
/// number.
pub fn purge_of(text: &[u8]) -> Option<(i64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (time, rest) = text.split_once(" purge @")?;
    let (bound, _) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((time.parse().ok()?, bound.parse().ok()?))
}

/// The slice of a key that has one.
pub fn slice_of(key: &[u8]) -> Option<i64> {
    let at = key.iter().rposition(|byte| *byte == b'@')?;
    std::str::from_utf8(&key[at + 1..]).ok()?.parse().ok()
}

/// One access as a file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// When, in units of event time; `None` in files without times.
    pub time: Option<i64>,
    /// What is asked.
    pub op: Op,
    /// Of which key.
    pub key: &'a [u8],
    /// Bytes that are written; `None` in files without sizes.
    pub bytes: Option<u32>,
}

impl<'a> Line<'a> {
    /// Reads a line without its end; says what is wrong with it.
    ///
    /// # Errors
    /// What was found and what was expected.
    pub fn parse(text: &'a [u8]) -> Result<Line<'a>, String> {
        let mut words = text.split(|byte| *byte == b' ');
        let first = words.next().unwrap_or_default();
        if let Some(op) = Op::of_ycsb(first) {
            // The table, the key, and fields that may have any bytes.
            let key = words.nth(1).ok_or("no key after the table")?;
            return Line { time: None, op, key, bytes: None }.checked();
        }
        let is_timed = matches!(first.first(), Some(b'0'..=b'9' | b'-'));
        let time = is_timed.then(|| number(first, "time")).transpose()?;
        let word = if is_timed { words.next().unwrap_or_default() } else { first };
        let op = Op::of(word).ok_or_else(|| unknown(word))?;
        let key = words.next().filter(|key| !key.is_empty());
        let key = key.ok_or("no key after the operation")?;
        let bytes = if is_timed { words.next().map(size).transpose()? } else { None };
        match words.next() {
            Some(_) => Err("more than time, operation, key and bytes".to_owned()),
            None => Line { time, op, key, bytes }.checked(),
        }
    }

    fn checked(self) -> Result<Self, String> {
        match self.key.len() {
            0 => Err("an empty key".to_owned()),
            1..=KEY_BYTES_MAX => Ok(self),
            bytes => Err(format!("a key of {bytes} bytes; {KEY_BYTES_MAX} is the most")),
        }
    }

    /// Appends the line; only operation and key if `brief`.
    pub fn write(&self, brief: bool, to: &mut Vec<u8>) {
        use std::io::Write;
        let time = self.time.filter(|_| !brief);
        // Writing to a vector cannot fail.
        if let Some(time) = time {
            let _ = write!(to, "{time} ");
        }
        let _ = write!(to, "{} ", self.op);
        to.extend_from_slice(self.key);
        if let (Some(bytes), Some(_)) = (self.bytes, time) {
            let _ = write!(to, " {bytes}");
        }
        to.push(b'\n');
    }
}

fn unknown(word: &[u8]) -> String {
    let word = String::from_utf8_lossy(&word[..word.len().min(24)]);
    let known: Vec<_> = Op::ALL.iter().map(|op| op.text()).collect();
    format!("unknown operation {word:?}: expected {}", known.join(", "))
}

fn number(word: &[u8], what: &str) -> Result<i64, String> {
    let text = String::from_utf8_lossy(word);
    text.parse().map_err(|_| format!("{text:?} is no {what}"))
}

fn size(word: &[u8]) -> Result<u32, String> {
    let bytes = number(word, "number of bytes")?;
    let found = u32::try_from(bytes).ok().filter(|bytes| *bytes < BYTES_MAX);
    found.ok_or_else(|| format!("{bytes} bytes; {} is the most", BYTES_MAX - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(time: Option<i64>, op: Op, key: &str, bytes: Option<u32>) -> Line<'_> {
        Line { time, op, key: key.as_bytes(), bytes }
    }

    #[test]
    fn each_form_of_a_line_is_read() {
        let long = "k".repeat(KEY_BYTES_MAX);
        let text = format!("9 get {long} 0");
        for (text, wanted) in [
            ("7 put 0000000001 16", line(Some(7), Op::Put, "0000000001", Some(16))),
            ("-7 next a 0", line(Some(-7), Op::Next, "a", Some(0))),
            ("7 get a", line(Some(7), Op::Get, "a", None)),
            ("merge a", line(None, Op::Merge, "a", None)),
            ("READ usertable user12 [ <all fields>]", line(None, Op::Get, "user12", None)),
            ("UPDATE usertable user1 [ field0=a b ]", line(None, Op::Put, "user1", None)),
            (&text, line(Some(9), Op::Get, &long, Some(0))),
        ] {
            assert_eq!(Line::parse(text.as_bytes()), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let long = format!("get {}", "k".repeat(KEY_BYTES_MAX + 1));
        for (text, wanted) in [
            ("7 steal a 0", "unknown operation \"steal\""),
            ("SCAN usertable user1 12", "unknown operation \"SCAN\""),
            ("", "unknown operation"),
            ("7 get", "no key"),
            ("READ usertable", "no key"),
            ("7x get a 0", "\"7x\" is no time"),
            ("7 put a x", "\"x\" is no number of bytes"),
            ("7 put a -1", "-1 bytes"),
            ("7 put a 16777216", "16777215 is the most"),
            ("7 put a 1 2", "more than"),
            ("get a 1", "more than"),
            ("get  a", "no key"),
            (&long, "a key of 512 bytes"),
        ] {
            let found = Line::parse(text.as_bytes()).unwrap_err();
            assert!(found.contains(wanted), "{text}: {found}");
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let mut text = Vec::new();
        let whole = line(Some(3), Op::Merge, "k", Some(24));
        whole.write(false, &mut text);
        assert_eq!(text, b"3 merge k 24\n");
        text.clear();
        whole.write(true, &mut text);
        assert_eq!(text, b"merge k\n");
    }
}
