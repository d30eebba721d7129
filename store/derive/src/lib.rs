//! The derive macros of Alluvium: `State` for values, `KeyHash` for keys.
//!
//! The macros emit code only for the traits they name. Users write rkyv's derives themselves: a
//! derive macro sees an item but cannot add derives to it. An attribute macro could, but would hide
//! from the reader that the type has an archived form. Both macros parse the same `#[state(…)]`,
//! see `options.rs`; `state.rs` and `key_hash.rs` emit the code.
//!
//! Examples stand where `alluvium` names the macros, and what these emit is tested in the page
//! store: tests of a macro's own crate would have the page store built once more.

mod fields;
mod kept;
mod key_hash;
mod options;
mod state;
mod stored;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements the traits that a store needs from a value: `HeapSize`, which the budget counts, and
/// `Schema`, which a checkpoint is checked against. With rkyv's derives and `Clone`, the type is a
/// `State`.
///
/// Write rkyv's derives yourself: a derive macro cannot add derives to its item. They need the
/// crate `rkyv` among your dependencies.
///
/// Works for structs and enums, also generic ones. Each type parameter in a field gets the bound
/// `HeapSize` or `Schema`. A type may contain itself (`Vec<Self>`); its description then names the
/// inner occurrence without fields.
///
/// # Schema
///
/// `Name@version{field:type,…}` for structs; the fields of tuple structs are `0`, `1`, ….
/// `Name@version|Variant{field:type,…}|…|` for enums, with `Variant=number` for an explicit number.
/// A field that rkyv stores in another way is `rkyv(…)(type)`. Renaming or reordering the type, a
/// variant or a field changes the schema, and so does changing a field's type at any depth. Opening
/// an older directory then fails. Raise the version if only the meaning changes.
///
/// # By serde
///
/// `#[state(serde)]` stores the type by its serde traits instead of rkyv's. It needs no rkyv
/// derives, and its fields need only `HeapSize` and `Schema`. For the limits of storing by serde
/// see `Serde`, the wrapper for foreign types.
///
/// The macro refuses serde attributes that make a type write something else than it reads. On the
/// type, its variants and fields these are `skip`, `skip_serializing`, `skip_serializing_if`,
/// `flatten`, `untagged`, `tag`, `with`, `from`, `into` and all others except those that only name
/// things, such as `rename` and `default`. It also refuses rkyv's `with = Skip`. A type stored by
/// rkyv may have any serde attributes; a type stored by serde must not contain it then, or the
/// state does not open.
///
/// # Attributes
///
/// - `#[state(version = N)]`: the version in the schema, from 1. Default: 1.
/// - `#[state(serde)]`: stores the type by serde.
/// - `#[state(trusted)]`: accepts attributes that are otherwise refused. With it you promise that
///   each value comes back as it was written, or as its owner wants it. The schema does not contain
///   these attributes: raise the version when they change.
/// - `#[state(crate = path)]`: the path of the traits. Default: `::alluvium`.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    state::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements a portable hash for keys. A key is `State`, `Eq` and `KeyHash`.
///
/// The hash is part of the file format. A struct's hash is the hash of its first field, combined in
/// order with those of the others by `combine`. A struct of one field therefore hashes as the field
/// does, at no further cost, and may implement `Borrow` for it. For an enum, the variant's index
/// comes first (`hash_word(0)` for the first variant). A struct without fields hashes as
/// `hash_word(0)`. Reordering fields or variants changes the hash, and the schema too. `Eq` must
/// compare the same fields.
///
/// Takes the same `#[state(…)]` attributes as [`State`](macro@State). The version does not change
/// the hash.
#[proc_macro_derive(KeyHash, attributes(state))]
pub fn derive_key_hash(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    key_hash::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}
