//! Encodes and decodes a table's entries, for any layout. Exports, imports and moves between stores
//! use it.

use rkyv::util::{AlignedVec, with_arena};

use crate::{ErrorKind, Key, Result, State, Trials, codec, key_text};

/// Encodes and decodes keys and values that are [`State`]. State of a layout with a codec can be
/// exported, imported and restored by key groups.
pub struct EntryCodec<K, V> {
    encode: fn(&mut Encoded, &K, &V) -> Result<()>,
    decode: DecodeEntry<K, V>,
    decode_record: fn(&[u8]) -> Result<(K, V)>,
    value_bytes: fn(&V) -> u64,
}

type DecodeEntry<K, V> = fn(&[u8], &[u8]) -> Result<(K, V)>;

/// The bytes of a key and of its value, each its own archive.
#[derive(Debug, Default)]
pub struct Encoded {
    /// Bytes of the key.
    pub key: AlignedVec,
    /// Bytes of the value.
    pub value: AlignedVec,
    trials: (Trials, Trials),
}

impl Encoded {
    /// Encodes `key` and `value`, replacing the contents.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`], which names the key, if they exceed the longest archive; those
    /// of encoding.
    pub fn set<K: Key, V: State>(&mut self, key: &K, value: &V) -> Result<()> {
        // Once for both: to look for what the thread has takes as long as a short entry.
        with_arena(|arena| {
            codec::encode_one_in(arena, &mut self.key, key)?;
            codec::encode_one_in(arena, &mut self.value, value)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::ValueTooLarge => error.with("key", key_text(key)),
            _ => error,
        })?;
        self.trials.0.try_one::<K>(&self.key)?;
        self.trials.1.try_one::<V>(&self.value)
    }

    /// Decodes a key and a value.
    pub fn get<K: State, V: State>(key: &[u8], value: &[u8]) -> Result<(K, V)> {
        Ok((codec::decode_one(key)?, codec::decode_one(value)?))
    }
}

impl<K: Key, V: State> EntryCodec<K, V> {
    /// Creates the codec of these types.
    pub fn new() -> Self {
        Self {
            encode: Encoded::set,
            decode: Encoded::get,
            decode_record: codec::decode,
            value_bytes: |value| (size_of::<V>() + value.heap_bytes()) as u64,
        }
    }
}

impl<K, V> EntryCodec<K, V> {
    /// Encodes an entry.
    pub fn encode(&self, encoded: &mut Encoded, key: &K, value: &V) -> Result<()> {
        (self.encode)(encoded, key, value)
    }

    /// Decodes the bytes of a key and of a value, both aligned to 16.
    pub fn decode(&self, key: &[u8], value: &[u8]) -> Result<(K, V)> {
        (self.decode)(key, value)
    }

    /// Returns the bytes that a value takes in memory, heap included.
    pub fn value_bytes(&self, value: &V) -> u64 {
        (self.value_bytes)(value)
    }

    /// Decodes a record of a segment.
    pub fn decode_record(&self, record: &[u8]) -> Result<(K, V)> {
        (self.decode_record)(record)
    }
}

impl<K: Key, V: State> Default for EntryCodec<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for EntryCodec<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for EntryCodec<K, V> {}

impl<K, V> std::fmt::Debug for EntryCodec<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EntryCodec")
    }
}
