//! The bytes of a canonical file: blocks with checksums, each seeded with the block's number, so that
//! one that is missing, repeated or from another place is noticed.

use std::io::{Read, Write};
use std::rc::Rc;

use alluvium_pagestore::{
    Account, CODEC, Error, ErrorKind, HASH_VERSION, MemoryKind, Result, StateManifest,
};
use rkyv::util::AlignedVec;
use serde::{Deserialize, Serialize};

use super::CanonicalEntry;
use crate::store::{OpenState, definition};

const MAGIC: &[u8; 8] = b"ALVEXPT\0";
/// Version of the file's format.
pub(super) const EXPORT_VERSION: u32 = 1;
/// A block ends before it has more than so many bytes, unless it is one entry.
const BLOCK_BYTES: usize = 64 << 10;
/// Kind, length, checksum of the body, checksum of these.
const BLOCK_HEADER_BYTES: usize = 16;
/// Hash, order, length of key and of value.
const ENTRY_HEADER_BYTES: usize = 24;
/// Instead of the length of a key: it is that of the entry before.
const SAME_KEY: u32 = u32::MAX;

const FILE: u32 = 0;
const STATE: u32 = 1;
const ENTRIES: u32 = 2;
const END_OF_STATE: u32 = 3;
const END: u32 = 4;

/// The body of the first block.
#[derive(Serialize, Deserialize)]
struct FileHeader {
    hash_version: u32,
    codec: String,
}

/// The body of a state's first block.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StateHeader {
    pub(super) name: String,
    primitive: String,
    key: String,
    value: String,
    /// Beside the types, what the state's answers depend on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    definition: Option<serde_json::Value>,
    pub(super) entries: u64,
}

impl StateHeader {
    pub(super) fn of(state: &OpenState, entries: u64) -> Self {
        let StateManifest { name, primitive, key, value, .. } = state.manifest.clone();
        let definition = state.definition_now();
        Self { name, primitive, key, value, definition, entries }
    }

    /// Refuses a state of other types, naming both.
    pub(super) fn check(&self, open: &StateManifest) -> Result<()> {
        for (what, stored, asked) in [
            ("primitive", &self.primitive, &open.primitive),
            ("key type", &self.key, &open.key),
            ("value type", &self.value, &open.value),
        ] {
            if stored != asked {
                let message = format!("the file's {what} is {stored}, the state's is {asked}");
                return Err(Error::new(ErrorKind::Mismatch, message).with("state", &self.name));
            }
        }
        let (file, state) = (self.definition.as_ref(), open.definition.as_ref());
        definition::check_same(&self.name, (file, "in the file"), (state, "in the state"))
    }
}

fn io(what: &str, error: std::io::Error) -> Error {
    Error::io(what, "of an export", error)
}

fn to_json(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|e| {
        Error::new(ErrorKind::Config, "cannot write the header of the export").caused_by(e)
    })
}

/// The header of block `number`.
fn block_header(number: u64, kind: u32, body: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
    let length = u32::try_from(body.len()).expect("entries are refused that are longer");
    let mut header = [0; BLOCK_HEADER_BYTES];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..12].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let crc = header_crc(number, &header);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn header_crc(number: u64, header: &[u8; BLOCK_HEADER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &header[..12])
}

/// Writes a file.
pub(super) struct FileWriter<W> {
    out: W,
    account: Rc<Account>,
    booked: u64,
    /// Blocks written.
    number: u64,
    states: u64,
    /// Of the state at hand.
    entries: u64,
    block: Vec<u8>,
    /// Hash and key of the last entry of the block.
    last: (u64, Vec<u8>),
}

