//! Stores values by serde: [postcard](https://postcard.jamesmunns.com/wire-format) bytes inside a
//! record's archive, for types without rkyv traits.
//!
//! A record stays one checked rkyv archive; a key or value by serde is a byte string in it. Pages,
//! checksums and the codec do not depend on serde, and key and value may differ in this. Postcard's
//! wire format is documented, stable within a major version and compact, and has no names or types
//! in the bytes.
//!
//! The bytes do not contain their type. The schema does: it includes [`SERDE_CODEC`] and the fields
//! from the type's own [`Schema`].
//!
//! Cost compared with rkyv: nothing in memory, where a value is native either way. Writing and
//! reading take a branch per byte of each number, while rkyv copies numbers and plain vectors. No
//! part can be read without decoding the whole value. The bytes are fewer, since small numbers are
//! short and nothing is aligned.

use std::fmt;
use std::ops::{Deref, DerefMut};

use postcard::ser_flavors::Flavor;
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::{Fallible, Source};
use rkyv::ser::Writer;
use rkyv::vec::{ArchivedVec, VecResolver};
use rkyv::{Archive, Place, Portable};
use serde::de::DeserializeOwned;

use crate::description_of;
use crate::hash::KeyHash;
use crate::heap_size::HeapSize;
use crate::schema::{Schema, describe_within_serde, has_no_order};

/// Prefix of the schema of a type stored by serde: the format of its bytes.
pub const SERDE_CODEC: &str = "postcard-1";

/// The archived form of every type stored by serde: its postcard bytes.
#[derive(Debug, Portable, CheckBytes)]
#[bytecheck(crate = rkyv::bytecheck)]
#[repr(transparent)]
pub struct SerdeBytes(ArchivedVec<u8>);

/// The position of a written value's bytes.
#[derive(Debug)]
pub struct SerdeResolver {
    position: usize,
    length: usize,
}

impl SerdeResolver {
    /// Writes a value's bytes. Cost: one pass over the value, into the serializer's buffer. Debug
    /// builds also read the bytes and write them again.
    ///
    /// # Errors
    /// If the value's `Serialize` fails. In debug builds also if its `Deserialize` does not read
    /// what it wrote, for instance with `#[serde(untagged)]`, `flatten` or `skip_serializing_if`.
    pub fn write<T, S>(value: &T, serializer: &mut S) -> Result<Self, S::Error>
    where
        T: serde::Serialize + DeserializeOwned + Schema,
        S: Fallible<Error: Source> + Writer + ?Sized,
    {
        if cfg!(debug_assertions) {
            check_round_trip(value).map_err(S::Error::new)?;
        }
        let position = serializer.pos();
        let output = PostcardOutput { serializer, failed: None };
        let mut postcard = postcard::Serializer { output };
        let written = value.serialize(&mut postcard);
        let PostcardOutput { serializer, failed } = postcard.output;
        match (written, failed) {
            (_, Some(error)) => Err(error),
            (Err(error), None) => Err(S::Error::new(SerdeError::of::<T>("written", error))),
            (Ok(()), None) => Ok(Self { position, length: serializer.pos() - position }),
        }
    }

    /// Writes the archived form to `out`.
    pub fn resolve(self, out: Place<SerdeBytes>) {
        rkyv::munge::munge!(let SerdeBytes(bytes) = out);
        ArchivedVec::resolve_from_len(self.length, VecResolver::from_pos(self.position), bytes);
    }
}

impl SerdeBytes {
    /// Decodes the value. A damaged length allocates a bounded amount, because serde's own types
    /// request at most 1 MiB before elements exist. The depth of a recursive type is not bounded.
    ///
    /// # Errors
    /// If the bytes are not those of a `T`, or more bytes follow.
    pub fn read<T: DeserializeOwned, E: Source>(&self) -> Result<T, E> {
        decode(&self.0).map_err(E::new)
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SerdeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(SerdeError::of::<T>("read", format!("{} bytes are left", rest.len()))),
        Err(error) => Err(SerdeError::of::<T>("read", error)),
    }
}

