//! Lines of one state on their way to its file.
//!
//! A call makes its lines in the chunk at hand. A full one goes to the thread, which gives it back empty.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium_pagestore::channel::{Receiver, Sender, unbounded};
use alluvium_pagestore::{Account, Key, Lookup, MemoryKind, Result, Time, hash_word, key_word};

use super::options::TraceOptions;
use super::tracer::ChunkDesk;
use super::writing::{FullChunk, TraceFile};

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = 32 << 10;
/// The longest key of a line; longer ones are hashed.
const WORD_BYTES_MAX: usize = 511;
/// The longest line without its key.
const LINE_BYTES_MAX: usize = 64;
/// A chunk that was begun so long ago is written though it is not full.
const CHUNK_MS: u64 = 1000;

/// An operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads a value.
    Get,
    /// Sets a value.
    Put,
    /// Appends to a value.
    Merge,
    /// Removes a key.
    Delete,
    /// Removes all keys of slices before one.
    Purge,
}

impl Access {
    /// As lines have it, between spaces.
    fn text(self) -> &'static [u8] {
        match self {
            Access::Get => b" get ",
            Access::Put => b" put ",
            Access::Merge => b" merge ",
            Access::Delete => b" delete ",
            Access::Purge => b" purge ",
        }
    }
}

/// Records the calls on one state.
pub(crate) struct Recorder {
    began: Instant,
    hashes_keys: bool,
    /// Keys are taken whose mixed hash is no greater.
    hash_max: u64,
    wait: Duration,
    lines: RefCell<LineChunk>,
    /// Slices before this one were purged.
    purged: Cell<Time>,
    /// The memory of a word that is not being made.
    word: Cell<Vec<u8>>,
    chunks: u64,
    spare: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    file: TraceFile,
    desk: Rc<ChunkDesk>,
    booked: ChunkMemory,
}

/// Memory of the chunks.
struct ChunkMemory(Rc<Account>, u64);

impl Drop for ChunkMemory {
    fn drop(&mut self) {
        self.0.release(MemoryKind::Buffers, self.1);
    }
}

/// The chunk at hand.
#[derive(Default)]
struct LineChunk {
    chunk: Vec<u8>,
    count: u64,
    /// Accesses before the chunk for which there was no room.
    missing: u64,
    begun_ms: u64,
    /// The buffer was full when it was last waited for.
    is_behind: bool,
}

impl Recorder {
    /// Records to `file`.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) if the account has no room for the buffer.
    pub(super) fn new(
        options: &TraceOptions,
        account: &Rc<Account>,
        file: TraceFile,
        desk: Rc<ChunkDesk>,
    ) -> Result<Self> {
        let chunks = options.buffer.0 / CHUNK_BYTES as u64;
        let bytes = chunks * CHUNK_BYTES as u64 + 2 * WORD_BYTES_MAX as u64;
        account.reserve(MemoryKind::Buffers, bytes, "the buffer of a trace")?;
        let booked = ChunkMemory(account.clone(), bytes);
        let (back, spare) = unbounded();
        for _ in 1..chunks {
            let _ = back.send(Vec::with_capacity(CHUNK_BYTES));
        }
        let chunk = Vec::with_capacity(CHUNK_BYTES);
        // A fraction of all hashes; the conversion saturates.
        let hash_max = (options.sample * 2f64.powi(64)) as u64;
        Ok(Self {
            began: desk.began(),
            hashes_keys: options.hash_keys,
            hash_max,
            wait: Duration::from_millis(options.wait_ms),
            lines: RefCell::new(LineChunk { chunk, ..LineChunk::default() }),
            purged: Cell::new(Time::MIN),
            word: Cell::new(Vec::with_capacity(WORD_BYTES_MAX)),
            chunks,
            spare,
            back,
            file,
            desk,
            booked,
        })
    }

