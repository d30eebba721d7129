//! The derive macros of Alluvium: `State` for what is kept, `KeyHash` for what is a key.
//!
//! The macros emit code only for the traits they name. rkyv's own derives stand beside them,
//! because a derive macro sees an item but cannot add derives to it, and an attribute macro that
//! could would hide from the reader that the type has an archived form. Both parse the same
//! `#[state(…)]`, see `options.rs`; what they emit is in `state.rs` and `key_hash.rs`.

mod fields;
mod kept;
mod key_hash;
mod options;
mod state;
mod stored;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Makes a type one that a store can keep: implements `HeapSize` (what the budget counts) and
/// `Schema` (what a checkpoint is checked against). With rkyv's derives and `Clone` beside it, the
/// type is a `State`:
///
/// ```
/// # mod alluvium { pub use alluvium_pagestore::*; pub use alluvium_derive::State; }
/// # use alluvium_pagestore::{HeapSize, description_of};
/// use alluvium::State;
///
/// #[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
/// # #[state(crate = alluvium_pagestore)]
/// #[state(version = 2)]
/// struct BestBid {
///     price: u64,
///     bidder: Option<String>,
/// }
/// # fn is_state<T: alluvium_pagestore::State>() {}
/// # is_state::<BestBid>();
/// assert_eq!(description_of::<BestBid>(), "BestBid@2{price:u64,bidder:Option<String>,}");
/// assert_eq!(BestBid { price: 7, bidder: None }.heap_bytes(), 0);
/// ```
///
/// rkyv's derives are written out because a derive macro cannot add derives to the item it is
/// given; they also need the crate `rkyv` among the user's dependencies.
///
/// Works for structs and enums, also generic ones: each type parameter that a field contains gets
/// the bound `HeapSize` or `Schema`. A type may contain itself (`Vec<Self>`); its description then
/// names it without its fields in the inner place.
///
/// # Schema
///
/// `Name@version{field:type,…}` for structs, fields of tuple structs being named `0`, `1`, …, and
/// `Name@version|Variant{field:type,…}|…|` for enums, `Variant=number` where a number is given. What
/// rkyv is told to store another way stands in `rkyv(…)(type)`. Renaming or reordering the type, a variant or
/// a field changes it, and so does changing the type of a field at any depth; a directory written
/// before is refused. Change the version where the meaning changes and nothing else does.
///
/// # By serde
///
/// `#[state(serde)]` stores the type by its serde traits instead of rkyv's, so that it needs no
/// rkyv derives, and its fields need `HeapSize` and `Schema` only. `Serde`, the wrapper for types of
/// others, says what that costs.
///
/// Attributes of serde's that make a type write something else than it reads are refused: on the
/// type, its variants and fields `skip`, `skip_serializing`, `skip_serializing_if`, `flatten`,
/// `untagged`, `tag`, `with`, `from`, `into` and all others but those that only name things, such as
/// `rename` and `default`. So is rkyv's `with = Skip`. A type by rkyv may have any of serde's
/// attributes, until it stands in one by serde: then the state does not open.
///
/// ```
/// # mod alluvium { pub use alluvium_pagestore::*; pub use alluvium_derive::State; }
/// # use alluvium_pagestore::description_of;
/// use alluvium::State;
///
/// #[derive(Clone, serde::Serialize, serde::Deserialize, State)]
/// # #[state(crate = alluvium_pagestore)]
/// #[state(serde)]
/// struct Upload {
///     file: std::path::PathBuf,
///     parts: Vec<u64>,
/// }
/// # fn is_state<T: alluvium_pagestore::State>() {}
/// # is_state::<Upload>();
/// assert_eq!(description_of::<Upload>(), "postcard-1(Upload@1{file:PathBuf,parts:Vec<u64>,})");
/// ```
///
/// # Attributes
///
/// - `#[state(version = N)]`: version in the schema, from 1, the default.
/// - `#[state(serde)]`: stored by serde.
/// - `#[state(trusted)]`: keeps attributes that are refused otherwise. It promises that each value
///   comes back as it was written, or as its owner wants it. The schema does not tell these
///   attributes: raise the version when they change.
/// - `#[state(crate = path)]`: where the traits are found, by default `::alluvium`.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    state::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Gives a type a portable hash, so that it can be a key: a key is `State`, `Eq` and `KeyHash`.
///
/// ```
/// # mod alluvium { pub use alluvium_pagestore::*; pub use alluvium_derive::{KeyHash, State}; }
/// use alluvium::{KeyHash, State};
///
/// #[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// #[derive(State, KeyHash)]
/// # #[state(crate = alluvium_pagestore)]
/// struct Seller {
///     country: [u8; 2],
///     id: u64,
/// }
/// # fn is_key<T: alluvium_pagestore::Key>() {}
/// # is_key::<Seller>();
/// ```
///
/// The hash is part of the file format. For a struct it is the hash of the first field, into which
/// the hashes of the others are folded in order with `combine`; so a struct of one field hashes as
/// that field does, costs nothing more, and may implement `Borrow` for it. For an enum the index of
/// the variant (`hash_word(0)` for the first) takes the place of the first hash; a struct without
/// fields hashes as `hash_word(0)`. Reordering fields or variants therefore changes it, and changes
/// the schema too. `Eq` must compare the same fields.
///
/// Takes the same `#[state(…)]` attributes as [`State`](macro@State); the version has no influence.
#[proc_macro_derive(KeyHash, attributes(state))]
pub fn derive_key_hash(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    key_hash::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}
