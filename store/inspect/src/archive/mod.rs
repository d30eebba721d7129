//! Archives of types that are known by their descriptions only.
//!
//! A checkpoint says of each state what [`Schema::describe`](alluvium_pagestore::Schema::describe)
//! says of its key and value. [`description`] parses that text into [`Types`], [`layout`] says how
//! rkyv 0.8 lays each type out, [`decode`] reads an archive by it into an [`ArchiveValue`], of which
//! [`key_hash`] computes what the store would.
//!
//! Nothing is guessed. What the text does not tell (types described by hand, fields with an
//! `#[rkyv(with = …)]`) has no layout, and neither has what contains it. And an archive has to fit
//! its type exactly: every byte belongs to one part of it or is padding.

mod decode;
mod description;
mod key_hash;
mod layout;
mod maps;
mod value;

pub use decode::{Archive, Undecodable};
pub use description::{Type, Types};
pub use value::ArchiveValue;
