//! Encodes records: one rkyv archive per record, checked before it is read.
//!
//! One record can be read and verified alone. The payload of key and value is `ArchivedRecord {
//! key, value }`, aligned to 16 bytes, with the root at the end.

use rkyv::api::high::{HighValidator, to_bytes_in, to_bytes_in_with_alloc};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Error as RkyvError;
use rkyv::ser::allocator::Arena;
use rkyv::util::{AlignedVec, with_arena};
use rkyv::{Archive, Deserialize, Place, Serialize};

use crate::{Error, ErrorKind, Result, State};

/// The stored form of a key and its value.
#[derive(Archive, Serialize, Deserialize)]
#[rkyv(crate = rkyv)]
pub struct Record<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
}

/// Serializes a borrowed key and value into the archive of a [`Record`], without cloning them.
struct Borrowed<'a, K, V>(&'a K, &'a V);

impl<K: Archive, V: Archive> Archive for Borrowed<'_, K, V> {
    type Archived = ArchivedRecord<K, V>;
    type Resolver = (K::Resolver, V::Resolver);

    fn resolve(&self, (key, value): Self::Resolver, out: Place<Self::Archived>) {
        rkyv::munge::munge!(let ArchivedRecord { key: key_out, value: value_out } = out);
        self.0.resolve(key, key_out);
        self.1.resolve(value, value_out);
    }
}

impl<K, V, S> Serialize<S> for Borrowed<'_, K, V>
where
    S: rkyv::rancor::Fallible + ?Sized,
    K: Serialize<S>,
    V: Serialize<S>,
{
    fn serialize(&self, serializer: &mut S) -> std::result::Result<Self::Resolver, S::Error> {
        Ok((self.0.serialize(serializer)?, self.1.serialize(serializer)?))
    }
}

/// From so many bytes on room for an archive is made at once: growing would take three times as
/// much.
const LONG_BYTES: usize = 16 << 10;

/// Longest archive in bytes: references in an archive are signed 32-bit offsets. Only exports and
/// moves encode archives longer than a segment's records.
pub const ARCHIVE_BYTES_MAX: usize = i32::MAX as usize;

/// Refuses what owns more heap than an archive has room for.
fn check_heap(bytes: usize) -> Result<()> {
    if bytes <= ARCHIVE_BYTES_MAX { Ok(()) } else { Err(too_long(bytes)) }
}

/// Makes the error for a key or a value of `bytes`.
#[cold]
pub fn too_long(bytes: usize) -> Error {
    let message = format!(
        "a key and its value take {bytes} bytes; {ARCHIVE_BYTES_MAX} is the most that is encoded; \
         take, replace or remove them"
    );
    Error::new(ErrorKind::ValueTooLarge, message)
}

/// Encodes a record into `scratch`, replacing its contents. For long records `scratch` grows little
/// beyond the archive.
///
/// # Errors
/// [`ErrorKind::ValueTooLarge`] for more than [`ARCHIVE_BYTES_MAX`]; [`ErrorKind::Config`] if a
/// type's serializer fails.
pub fn encode<K: State, V: State>(scratch: &mut AlignedVec, key: &K, value: &V) -> Result<()> {
    scratch.clear();
    let bytes = key.heap_bytes() + value.heap_bytes() + size_of::<(K, V)>();
    check_heap(bytes)?;
    let mut buffer = std::mem::take(scratch);
    if bytes > LONG_BYTES && buffer.capacity() < bytes {
        buffer = AlignedVec::with_capacity(bytes + bytes / 64);
    }
    *scratch = to_bytes_in::<_, RkyvError>(&Borrowed(key, value), buffer)
        .map_err(|e| Error::new(ErrorKind::Config, "a value cannot be encoded").caused_by(e))?;
    Ok(())
}

