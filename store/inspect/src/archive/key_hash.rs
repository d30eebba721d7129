//! The hash of a decoded key, as the store computes it of the key itself.
//!
//! A type may have a hash of its own making, which no description tells. So what is computed here
//! is an assumption, that the hash is the one of the library or of its derive macro; who uses it
//! compares it with hashes that are stored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::str::FromStr;

use alluvium_pagestore::{KeyHash, combine, hash_word};

use super::description::{Type, TypeId, Types};
use super::value::ArchiveValue;

/// What tuples and arrays begin with.
const NONE: [u64; 0] = [];

impl Types {
    /// The hash of a value of a type; `None` where the value does not tell, or the type is no
    /// key's.
    pub fn key_hash(&self, id: TypeId, value: &ArchiveValue) -> Option<u64> {
        match (self.get(id), value) {
            (Type::Unit, _) => Some(().key_hash()),
            (Type::Bool, ArchiveValue::Bool(value)) => Some(value.key_hash()),
            (Type::Char, ArchiveValue::Text(text)) => Some(text.chars().next()?.key_hash()),
            (Type::Integer(16, true, _), ArchiveValue::Number(text)) => hash_of::<i128>(text),
            (Type::Integer(16, ..), ArchiveValue::Number(text)) => hash_of::<u128>(text),
            (Type::Integer(_, true, _), ArchiveValue::Number(text)) => hash_of::<i64>(text),
            (Type::Integer(..), ArchiveValue::Number(text)) => hash_of::<u64>(text),
            (Type::Text | Type::BoxedText, ArchiveValue::Text(text)) => Some(text.key_hash()),
            (Type::Ipv4, ArchiveValue::Text(text)) => hash_of::<Ipv4Addr>(text),
            (Type::Ipv6, ArchiveValue::Text(text)) => hash_of::<Ipv6Addr>(text),
            (Type::SocketV4, ArchiveValue::Text(text)) => hash_of::<SocketAddrV4>(text),
            (Type::SocketV6, ArchiveValue::Text(text)) => hash_of::<SocketAddrV6>(text),
            (Type::Untagged(_), ArchiveValue::Text(text)) => {
                hash_of::<IpAddr>(text).or_else(|| hash_of::<SocketAddr>(text))
            }
            (Type::Boxed(of), value) => self.key_hash(*of, value),
            (Type::List(of), ArchiveValue::List(values)) => self.hash_of_bytes(*of, values),
            // One byte may also be a tuple of one.
            (Type::Array(of, length), ArchiveValue::List(values)) => {
                match self.hash_of_bytes(*of, values) {
                    Some(hash) if *length != 1 => Some(hash),
                    _ => self.fold(Some(NONE.key_hash()), values.iter().map(|v| (*of, v))),
                }
            }
            // Of these two nothing is told apart.
            (Type::Option(of), _) if matches!(self.get(*of), Type::Unit | Type::Option(_)) => None,
            (Type::Option(_), ArchiveValue::Null) => Some(hash_word(0)),
            (Type::Option(of), value) => Some(combine(hash_word(1), self.key_hash(*of, value)?)),
            (Type::Struct(fields), value) => {
                let first = self.is_tuple(id).then(|| NONE.key_hash());
                self.fold(first, parts(fields, value)?)
            }
            (Type::Enum(variants), ArchiveValue::Text(name)) => {
                let at = variants.iter().position(|v| v.fields.is_empty() && v.name == *name)?;
                Some(hash_word(at as u64))
            }
            (Type::Enum(variants), ArchiveValue::Fields(named)) => {
                let [(name, value)] = &named[..] else { return None };
                let at = variants.iter().position(|v| v.name == *name)?;
                self.fold(Some(hash_word(at as u64)), parts(&variants[at].fields, value)?)
            }
            _ => None,
        }
    }

