//! The portable hash of keys, and key groups.
//!
//! A key's hash is part of the file format and decides which worker owns the key. Its algorithm is
//! therefore ours, versioned ([`HASH_VERSION`]) and pinned by test vectors: `std::hash::Hash`
//! differs between machines and releases. Integers take one folded multiplication; bytes and
//! strings XXH3 (64 bits, seed 0); composites fold their parts in order; enums start with the
//! variant's index. `usize` and `isize` have no hash, because they differ between machines. Floats
//! have none, because they are not `Eq`.
//!
//! The top 16 bits of the hash choose the [`KeyGroup`]. The layouts' indexes use the bits that
//! differ within the key groups they own.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Wrapping};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Version of the key hash. A directory with another version is refused.
pub const HASH_VERSION: u32 = 1;

/// A portable 64-bit hash of a key, or of a borrowed form of it.
///
/// `a == b` implies `a.key_hash() == b.key_hash()`, also between an owned key and its borrowed form
/// (`String` and `str`, `Vec<u8>` and `[u8]`).
///
/// ```
/// use alluvium_pagestore::KeyHash;
///
/// assert_eq!("be".key_hash(), "be".to_owned().key_hash());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key: it has no portable hash",
    label = "`KeyHash` is not implemented for `{Self}`",
    note = "on a type of yours, `#[derive(alluvium::KeyHash)]` implements it, beside `State` and `Eq`",
    note = "`usize`, `isize` and floats have none: they differ between machines, or are not `Eq`"
)]
pub trait KeyHash {
    /// Returns the hash. Cost: about 1 ns for integers.
    fn key_hash(&self) -> u64;
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// Folds the 128-bit product of `a` and `b` to 64 bits.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hashes one 64-bit word.
#[inline(always)]
pub const fn hash_word(word: u64) -> u64 {
    fold(word ^ SEED, MULTIPLIER).wrapping_mul(SEED)
}

/// Hashes bytes.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Combines the hash of the parts so far with the hash of the next part; order matters.
#[inline(always)]
pub const fn combine(hash: u64, next: u64) -> u64 {
    hash_word(hash.rotate_left(23) ^ next)
}

macro_rules! words {
    ($($t:ty),* $(,)?) => {$(
        impl KeyHash for $t {
            #[inline(always)]
            #[allow(clippy::cast_sign_loss)]
            fn key_hash(&self) -> u64 { hash_word(*self as u64) }
        }
    )*};
}
words!(u8, u16, u32, u64, i8, i16, i32, i64, bool, char);

impl KeyHash for u128 {
    #[inline]
    fn key_hash(&self) -> u64 {
        combine(hash_word(*self as u64), hash_word((*self >> 64) as u64))
    }
}

/// Types whose hash is that of a value of another type.
macro_rules! as_other {
    ($($t:ty: $value:ident => $other:expr),* $(,)?) => {$(
        impl KeyHash for $t {
            #[inline]
            fn key_hash(&self) -> u64 { let $value = self; $other.key_hash() }
        }
    )*};
}
as_other!(
    crate::Time: t => t.0,
    (): _unit => 0u64,
    i128: i => *i as u128,
    NonZero<u8>: n => n.get(), NonZero<u16>: n => n.get(), NonZero<u32>: n => n.get(),
    NonZero<u64>: n => n.get(), NonZero<u128>: n => n.get(),
    NonZero<i8>: n => n.get(), NonZero<i16>: n => n.get(), NonZero<i32>: n => n.get(),
    NonZero<i64>: n => n.get(), NonZero<i128>: n => n.get(),
    Duration: d => (d.as_secs(), d.subsec_nanos()),
    Ipv4Addr: ip => ip.to_bits(),
    Ipv6Addr: ip => ip.to_bits(),
    SocketAddrV4: at => (*at.ip(), at.port()),
    SocketAddrV6: at => (*at.ip(), at.port(), at.flowinfo(), at.scope_id()),
    String: s => s.as_str(),
    Vec<u8>: bytes => bytes.as_slice(),
);

impl<T: ?Sized> KeyHash for PhantomData<T> {
    #[inline(always)]
    fn key_hash(&self) -> u64 {
        ().key_hash()
    }
}

impl<T: KeyHash + ?Sized> KeyHash for &T {
    #[inline(always)]
    fn key_hash(&self) -> u64 {
        (**self).key_hash()
    }
}

impl<T: KeyHash + ?Sized> KeyHash for Box<T> {
    #[inline]
    fn key_hash(&self) -> u64 {
        (**self).key_hash()
    }
}

impl<T: KeyHash> KeyHash for Wrapping<T> {
    #[inline(always)]
    fn key_hash(&self) -> u64 {
        self.0.key_hash()
    }
}

impl<T: KeyHash> KeyHash for Option<T> {
    #[inline]
    fn key_hash(&self) -> u64 {
        match self {
            None => hash_word(0),
            Some(value) => combine(hash_word(1), value.key_hash()),
        }
    }
}

impl<T: KeyHash, E: KeyHash> KeyHash for Result<T, E> {
    #[inline]
    fn key_hash(&self) -> u64 {
        match self {
            Ok(value) => combine(hash_word(0), value.key_hash()),
            Err(error) => combine(hash_word(1), error.key_hash()),
        }
    }
}

impl KeyHash for IpAddr {
    #[inline]
    fn key_hash(&self) -> u64 {
        match self {
            IpAddr::V4(ip) => combine(hash_word(0), ip.key_hash()),
            IpAddr::V6(ip) => combine(hash_word(1), ip.key_hash()),
        }
    }
}

impl KeyHash for SocketAddr {
    #[inline]
    fn key_hash(&self) -> u64 {
        match self {
            SocketAddr::V4(at) => combine(hash_word(0), at.key_hash()),
            SocketAddr::V6(at) => combine(hash_word(1), at.key_hash()),
        }
    }
}

impl KeyHash for str {
    #[inline]
    fn key_hash(&self) -> u64 {
        hash_bytes(self.as_bytes())
    }
}

impl KeyHash for [u8] {
    #[inline]
    fn key_hash(&self) -> u64 {
        hash_bytes(self)
    }
}

impl<const N: usize> KeyHash for [u8; N] {
    #[inline]
    fn key_hash(&self) -> u64 {
        hash_bytes(self)
    }
}

/// Arrays of words hash as tuples do; those of bytes above as slices of bytes do, and must.
macro_rules! arrays {
    ($($t:ty),* $(,)?) => {$(
        impl<const N: usize> KeyHash for [$t; N] {
            #[inline]
            fn key_hash(&self) -> u64 {
                self.iter().fold(SEED, |hash, part| combine(hash, part.key_hash()))
            }
        }
    )*};
}
arrays!(u16, u32, u64, u128, i8, i16, i32, i64, i128, bool, char, String);

macro_rules! tuples {
    ($(($($t:ident $i:tt),+)),* $(,)?) => {$(
        impl<$($t: KeyHash),+> KeyHash for ($($t,)+) {
            #[inline]
            fn key_hash(&self) -> u64 {
                let mut hash = SEED;
                $(hash = combine(hash, self.$i.key_hash());)+
                hash
            }
        }
    )*};
}
tuples!(
    (A 0),
    (A 0, B 1),
    (A 0, B 1, C 2),
    (A 0, B 1, C 2, D 3),
    (A 0, B 1, C 2, D 3, E 4),
    (A 0, B 1, C 2, D 3, E 4, F 5),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7),
);

