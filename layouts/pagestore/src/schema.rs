//! Names and fingerprints of state types.
//!
//! A checkpoint stores, for each state, the text that [`Schema::describe`] gives for its key and
//! value types. Opening it with other types is refused, naming both texts.

use crate::hash::hash_bytes;

/// A description of a type that changes whenever its stored form does.
pub trait Schema {
    /// Appends the description: primitive names, `Name@version{field:type,…}` for structs.
    fn describe(out: &mut String);
}

/// The description of `T` as a string.
pub fn description_of<T: Schema + ?Sized>() -> String {
    let mut out = String::new();
    T::describe(&mut out);
    out
}

/// 64-bit fingerprint of a description.
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
);

macro_rules! wrappers {
    ($($t:ident),* $(,)?) => {$(
        impl<T: Schema> Schema for $t<T> {
            fn describe(out: &mut String) {
                out.push_str(concat!(stringify!($t), "<"));
                T::describe(out);
                out.push('>');
            }
        }
    )*};
}
wrappers!(Vec, Option, Box);

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
tuples!((A), (A, B), (A, B, C), (A, B, C, D), (A, B, C, D, E));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_nest() {
        assert_eq!(description_of::<Vec<(u64, Option<String>)>>(), "Vec<(u64,Option<String>,)>");
        assert_ne!(fingerprint("u64"), fingerprint("i64"));
    }
}
