//! A directory of a store in one file, without its runs of zeros: small, and no tool that handles text
//! touches what is inside.
//!
//! ```text
//! for each file, by name: name length u32 | name | file length u64 | pieces u32
//!     for each piece that is not zero: offset u64 | length u32 | bytes
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// So many zeros in a row are left out.
const ZEROS_MIN: usize = 48;

/// The folders of the fixtures, by format. Each has a store's directories; a job's is in
/// `format-2`, one with sorted runs in `format-5`.
pub const FORMATS: [&str; 2] = ["format-2", "format-5"];

/// The folder of today's format.
pub fn folder() -> PathBuf {
    all().join(FORMATS[FORMATS.len() - 1])
}

fn all() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The files of a directory by name, without its lock.
pub fn read_directory(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let files = named.filter(|(name, _)| name != "LOCK");
    files.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

/// The pieces of `bytes` that are not runs of zeros.
fn pieces(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while let Some(skipped) = bytes[at..].iter().position(|byte| *byte != 0) {
        let start = at + skipped;
        let zeros = bytes[start..].windows(ZEROS_MIN).position(|run| run.iter().all(|b| *b == 0));
        at = zeros.map_or(bytes.len(), |zeros| start + zeros);
        let end = bytes[..at].iter().rposition(|byte| *byte != 0).expect("it begins with one") + 1;
        pieces.push((start, &bytes[start..end]));
    }
    pieces
}

/// One file of all of them.
pub fn pack(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut packed = Vec::new();
    for (name, bytes) in files {
        packed.extend((name.len() as u32).to_le_bytes());
        packed.extend(name.as_bytes());
        packed.extend((bytes.len() as u64).to_le_bytes());
        let pieces = pieces(bytes);
        packed.extend((pieces.len() as u32).to_le_bytes());
        for (offset, piece) in pieces {
            packed.extend((offset as u64).to_le_bytes());
            packed.extend((piece.len() as u32).to_le_bytes());
            packed.extend(piece);
        }
    }
    packed
}

/// Takes bytes from the front.
struct Taken<'a>(&'a [u8]);

impl<'a> Taken<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> usize {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap()) as usize
    }

    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap()) as usize
    }
}

/// The files that [`pack`] made one of.
pub fn unpack(packed: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let (mut taken, mut files) = (Taken(packed), BTreeMap::new());
    while !taken.0.is_empty() {
        let name_len = taken.u32();
        let name = String::from_utf8(taken.bytes(name_len).to_vec()).unwrap();
        let mut bytes = vec![0; taken.u64()];
        for _ in 0..taken.u32() {
            let (offset, len) = (taken.u64(), taken.u32());
            bytes[offset..offset + len].copy_from_slice(taken.bytes(len));
        }
        files.insert(name, bytes);
    }
    files
}

/// The files of a fixture, such as `format-2/everything`.
pub fn load(fixture: &str) -> BTreeMap<String, Vec<u8>> {
    let path = all().join(fixture).with_extension("files");
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    unpack(&packed)
}

/// Puts a copy of a fixture's files into `directory`.
pub fn place(fixture: &str, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, bytes) in load(fixture) {
        std::fs::write(directory.join(name), bytes).unwrap();
    }
}

/// What a fixture should hold, line by line.
pub fn expected(name: &str) -> String {
    let path = all().join(name).with_extension("txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // Whatever a checkout made of the ends of lines.
    text.replace("\r\n", "\n")
}

#[test]
fn what_is_packed_comes_out_as_it_was() {
    let mut files = BTreeMap::new();
    files.insert("empty".to_owned(), vec![]);
    files.insert("zeros".to_owned(), vec![0; 5000]);
    let mut mixed = vec![0; 9000];
    for (at, byte) in [(0, 1), (1, 2), (40, 3), (47 + 41, 4), (500, 5), (548, 6), (8999, 7)] {
        mixed[at] = byte;
    }
    files.insert("mixed".to_owned(), mixed);
    let packed = pack(&files);
    assert_eq!(unpack(&packed), files);
    assert!(packed.len() < 600, "{}", packed.len());
}