/// A key group: the smallest set of keys that is assigned, checkpointed and moved together.
///
/// ```
/// use alluvium_pagestore::{KeyGroup, KeyHash};
///
/// let group = KeyGroup::of("be".key_hash(), 256);
/// assert!(group.owner(256, 4) < 4);
/// assert!(group.hashes(256).contains(&"be".key_hash()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyGroup(pub u16);

impl KeyGroup {
    /// Returns the group, below `groups`, of a key with this hash.
    #[inline]
    pub const fn of(hash: u64, groups: u16) -> KeyGroup {
        KeyGroup((((hash >> 48) * groups as u64) >> 16) as u16)
    }

    /// Returns the hashes of this group's keys, if there are `groups` groups.
    pub fn hashes(self, groups: u16) -> RangeInclusive<u64> {
        let first = |group: u64| (group << 16).div_ceil(u64::from(groups));
        let (lo, hi) = (first(u64::from(self.0)), first(u64::from(self.0) + 1));
        lo << 48..=(hi << 48).wrapping_sub(1)
    }

    /// Returns the worker, below `peers`, that owns this group: contiguous ranges, stable for a
    /// given number of peers.
    #[inline]
    pub const fn owner(self, groups: u16, peers: usize) -> usize {
        (self.0 as usize * peers) / groups as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These values are part of the format: a change here needs a new [`HASH_VERSION`].
    #[test]
    fn hashes_are_pinned() {
        let vectors = [
            (0u64.key_hash(), PINS[0]),
            (1u64.key_hash(), PINS[1]),
            (u64::MAX.key_hash(), PINS[2]),
            ((-1i32).key_hash(), PINS[3]),
            ("".key_hash(), PINS[4]),
            ("alluvium".key_hash(), PINS[5]),
            ((7u32, String::from("a")).key_hash(), PINS[6]),
            (u128::MAX.key_hash(), PINS[7]),
            (None::<u8>.key_hash(), PINS[8]),
            (Some(7u8).key_hash(), PINS[9]),
            (Err::<(), _>("x").key_hash(), PINS[10]),
            (Duration::new(1, 2).key_hash(), PINS[11]),
            (IpAddr::from([127, 0, 0, 1]).key_hash(), PINS[12]),
            (IpAddr::from(1u128.to_be_bytes()).key_hash(), PINS[13]),
            ([1i64, -1].key_hash(), PINS[14]),
            ((1u8, 2u8, 3u8, 4u8, 5u8, 6u8, 7u8, 8u8).key_hash(), PINS[15]),
            (SocketAddr::from(([127, 0, 0, 1], 80)).key_hash(), PINS[16]),
            (SocketAddr::from((1u128.to_be_bytes(), 80)).key_hash(), PINS[17]),
        ];
        for (i, (found, pinned)) in vectors.iter().enumerate() {
            assert_eq!(found, pinned, "vector {i}: {found:#x}");
        }
    }

    const PINS: [u64; 18] = [
        0xab24_5cd8_c11a_92f9,
        0x6f85_2b25_107d_7909,
        0xc436_39ff_17e7_459d,
        0xc436_39ff_17e7_459d,
        0x2d06_8005_38d3_94c2,
        0xd856_bd4f_27d7_f939,
        0xea38_a986_895e_3fe3,
        0x39e5_5235_0869_e187,
        0xab24_5cd8_c11a_92f9,
        0x9e6c_6926_4741_3b68,
        0x95d3_fe9d_f79f_4b03,
        0xb5e4_37e1_ebfa_e5b5,
        0x0266_5e28_d370_a2cd,
        0xfce1_682d_cc06_d521,
        0x2cfc_f2b2_710d_a891,
        0x38e3_c44b_8e86_38d9,
        0x4eec_4341_0037_0edb,
        0x21d8_fc90_9e39_39bc,
    ];

    #[test]
    fn socket_addresses_hash_as_their_parts() {
        let v4 = SocketAddr::from(([127, 0, 0, 1], 80));
        let by_hand = combine(hash_word(0), (Ipv4Addr::LOCALHOST, 80u16).key_hash());
        assert_eq!(v4.key_hash(), by_hand);
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 5, 6);
        let parts = (Ipv6Addr::LOCALHOST, 80u16, 5u32, 6u32);
        assert_eq!(SocketAddr::V6(v6).key_hash(), combine(hash_word(1), parts.key_hash()));
    }

