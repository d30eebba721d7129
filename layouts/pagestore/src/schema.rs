//! Names and fingerprints of state types.
//!
//! A checkpoint stores the text of [`Schema::describe`] for each state's key and value types.
//! Opening with other types fails with an error that names both texts.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CString, OsString};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Bound, Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::hash::hash_bytes;

/// A description of a type that changes whenever its stored form does.
///
/// A description written by hand must name each `HashMap<…>` or `HashSet<…>` in the type. Equal
/// values of such types have different bytes, which trials and canonical files take into account.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be state: its stored form has no description",
    label = "`Schema` is not implemented for `{Self}`",
    note = "on a type of yours, `#[derive(alluvium::State)]` implements it; by hand it is a name with a version"
)]
pub trait Schema {
    /// Appends the description: primitive names, `Name@version{field:type,…}` for structs,
    /// `Name@version|Variant{field:type,…}|…|` for enums.
    fn describe(out: &mut String);

    /// For the derive macro. Appends `head`, and then `body` unless an outer call is describing
    /// this type already: a type that contains itself has a finite description.
    #[doc(hidden)]
    fn describe_once(out: &mut String, head: &str, body: impl FnOnce(&mut String)) {
        out.push_str(head);
        // Types need not be 'static here, so their names stand for them.
        let name = std::any::type_name::<Self>();
        if OPEN.with_borrow(|open| open.contains(&name)) {
            return;
        }
        OPEN.with_borrow_mut(|open| open.push(name));
        body(out);
        OPEN.with_borrow_mut(|open| open.pop());
    }
}

