//! The chapters of the book in `docs/src`, so that their code is compiled and run as doc-tests. No
//! part of the library.

#[doc = include_str!("../../docs/src/index.md")]
mod index {}
#[doc = include_str!("../../docs/src/layouts.md")]
mod layouts {}
#[doc = include_str!("../../docs/src/sizing.md")]
mod sizing {}
#[doc = include_str!("../../docs/src/ttl.md")]
mod ttl {}
#[doc = include_str!("../../docs/src/from.md")]
mod from {}
#[doc = include_str!("../../docs/src/checkpoints.md")]
mod checkpoints {}
#[doc = include_str!("../../docs/src/moving.md")]
mod moving {}
#[doc = include_str!("../../docs/src/errors.md")]
mod errors {}
#[doc = include_str!("../../docs/src/benches.md")]
mod benches {}
#[doc = include_str!("../../docs/src/limits.md")]
mod limits {}
#[doc = include_str!("../../docs/src/external.md")]
mod external {}
#[doc = include_str!("../../docs/src/stores.md")]
mod stores {}
#[doc = include_str!("../../docs/src/glossary.md")]
mod glossary {}
#[doc = include_str!("../../README.md")]
mod readme {}
