//! Windows over a stream of keyed numbers: what is asked, where the events come from, the plain
//! recomputation of the answers, our windows, and what others would use.
//!
//! COUNT and RANK are those of the HotStorage'20 testbed, whose windows hold all auctions: a stream
//! with one key is that, one with more asks the same of each key's windows. Each is an [`Engine`],
//! fed in order of arrival and told the watermark now and then; whoever answers late or early,
//! twice or not at all differs from [`recompute`].

mod answers;
mod by_counting;
mod by_hand;
mod engine;
mod oracle;
mod question;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sessions;
mod stored;
mod synthetic;
mod traces;
mod windows;

pub use answers::{Answer, digest_of};
pub use by_counting::ByCounting;
pub use by_hand::ByHand;
pub use engine::{Engine, Event, EventStream};
pub use oracle::recompute;
pub use question::Question;
#[cfg(feature = "rocksdb")]
pub use rocksdb::RocksDbWindows;
pub use stored::StoredWindows;
pub use synthetic::Synthetic;
pub use traces::Trace;
pub use windows::Windows;