/// Whether a value's bytes are read back, and to a value that has the same.
fn check_round_trip<T>(value: &T) -> Result<(), SerdeError>
where
    T: serde::Serialize + DeserializeOwned + Schema,
{
    let write =
        |value: &T| postcard::to_allocvec(value).map_err(|e| SerdeError::of::<T>("written", e));
    let bytes = write(value)?;
    let again = decode::<T>(&bytes).and_then(|value| write(&value));
    match again {
        Ok(again) if again == bytes || has_no_order(&description_of::<T>()) => Ok(()),
        Ok(_) => Err(SerdeError::of::<T>("read back", "it comes back as another value")),
        Err(error) => Err(SerdeError::of::<T>("read back", error)),
    }
}

/// Passes postcard's bytes on to rkyv's serializer and keeps its error.
struct PostcardOutput<'a, S: Fallible + ?Sized> {
    serializer: &'a mut S,
    failed: Option<S::Error>,
}

impl<S: Fallible + Writer + ?Sized> Flavor for PostcardOutput<'_, S> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.serializer.write(bytes).map_err(|error| {
            self.failed = Some(error);
            postcard::Error::SerializeBufferFull
        })
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Why a value by serde was not written or read.
#[derive(Debug)]
struct SerdeError(String);

impl SerdeError {
    fn of<T>(what: &str, why: impl fmt::Display) -> Self {
        Self(format!("a {} cannot be {what} by serde: {why}", std::any::type_name::<T>()))
    }
}

impl fmt::Display for SerdeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SerdeError {}

/// Appends the schema of a type stored by serde, whose own schema is `inner`.
#[doc(hidden)]
pub fn describe_by_serde(out: &mut String, inner: impl FnOnce(&mut String)) {
    out.push_str(SERDE_CODEC);
    out.push('(');
    describe_within_serde(out, inner);
    out.push(')');
}

/// Wraps a type to store it by serde.
///
/// For types that implement serde's traits, [`HeapSize`], [`Schema`] and `Clone`. For a type of
/// your own, prefer `#[state(serde)]`, which needs no wrapper:
///
/// ```
/// # use alluvium_pagestore::{Serde, State, description_of};
/// fn is_state<T: State>() {}
/// is_state::<Serde<std::path::PathBuf>>();
/// assert_eq!(description_of::<Serde<(u8, String)>>(), "postcard-1((u8,String,))");
/// ```
///
/// Not every such type can be read back. The bytes are positional: `#[serde(untagged)]`,
/// `#[serde(tag)]`, `flatten`, `skip_serializing_if` and everything else that needs a
/// self-describing format do not work. A skipped variant changes the numbers of the later ones on
/// reading. The derive macro refuses these attributes. Other types are tested when they are
/// written: every value in debug builds, some values per writer in release builds (see
/// [`Trials`](crate::Trials)). The schema does not cover a type's `Serialize` and `Deserialize`:
/// raise the version when they change.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize
)]
#[serde(transparent)]
pub struct Serde<T>(pub T);

impl<T> Deref for Serde<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Serde<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> From<T> for Serde<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: HeapSize> HeapSize for Serde<T> {
    const NO_HEAP: bool = T::NO_HEAP;

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl<T: Schema> Schema for Serde<T> {
    fn describe(out: &mut String) {
        describe_by_serde(out, T::describe);
    }
}

impl<T: KeyHash> KeyHash for Serde<T> {
    #[inline]
    fn key_hash(&self) -> u64 {
        self.0.key_hash()
    }
}

impl<T> Archive for Serde<T> {
    type Archived = SerdeBytes;
    type Resolver = SerdeResolver;