impl<W: Write> FileWriter<W> {
    pub(super) fn begin(mut out: W, root: &Rc<Account>) -> Result<Self> {
        let account = Account::below(root, "export", u64::MAX);
        // The block, and the last key of it.
        let booked = 2 * BLOCK_BYTES as u64;
        account.reserve(MemoryKind::Buffers, booked, "a block of an export")?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&EXPORT_VERSION.to_le_bytes());
        let crc = crc32c::crc32c(&head[..12]);
        head[12..].copy_from_slice(&crc.to_le_bytes());
        let written = out.write_all(&head).map_err(|e| io("write", e));
        let (block, last) = (Vec::with_capacity(BLOCK_BYTES), (0, Vec::new()));
        let mut file = Self { out, account, booked, number: 0, states: 0, entries: 0, block, last };
        written?;
        let header = FileHeader { hash_version: HASH_VERSION, codec: CODEC.into() };
        file.write(FILE, &to_json(&header)?)?;
        Ok(file)
    }

    fn write(&mut self, kind: u32, body: &[u8]) -> Result<()> {
        let header = block_header(self.number, kind, body);
        self.number += 1;
        self.out.write_all(&header).map_err(|e| io("write", e))?;
        self.out.write_all(body).map_err(|e| io("write", e))
    }

    pub(super) fn begin_state(&mut self, header: &StateHeader) -> Result<()> {
        (self.states, self.entries) = (self.states + 1, 0);
        self.write(STATE, &to_json(header)?)
    }

    pub(super) fn push(&mut self, entry: CanonicalEntry<'_>) -> Result<()> {
        let [key_len, value_len] = entry.lengths()?;
        let same = !self.block.is_empty() && self.last.0 == entry.hash && self.last.1 == entry.key;
        let key = if same { 0 } else { entry.key.len() };
        if self.block.len() + ENTRY_HEADER_BYTES + key + entry.value.len() > BLOCK_BYTES {
            self.finish_block()?;
        }
        self.make_room(ENTRY_HEADER_BYTES + entry.key.len() + entry.value.len(), entry.key.len())?;
        let same = same && !self.block.is_empty();
        let key_len = if same { SAME_KEY } else { key_len };
        self.block.extend_from_slice(&entry.hash.to_le_bytes());
        self.block.extend_from_slice(&entry.order.to_le_bytes());
        self.block.extend_from_slice(&key_len.to_le_bytes());
        self.block.extend_from_slice(&value_len.to_le_bytes());
        if !same {
            self.block.extend_from_slice(entry.key);
            self.last.0 = entry.hash;
            self.last.1.clear();
            self.last.1.extend_from_slice(entry.key);
        }
        self.block.extend_from_slice(entry.value);
        self.entries += 1;
        Ok(())
    }

    /// Books what an entry takes that is longer than a block, and its key again, which may have grown to twice that.
    fn make_room(&mut self, bytes: usize, key: usize) -> Result<()> {
        let more = (bytes + 2 * key) as u64;
        let more = (more + BLOCK_BYTES as u64).saturating_sub(self.booked);
        self.account.reserve(MemoryKind::Buffers, more, "an entry of an export")?;
        self.booked += more;
        if self.block.is_empty() {
            self.block.reserve_exact(bytes);
        }
        Ok(())
    }

    fn finish_block(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            let block = std::mem::take(&mut self.block);
            let written = self.write(ENTRIES, &block);
            self.block = block;
            self.block.clear();
            written?;
        }
        Ok(())
    }

    /// Ends the state and says how many entries it has.
    pub(super) fn end_state(&mut self) -> Result<u64> {
        self.finish_block()?;
        self.write(END_OF_STATE, &self.entries.to_le_bytes())?;
        Ok(self.entries)
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.write(END, &self.states.to_le_bytes())?;
        self.out.flush().map_err(|e| io("write", e))
    }
}

impl<W> Drop for FileWriter<W> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}

/// What comes next in a file.
pub(super) enum FileItem<'a> {
    State(StateHeader),
    Entry(CanonicalEntry<'a>),
    End,
}

/// Reads a file, verified block by block.
pub(super) struct FileReader<R> {
    input: R,
    account: Rc<Account>,
    /// Blocks read.
    number: u64,
    states: u64,
    in_state: bool,
    entries: u64,
    block: Vec<u8>,
    /// Of the block.
    at: usize,
    booked: u64,
    /// The entry at hand, aligned.
    hash: u64,
    order: i64,
    key: AlignedVec,
    value: AlignedVec,
}

impl<R: Read> FileReader<R> {
    pub(super) fn begin(mut input: R, root: &Rc<Account>) -> Result<Self> {
        let mut head = [0; 16];
        input.read_exact(&mut head).map_err(|e| io("read the head", e))?;
        if &head[..8] != MAGIC {
            return Err(Error::new(ErrorKind::Corrupt, "this is not an export of Alluvium"));
        }
        if head[12..] != crc32c::crc32c(&head[..12]).to_le_bytes() {
            return Err(Error::new(ErrorKind::Corrupt, "the header of the export is damaged"));
        }
        let version = u32::from_le_bytes(head[8..12].try_into().expect("four"));
        if version != EXPORT_VERSION {
            let message =
                format!("an export of format {version}; this build reads {EXPORT_VERSION}");
            return Err(Error::new(ErrorKind::FormatVersion, message));
        }
        let mut file = Self {
            input,
            account: Account::below(root, "import", u64::MAX),
            number: 0,
            states: 0,
            in_state: false,
            entries: 0,
            block: Vec::new(),
            at: 0,
            booked: 0,
            hash: 0,
            order: 0,
            key: AlignedVec::new(),
            value: AlignedVec::new(),
        };
        if file.read_block()? != FILE {
            return Err(file.damaged("does not begin as one"));
        }
        let header: FileHeader = file.head()?;
        if (header.hash_version, &*header.codec) != (HASH_VERSION, CODEC) {
            let (hash, codec) = (header.hash_version, header.codec);
            let message = format!(
                "exported with key hash {hash} and {codec}; this build has key hash {HASH_VERSION} \
                 and {CODEC}"
            );
            return Err(Error::new(ErrorKind::FormatVersion, message));
        }
        file.at = file.block.len();
        Ok(file)
    }