/// Checks the bytes of a record and gives its archived form.
fn checked<K: State, V: State>(payload: &[u8]) -> Result<&ArchivedRecord<K, V>>
where
    ArchivedRecord<K, V>: for<'a> CheckBytes<HighValidator<'a, RkyvError>>,
{
    rkyv::access::<ArchivedRecord<K, V>, RkyvError>(payload)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a record does not decode").caused_by(e))
}

/// Decodes a record's key and value.
pub fn decode<K: State, V: State>(payload: &[u8]) -> Result<(K, V)> {
    let archived = checked::<K, V>(payload)?;
    let failed =
        |e: RkyvError| Error::new(ErrorKind::Corrupt, "a record does not decode").caused_by(e);
    let key = rkyv::deserialize::<K, RkyvError>(&archived.key).map_err(failed)?;
    let value = rkyv::deserialize::<V, RkyvError>(&archived.value).map_err(failed)?;
    Ok((key, value))
}

/// Encodes one key or value alone into `scratch`, replacing its contents.
pub fn encode_one<T: State>(scratch: &mut AlignedVec, one: &T) -> Result<()> {
    with_arena(|arena| encode_one_in(arena, scratch, one))
}

/// [`encode_one`] with memory for what it takes meanwhile.
pub(crate) fn encode_one_in<T: State>(
    arena: &mut Arena,
    scratch: &mut AlignedVec,
    one: &T,
) -> Result<()> {
    scratch.clear();
    let bytes = one.heap_bytes() + size_of::<T>();
    check_heap(bytes)?;
    let mut buffer = std::mem::take(scratch);
    if bytes > LONG_BYTES && buffer.capacity() < bytes {
        buffer = AlignedVec::with_capacity(bytes + bytes / 64);
    }
    *scratch = to_bytes_in_with_alloc::<_, _, RkyvError>(one, buffer, arena.acquire())
        .map_err(|e| Error::new(ErrorKind::Config, "a value cannot be encoded").caused_by(e))?;
    Ok(())
}

/// Decodes the bytes of [`encode_one`].
pub fn decode_one<T: State>(bytes: &[u8]) -> Result<T> {
    rkyv::from_bytes::<T, RkyvError>(bytes)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a key or value does not decode").caused_by(e))
}

/// Decodes only a record's key.
pub fn decode_key<K: State, V: State>(payload: &[u8]) -> Result<K> {
    let archived = checked::<K, V>(payload)?;
    rkyv::deserialize::<K, RkyvError>(&archived.key)
        .map_err(|e| Error::new(ErrorKind::Corrupt, "a key does not decode").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let mut scratch = AlignedVec::new();
        let value = vec![String::from("a"), "long enough to be out of line".repeat(3)];
        encode(&mut scratch, &7u64, &value).unwrap();
        assert_eq!(decode::<u64, Vec<String>>(&scratch).unwrap(), (7, value));
        assert_eq!(decode_key::<u64, Vec<String>>(&scratch).unwrap(), 7);
        encode(&mut scratch, &String::from("k"), &3u8).unwrap();
        assert_eq!(decode::<String, u8>(&scratch).unwrap(), ("k".into(), 3));
    }

    #[test]
    fn keys_and_values_round_trip_alone() {
        let mut scratch = AlignedVec::new();
        encode_one(&mut scratch, &String::from("long enough to be out of line")).unwrap();
        assert_eq!(decode_one::<String>(&scratch).unwrap(), "long enough to be out of line");
        encode_one(&mut scratch, &()).unwrap();
        decode_one::<()>(&scratch).unwrap();
        assert_eq!(decode_one::<u64>(&scratch).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn impossible_bytes_are_errors() {
        assert_eq!(decode::<u64, bool>(&[9; 3]).unwrap_err().kind(), ErrorKind::Corrupt);
        let mut scratch = AlignedVec::new();
        encode(&mut scratch, &7u64, &true).unwrap();
        scratch[8] = 7;
        assert_eq!(decode::<u64, bool>(&scratch).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