    /// Records an access to what a key has, in a slice of time if there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn record<K: Key, Q: Lookup<K> + ?Sized>(
        &self,
        access: Access,
        key: &Q,
        slice: Option<Time>,
        bytes: u64,
    ) {
        if let Some(word) = self.word(key, slice) {
            self.write(word, &[(access, bytes)]);
        }
    }

    /// Records that what a key has in a slice was changed.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_change<K: Key>(&self, key: &K, slice: Time, bytes: u64) {
        if let Some(word) = self.word(key, Some(slice)) {
            self.write(word, &[(Access::Get, 0), (Access::Put, bytes)]);
        }
    }

    /// Records that the slices before one go, once.
    #[cold]
    pub(crate) fn record_purge(&self, before: Time) {
        if before > self.purged.replace(before.max(self.purged.get())) {
            let mut word = self.word.take();
            word.clear();
            let _ = write!(word, "@{}", before.0);
            self.write(word, &[(Access::Purge, 0)]);
        }
    }

    /// The word of a key that is recorded; [`write`](Recorder::write) takes it.
    pub(super) fn word<K: Key, Q: Lookup<K> + ?Sized>(
        &self,
        key: &Q,
        slice: Option<Time>,
    ) -> Option<Vec<u8>> {
        let hash = key.key_hash();
        // Mixed once more: a worker's keys have hashes of a range.
        if hash_word(hash) > self.hash_max {
            return None;
        }
        let owned = (!self.hashes_keys).then(|| key.to_owned());
        Some(self.word_of(hash, owned.as_ref().map(|key| key as &dyn Any), slice))
    }

    fn word_of(&self, hash: u64, key: Option<&dyn Any>, slice: Option<Time>) -> Vec<u8> {
        let mut word = self.word.take();
        word.clear();
        // Writing to a vector cannot fail.
        let finish = |word: &mut Vec<u8>| {
            if let Some(slice) = slice {
                let _ = write!(word, "@{}", slice.0);
            }
        };
        if key.is_some_and(|key| key_word(key, &mut word)) {
            finish(&mut word);
        }
        if word.is_empty() || word.len() > WORD_BYTES_MAX {
            word.clear();
            word.shrink_to(WORD_BYTES_MAX);
            let _ = write!(word, "#{hash:016x}");
            finish(&mut word);
        }
        word
    }

    /// Records accesses to one key.
    pub(super) fn write(&self, word: Vec<u8>, accesses: &[(Access, u64)]) {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let lines = &mut *self.lines.borrow_mut();
        for (access, bytes) in accesses {
            let most = lines.chunk.len() + word.len() + LINE_BYTES_MAX;
            if most > CHUNK_BYTES && !self.hand_over(lines, self.wait) {
                lines.missing += 1;
                continue;
            }
            if lines.chunk.is_empty() {
                lines.begun_ms = now_ms;
            }
            push_number(&mut lines.chunk, now_ms);
            lines.chunk.extend_from_slice(access.text());
            lines.chunk.extend_from_slice(&word);
            lines.chunk.push(b' ');
            push_number(&mut lines.chunk, *bytes);
            lines.chunk.push(b'\n');
            lines.count += 1;
        }
        self.word.set(word);
        if now_ms.saturating_sub(lines.begun_ms) >= CHUNK_MS && !lines.chunk.is_empty() {
            self.hand_over(lines, Duration::ZERO);
        }
    }

    /// Gives the chunk to the thread for an empty one, if there is one within `wait`.
    fn hand_over(&self, lines: &mut LineChunk, wait: Duration) -> bool {
        let wait = if lines.is_behind { Duration::ZERO } else { wait };
        // One that waits for no time at all would still let other threads go first, with each call.
        let spare = match wait.is_zero() {
            true => self.spare.try_recv().ok(),
            false => self.spare.recv_timeout(wait).ok(),
        };
        let Some(spare) = spare else {
            lines.is_behind |= !wait.is_zero();
            return false;
        };
        lines.is_behind = false;
        self.send(lines, spare);
        true
    }

    fn send(&self, lines: &mut LineChunk, spare: Vec<u8>) {
        let chunk = std::mem::replace(&mut lines.chunk, spare);
        let (count, missing) =
            (std::mem::take(&mut lines.count), std::mem::take(&mut lines.missing));
        let back = Some(self.back.clone());
        self.desk.send(FullChunk { file: self.file.clone(), chunk, count, missing, back });
    }
}

/// Appends a number: several times as fast as formatting it.
fn push_number(to: &mut Vec<u8>, number: u64) {
    let (mut digits, mut at, mut rest) = ([0; 20], 20, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return to.extend_from_slice(&digits[at..]);
        }
    }
}

#[cfg(test)]
impl Recorder {
    /// Whether the thread has given an empty chunk back.
    pub(super) fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }
}

impl Drop for Recorder {
    /// The memory is given back when the thread has given back the chunks, unless storage does nothing.
    fn drop(&mut self) {
        let lines = &mut *self.lines.borrow_mut();
        let mut out = self.chunks - 1;
        if lines.count + lines.missing > 0 {
            self.send(lines, Vec::new());
            out += 1;
        }
        let end = Instant::now() + self.desk.patience();
        while out > 0 && self.spare.recv_deadline(end).is_ok() {
            out -= 1;
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({:?}, {} bytes)", self.file, self.booked.1)
    }
}