    #[test]
    fn owned_and_borrowed_forms_agree() {
        assert_eq!("x".key_hash(), String::from("x").key_hash());
        assert_eq!([1u8, 2][..].key_hash(), vec![1u8, 2].key_hash());
        assert_eq!([1u8, 2].key_hash(), vec![1u8, 2].key_hash());
        assert_eq!("x".key_hash(), Box::<str>::from("x").key_hash());
        assert_eq!([1u8, 2].key_hash(), Box::<[u8]>::from([1, 2]).key_hash());
        assert_eq!([1u64, 2].key_hash(), (1u64, 2u64).key_hash());
        assert_eq!(<Box<u8> as KeyHash>::key_hash(&Box::new(3)), <&u8>::key_hash(&&3));
        assert_eq!(NonZero::<u32>::MIN.key_hash(), 1u64.key_hash());
    }

    #[test]
    fn groups_are_even_and_owners_contiguous() {
        let mut counts = [0u32; 256];
        for i in 0..256_000u64 {
            counts[KeyGroup::of(i.key_hash(), 256).0 as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (800..1200).contains(&c)), "{counts:?}");
        for peers in 1..=5 {
            let owners: Vec<_> = (0..256).map(|g| KeyGroup(g).owner(256, peers)).collect();
            assert!(owners.is_sorted() && owners[255] == peers - 1 && owners[0] == 0);
        }
    }
}