    fn damaged(&self, what: &str) -> Error {
        let error = Error::new(ErrorKind::Corrupt, format!("the export {what}"));
        error.with("block", self.number)
    }

    fn head<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.block)
            .map_err(|e| self.damaged("has a head that does not parse").caused_by(e))
    }

    /// Reads the next block and tells its kind.
    fn read_block(&mut self) -> Result<u32> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        self.input.read_exact(&mut header).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.damaged("is cut short"),
            _ => io("read", e),
        })?;
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        if u32_at(12) != header_crc(self.number, &header) {
            return Err(self.damaged("has a damaged or misplaced block"));
        }
        let len = u32_at(4) as usize;
        // Block and entry: the entry is copied out of it.
        let needed = 2 * len as u64;
        if needed > self.booked {
            let more = needed - self.booked;
            self.account.reserve(MemoryKind::Buffers, more, "a block of an export")?;
            self.booked = needed;
        }
        self.block.resize(len, 0);
        self.input.read_exact(&mut self.block).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.damaged("is cut short"),
            _ => io("read", e),
        })?;
        if u32_at(8) != crc32c::crc32c(&self.block) {
            return Err(self.damaged("has a damaged block"));
        }
        (self.number, self.at) = (self.number + 1, 0);
        Ok(u32_at(0))
    }

    pub(super) fn next(&mut self) -> Result<FileItem<'_>> {
        if self.at < self.block.len() {
            return self.entry();
        }
        loop {
            let kind = self.read_block()?;
            let count = <[u8; 8]>::try_from(&self.block[..]).map(u64::from_le_bytes).ok();
            match (kind, self.in_state) {
                (STATE, false) => {
                    (self.in_state, self.entries) = (true, 0);
                    self.states += 1;
                    let header = self.head()?;
                    self.at = self.block.len();
                    return Ok(FileItem::State(header));
                }
                (ENTRIES, true) if !self.block.is_empty() => return self.entry(),
                (END_OF_STATE, true) if count == Some(self.entries) => {
                    self.in_state = false;
                    self.at = self.block.len();
                }
                (END, false) if count == Some(self.states) => {
                    self.at = self.block.len();
                    return Ok(FileItem::End);
                }
                _ => return Err(self.damaged("has a block that does not belong there")),
            }
        }
    }

    fn entry(&mut self) -> Result<FileItem<'_>> {
        let rest = &self.block[self.at..];
        let Some((header, rest)) = rest.split_at_checked(ENTRY_HEADER_BYTES) else {
            return Err(self.damaged("has an entry that is cut short"));
        };
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight"));
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let (hash, order) = (u64_at(0), u64_at(8) as i64);
        let is_same = u32_at(16) == SAME_KEY;
        let key = if is_same { 0 } else { u32_at(16) as usize };
        let value = u32_at(20) as usize;
        let is_whole = key.checked_add(value).is_some_and(|len| len <= rest.len());
        if !is_whole || is_same && (self.at == 0 || self.hash != hash) {
            return Err(self.damaged("has an entry that is cut short"));
        }
        if !is_same {
            self.key.clear();
            self.key.extend_from_slice(&rest[..key]);
        }
        self.value.clear();
        self.value.extend_from_slice(&rest[key..key + value]);
        self.at += ENTRY_HEADER_BYTES + key + value;
        (self.hash, self.order) = (hash, order);
        self.entries += 1;
        Ok(FileItem::Entry(self.at_hand()))
    }

    /// The entry that [`next`](FileReader::next) gave last.
    pub(super) fn at_hand(&self) -> CanonicalEntry<'_> {
        CanonicalEntry { hash: self.hash, order: self.order, key: &self.key, value: &self.value }
    }
}

impl<R> Drop for FileReader<R> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}