    fn resolve(&self, resolver: SerdeResolver, out: Place<SerdeBytes>) {
        resolver.resolve(out);
    }
}

impl<T, S> rkyv::Serialize<S> for Serde<T>
where
    T: serde::Serialize + DeserializeOwned + Schema,
    S: Fallible<Error: Source> + Writer + ?Sized,
{
    fn serialize(&self, serializer: &mut S) -> Result<SerdeResolver, S::Error> {
        SerdeResolver::write(&self.0, serializer)
    }
}

impl<T, D> rkyv::Deserialize<Serde<T>, D> for SerdeBytes
where
    T: DeserializeOwned,
    D: Fallible<Error: Source> + ?Sized,
{
    fn deserialize(&self, _: &mut D) -> Result<Serde<T>, D::Error> {
        self.read().map(Serde)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use rkyv::util::AlignedVec;

    use super::*;
    use crate::{ErrorKind, codec, description_of};

    type Shelf = Serde<BTreeMap<String, Vec<(u32, Option<bool>)>>>;

    fn shelf() -> impl Strategy<Value = Shelf> {
        let row = prop::collection::vec(any::<(u32, Option<bool>)>(), 0..4);
        prop::collection::btree_map(".{0,9}", row, 0..6).prop_map(Serde)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(key: u64, value in shelf(), plain: i128) {
            let mut bytes = AlignedVec::new();
            codec::encode(&mut bytes, &key, &value).unwrap();
            prop_assert_eq!(codec::decode::<u64, Shelf>(&bytes).unwrap(), (key, value.clone()));
            codec::encode(&mut bytes, &value, &plain).unwrap();
            prop_assert_eq!(codec::decode_key::<Shelf, i128>(&bytes).unwrap(), value);
        }

        #[test]
        fn changed_bytes_are_a_value_or_an_error(
            value in shelf(), at: prop::sample::Index, bits in 1u8..,
        ) {
            let mut bytes = AlignedVec::new();
            codec::encode(&mut bytes, &7u64, &value).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            if let Err(error) = codec::decode::<u64, Shelf>(&bytes) {
                prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            // A value that is read is written to as many bytes, or longer ones came in.
            if let Ok(value) = decode::<BTreeMap<String, Vec<(u32, Option<bool>)>>>(&bytes) {
                prop_assert!(postcard::to_allocvec(&value).unwrap().len() <= bytes.len());
            }
        }
    }

    #[test]
    fn too_few_and_too_many_bytes_are_refused() {
        let bytes = postcard::to_allocvec(&(300u32, "text")).unwrap();
        assert_eq!(decode::<(u32, String)>(&bytes).unwrap(), (300, "text".into()));
        for length in 0..bytes.len() {
            decode::<(u32, String)>(&bytes[..length]).unwrap_err();
        }
        let refused = decode::<u32>(&bytes).unwrap_err().to_string();
        assert_eq!(refused, "a u32 cannot be read by serde: 5 bytes are left");
        // A length that nothing follows does not take the memory that it names.
        decode::<Vec<u64>>(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]).unwrap_err();
    }

    /// The bytes are part of the format: another postcard must write the same.
    #[test]
    fn bytes_are_pinned() {
        let bytes = postcard::to_allocvec(&(300u32, -1i64, "ab", Some(true), [1u16, 2])).unwrap();
        assert_eq!(bytes, [0xAC, 2, 1, 2, b'a', b'b', 1, 1, 1, 2]);
    }

    #[derive(Clone, serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u64),
    }

    #[derive(Clone, serde::Serialize, serde::Deserialize)]
    struct Skipping {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maybe: Option<u8>,
        rest: u8,
    }

    /// Serde counts variants without those that are skipped when it reads, and with them when it
    /// writes.
    #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    enum Shifted {
        A,
        #[serde(skip)]
        #[expect(dead_code)]
        B,
        C,
        D,
    }

    macro_rules! named {
        ($($name:ident),*) => {$(
            impl Schema for $name {
                fn describe(out: &mut String) {
                    out.push_str(stringify!($name));
                }
            }
        )*};
    }
    named!(Untagged, Skipping, Shifted);

    #[test]
    fn what_could_not_be_read_back_is_told() {
        check_round_trip(&Shifted::A).unwrap();
        // As many bytes, and another value.
        let refused = check_round_trip(&Shifted::C).unwrap_err().to_string();
        assert!(refused.contains("comes back as another value"), "{refused}");
        check_round_trip(&Shifted::D).unwrap_err();
        let refused = check_round_trip(&Untagged::Number(7)).unwrap_err().to_string();
        assert!(refused.contains("Untagged cannot be read back by serde"), "{refused}");
        check_round_trip(&Skipping { maybe: Some(1), rest: 2 }).unwrap();
        check_round_trip(&Skipping { maybe: None, rest: 0 }).unwrap_err();
        check_round_trip(&Skipping { maybe: None, rest: 2 }).unwrap_err();
    }

    #[test]
    fn the_schema_names_codec_and_type() {
        assert_eq!(description_of::<Serde<Vec<u8>>>(), "postcard-1(Vec<u8>)");
        const { assert!(Serde::<u8>::NO_HEAP && !Serde::<String>::NO_HEAP) };
        assert_eq!(Serde(String::from("abc")).key_hash(), "abc".key_hash());
    }
}