    /// The hash of a slice of bytes, if these are bytes.
    fn hash_of_bytes(&self, of: TypeId, values: &[ArchiveValue]) -> Option<u64> {
        if !matches!(self.get(of), Type::Integer(1, false, false)) {
            return None;
        }
        let byte = |value: &ArchiveValue| match value {
            ArchiveValue::Number(text) => text.parse().ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = values.iter().map(byte).collect();
        Some(bytes?.key_hash())
    }

    /// Folds the hashes of parts into one, or into that of the first.
    fn fold<'v>(
        &self,
        first: Option<u64>,
        parts: impl IntoIterator<Item = (TypeId, &'v ArchiveValue)>,
    ) -> Option<u64> {
        let mut hash = first;
        for (id, value) in parts {
            let next = self.key_hash(id, value)?;
            hash = Some(hash.map_or(next, |hash| combine(hash, next)));
        }
        hash
    }
}

/// The hash of a value that is told as its text.
fn hash_of<T: FromStr + KeyHash>(text: &str) -> Option<u64> {
    text.parse::<T>().ok().map(|value| value.key_hash())
}

/// The fields of a value, with their types: as serde writes them, a tuple of one is its field.
fn parts<'v>(
    fields: &[(String, TypeId)],
    value: &'v ArchiveValue,
) -> Option<Vec<(TypeId, &'v ArchiveValue)>> {
    let values: Vec<&ArchiveValue> = match (fields, value) {
        ([(name, _)], value) if name == "0" => vec![value],
        (_, ArchiveValue::List(values)) => values.iter().collect(),
        (_, ArchiveValue::Fields(values)) => values.iter().map(|(_, value)| value).collect(),
        _ => return None,
    };
    let ids = fields.iter().map(|(_, id)| *id);
    (values.len() == fields.len()).then(|| ids.zip(values).collect())
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;
    use std::time::Duration;

    use alluvium::State;
    use alluvium_pagestore::block::AlignedVec;
    use alluvium_pagestore::{Key, Time, codec, description_of};

    use super::super::Archive;
    use super::*;

    /// What is computed of a key that was stored and decoded.
    fn computed<K: Key>(key: &K) -> Option<u64> {
        let mut types = Types::default();
        let of = types.parse(&description_of::<K>());
        let unit = types.parse("()");
        let root = types.add_struct(&[("key", of), ("value", unit)]);
        let mut bytes = AlignedVec::new();
        codec::encode(&mut bytes, key, &()).unwrap();
        let Ok(ArchiveValue::Fields(fields)) = Archive::decode(&types, root, &bytes) else {
            panic!()
        };
        types.key_hash(of, &fields[0].1)
    }

    fn check<K: Key>(key: K) {
        assert_eq!(computed(&key), Some(key.key_hash()), "{}", description_of::<K>());
    }

    #[test]
    fn keys_of_the_library_have_the_hashes_that_they_have() {
        check(7u64);
        check(255u8);
        check(-3i8);
        check(i64::MIN);
        check(u128::MAX - 5);
        check(i128::MIN);
        check(NonZero::<u32>::MAX);
        check(Time(-9));
        check(Duration::new(3, 4));
        check(true);
        check('é');
        check(());
        check(String::from("a text that is longer than eight bytes"));
        check(Box::<str>::from("x"));
        check(vec![1u8, 2, 255]);
        check([1u8, 2, 3]);
        check([1i64, -1]);
        check([String::from("a")]);
        check((1u8, String::from("a"), -5i32));
        check(((1u8, 2u16), [3u32]));
        check((7u64,));
        check(Some(3u8));
        check(None::<(u8, u8)>);
        check(Ok::<u8, String>(3));
        check(Err::<u8, String>("why".into()));
        check(IpAddr::from([127, 0, 0, 1]));
        check(SocketAddr::from((1u128.to_be_bytes(), 80)));
        check(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9));
    }

    #[derive(
        Clone,
        Debug,
        PartialEq,
        Eq,
        State,
        alluvium::KeyHash,
        rkyv::Archive,
        rkyv::Serialize,
        rkyv::Deserialize
    )]
    struct Named {
        id: u32,
        name: String,
    }

    #[derive(
        Clone,
        Debug,
        PartialEq,
        Eq,
        State,
        alluvium::KeyHash,
        rkyv::Archive,
        rkyv::Serialize,
        rkyv::Deserialize
    )]
    struct Pair(u16, (i8, u8));

    #[derive(
        Clone,
        Debug,
        PartialEq,
        Eq,
        State,
        alluvium::KeyHash,
        rkyv::Archive,
        rkyv::Serialize,
        rkyv::Deserialize
    )]
    enum Kind {
        None,
        One(u64),
        Two(u8, Named),
        Fields { at: Pair },
    }

    #[test]
    fn types_of_the_user_have_the_hashes_that_are_derived() {
        let named = Named { id: 7, name: "seven".into() };
        let pair = Pair(3, (-1, 1));
        check(named.clone());
        check(pair.clone());
        check((pair.clone(), named.clone()));
        for kind in [Kind::None, Kind::One(9), Kind::Two(1, named), Kind::Fields { at: pair }] {
            check(kind);
        }
    }

    #[test]
    fn what_a_value_does_not_tell_has_none() {
        assert_eq!(computed(&Some(Some(3u8))), None);
        assert_eq!(computed(&Some(())), None);
    }
}