thread_local! {
    /// Names of the types that are being described, outermost first.
    static OPEN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Returns the description of `T`.
pub fn description_of<T: Schema + ?Sized>() -> String {
    let mut out = String::new();
    T::describe(&mut out);
    out
}

/// Returns whether equal values of the described type may have different bytes: it contains a
/// `HashMap` or a `HashSet`, which have no order.
pub fn has_no_order(description: &str) -> bool {
    let is_in_a_name = |c: char| c.is_alphanumeric() || c == '_';
    let begins_a_name =
        |at: usize| !description[..at].chars().next_back().is_some_and(is_in_a_name);
    ["HashMap<", "HashSet<"]
        .iter()
        .any(|name| description.match_indices(name).any(|(at, _)| begins_a_name(at)))
}

thread_local! {
    /// How many types by serde are being described around the one at hand.
    static BY_SERDE: Cell<u32> = const { Cell::new(0) };
}

/// What stands before the attributes that make a type by serde write something else than it reads.
const REFUSED: &str = "#[serde(";

/// Appends what `inner` appends, which is stored by serde.
pub(crate) fn describe_within_serde(out: &mut String, inner: impl FnOnce(&mut String)) {
    BY_SERDE.set(BY_SERDE.get() + 1);
    inner(out);
    BY_SERDE.set(BY_SERDE.get() - 1);
}

/// For the derive macro. Appends the output of `inner`. Inside a type stored by serde, it puts the
/// type's attributes first, because they make the type write something else than it reads.
#[doc(hidden)]
pub fn describe_refused(out: &mut String, attributes: &str, inner: impl FnOnce(&mut String)) {
    if BY_SERDE.get() > 0 {
        out.push_str(REFUSED);
        out.push_str(attributes);
        out.push_str(")] ");
    }
    inner(out);
}

/// Finds a type in `description` that is stored by serde and has attributes that make it write
/// something else than it reads. Returns the type with these attributes.
pub fn refused_attributes(description: &str) -> Option<&str> {
    let found = &description[description.find(REFUSED)?..];
    Some(&found[..found.find('@').unwrap_or(found.len())])
}

/// Returns the 64-bit fingerprint of a description.
pub fn fingerprint(description: &str) -> u64 {
    hash_bytes(description.as_bytes())
}

macro_rules! names {
    ($($t:ty => $name:literal),* $(,)?) => {$(
        impl Schema for $t {
            fn describe(out: &mut String) { out.push_str($name); }
        }
    )*};
}
names!(
    () => "()", bool => "bool", char => "char", String => "String", crate::Time => "Time",
    u8 => "u8", u16 => "u16", u32 => "u32", u64 => "u64", u128 => "u128",
    i8 => "i8", i16 => "i16", i32 => "i32", i64 => "i64", i128 => "i128",
    usize => "usize", isize => "isize", f32 => "f32", f64 => "f64",
    NonZero<u8> => "NonZeroU8", NonZero<u16> => "NonZeroU16", NonZero<u32> => "NonZeroU32",
    NonZero<u64> => "NonZeroU64", NonZero<u128> => "NonZeroU128",
    NonZero<usize> => "NonZeroUsize",
    NonZero<i8> => "NonZeroI8", NonZero<i16> => "NonZeroI16", NonZero<i32> => "NonZeroI32",
    NonZero<i64> => "NonZeroI64", NonZero<i128> => "NonZeroI128",
    NonZero<isize> => "NonZeroIsize",
    Box<str> => "Box<str>", Duration => "Duration", SystemTime => "SystemTime",
    OsString => "OsString", PathBuf => "PathBuf", Box<Path> => "Box<Path>", CString => "CString",
    std::cmp::Ordering => "Ordering",
    Ipv4Addr => "Ipv4Addr", Ipv6Addr => "Ipv6Addr", IpAddr => "IpAddr",
    SocketAddrV4 => "SocketAddrV4", SocketAddrV6 => "SocketAddrV6", SocketAddr => "SocketAddr",
);

impl<T: ?Sized> Schema for PhantomData<T> {
    fn describe(out: &mut String) {
        out.push_str("PhantomData");
    }
}

/// `Name<A,B,…>` for the parameters that are stored; a hasher is not.
macro_rules! wrappers {
    ($($t:ident<$first:ident $(, $more:ident)*> $(+ $hasher:ident)?),* $(,)?) => {$(
        impl<$first: Schema $(, $more: Schema)* $(, $hasher)?> Schema
            for $t<$first $(, $more)* $(, $hasher)?>
        {
            fn describe(out: &mut String) {
                out.push_str(concat!(stringify!($t), "<"));
                $first::describe(out);
                $(out.push(','); $more::describe(out);)*
                out.push('>');
            }
        }
    )*};
}
wrappers!(
    Vec<T>, VecDeque<T>, BinaryHeap<T>, LinkedList<T>, Option<T>, Box<T>, Result<T, E>,
    Wrapping<T>, Saturating<T>, Reverse<T>, Bound<T>, Range<T>, RangeInclusive<T>, RangeFrom<T>,
    RangeTo<T>, RangeToInclusive<T>,
    BTreeMap<K, V>, BTreeSet<T>, HashMap<K, V> + S, HashSet<T> + S,
);

/// Stored as the owned form is.
impl<B: ToOwned<Owned: Schema> + ?Sized + 'static> Schema for Cow<'static, B> {
    fn describe(out: &mut String) {
        B::Owned::describe(out);
    }
}

impl<T: Schema> Schema for Box<[T]> {
    fn describe(out: &mut String) {
        out.push_str("Box<[");
        T::describe(out);
        out.push_str("]>");
    }
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    fn describe(out: &mut String) {
        out.push('[');
        T::describe(out);
        out.push_str(&format!(";{N}]"));
    }
}

macro_rules! tuples {
    ($(($($t:ident),+)),* $(,)?) => {$(
        impl<$($t: Schema),+> Schema for ($($t,)+) {
            fn describe(out: &mut String) {
                out.push('(');
                $($t::describe(out); out.push(',');)+
                out.push(')');
            }
        }
    )*};
}
tuples!(
    (A),
    (A, B),
    (A, B, C),
    (A, B, C, D),
    (A, B, C, D, E),
    (A, B, C, D, E, F),
    (A, B, C, D, E, F, G),
    (A, B, C, D, E, F, G, H),
    (A, B, C, D, E, F, G, H, I),
    (A, B, C, D, E, F, G, H, I, J),
    (A, B, C, D, E, F, G, H, I, J, K),
    (A, B, C, D, E, F, G, H, I, J, K, L),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_nest() {
        assert_eq!(description_of::<Vec<(u64, Option<String>)>>(), "Vec<(u64,Option<String>,)>");
        assert_ne!(fingerprint("u64"), fingerprint("i64"));
        assert_eq!(
            description_of::<HashMap<Box<str>, Result<Box<[NonZero<u8>]>, VecDeque<IpAddr>>>>(),
            "HashMap<Box<str>,Result<Box<[NonZeroU8]>,VecDeque<IpAddr>>>"
        );
    }

    #[test]
    fn contents_without_order_are_found() {
        fn found<T: Schema>() -> bool {
            has_no_order(&description_of::<T>())
        }
        assert!(found::<HashMap<u8, u8>>() && found::<(u8, Vec<Option<HashSet<u8>>>)>());
        assert!(found::<crate::Serde<HashSet<u8>>>());
        assert!(!found::<BTreeMap<u8, Vec<BTreeSet<u8>>>>());
        assert!(!has_no_order("MyHashMap<u8>") && !has_no_order("HashMap@1{0:u8,}"));
    }

    #[test]
    fn refused_attributes_are_found_within_serde_only() {
        struct Odd;
        impl Schema for Odd {
            fn describe(out: &mut String) {
                describe_refused(out, "skip", |out| out.push_str("Odd@1{a:u8,}"));
            }
        }
        assert_eq!(refused_attributes(&description_of::<Vec<Odd>>()), None);
        let by_serde = description_of::<(u8, crate::Serde<Vec<Odd>>)>();
        assert_eq!(refused_attributes(&by_serde), Some("#[serde(skip)] Odd"));
    }

    /// What rkyv keeps of each, checked on reading: a type described here but not kept would only
    /// fail in the user's crate.
    #[test]
    fn described_types_can_be_kept() {
        fn kept<T: crate::State>() {}
        kept::<(Box<str>, Box<[u32]>, VecDeque<String>, Duration, Ipv4Addr, Ipv6Addr, IpAddr)>();
        kept::<(BTreeMap<String, u8>, BTreeSet<u64>, HashMap<u64, String>, HashSet<String>)>();
        kept::<(NonZero<u8>, NonZero<i64>, Result<u8, String>, [Option<Box<u16>>; 3])>();
        kept::<(u8, i8, u16, i16, u32, i32, u64, (i64, u128, i128, f32, f64, bool, char, ()))>();
        kept::<(PhantomData<u8>, SocketAddr, SocketAddrV4, SocketAddrV6, CString)>();
        kept::<(Range<u64>, RangeInclusive<String>, RangeFrom<u8>, RangeTo<u8>, Bound<String>)>();
        kept::<(u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, String)>();
        // What rkyv does not know is kept by serde.
        use crate::Serde;
        kept::<(Serde<PathBuf>, Serde<OsString>, Serde<SystemTime>, Serde<Cow<'static, str>>)>();
        kept::<(Serde<BinaryHeap<u8>>, Serde<LinkedList<String>>, Serde<Reverse<String>>)>();
        kept::<(Serde<Wrapping<u8>>, Serde<Saturating<u64>>, Serde<RangeTo<u8>>, Serde<Box<Path>>)>(
        );
        fn key<T: crate::Key>() {}
        key::<(Box<str>, Box<[u8]>, Duration, Ipv4Addr, Ipv6Addr, IpAddr, NonZero<u32>)>();
        key::<(Option<u8>, Result<u8, String>, [u64; 3], i128, PhantomData<u8>)>();
    }
}
