//! The stores a user would pick instead, one file each. One that is not installed, or was left out,
//! is a row that says so.

mod berkeley;
mod bf_tree;
mod cobble;
mod faster;
mod faster_rs;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb_unsafe;
#[cfg(any(have_rocksdb, have_berkeley, have_faster))]
mod native_unsafe;
#[cfg(feature = "redb")]
mod redb_unsafe;
mod redis;
mod rocksdb;

use alluvium_gadget::Result;
use alluvium_gadget::engine::{Engine, Kind, Open, built_in};
use alluvium_gadget::operator::{Name, Options};

/// Writes after which a transaction ends, in stores that have nothing but transactions.
#[cfg(any(feature = "redb", feature = "lmdb"))]
const WRITES_A_TRANSACTION: u32 = 100_000;

/// All engines: the built-in ones and the peers.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = built_in();
    #[cfg(feature = "redb")]
    kinds.extend(redb_unsafe::kinds());
    #[cfg(not(feature = "redb"))]
    kinds.push(left_out("redb"));
    #[cfg(feature = "fjall")]
    kinds.extend(fjall::kinds());
    #[cfg(not(feature = "fjall"))]
    kinds.push(left_out("fjall"));
    #[cfg(feature = "lmdb")]
    kinds.extend(lmdb_unsafe::kinds());
    #[cfg(not(feature = "lmdb"))]
    kinds.push(left_out("lmdb"));
    kinds.extend(rocksdb::kinds());
    kinds.extend(berkeley::kinds());
    kinds.extend(faster::kinds());
    kinds.extend(faster_rs::kinds());
    kinds.extend(cobble::kinds());
    kinds.extend(bf_tree::kinds());
    kinds.extend(redis::kinds());
    kinds
}

#[cfg(not(all(feature = "redb", feature = "fjall", feature = "lmdb")))]
fn left_out(name: &'static str) -> Kind {
    Kind::missing(name, "left out when this was built; build with its feature")
}

/// A peer that writes to storage and has at least so many MiB of memory.
#[allow(dead_code, reason = "without any peer nobody calls it")]
fn kind(
    name: &'static str,
    version: String,
    note: &'static str,
    mib_min: u64,
    open: fn(&Open) -> Result<Box<dyn Engine>>,
) -> Kind {
    let refuses: fn(Name, &Options) -> Option<&'static str> = |_, _| None;
    let (updates, memory_min, open) = (false, mib_min << 20, Ok(open));
    // LMDB opens a file once in a process, and nothing makes the rows of the others durable.
    let recovers =
        !matches!(name, "lmdb" | "faster" | "faster-rs" | "cobble" | "bf-tree" | "redis");
    let adds = None;
    Kind {
        name,
        version,
        note,
        in_memory: false,
        updates,
        recovers,
        memory_min,
        open,
        adds,
        refuses,
    }
}

/// The version of a crate, as the lock file has it.
#[allow(dead_code, reason = "without any peer nobody calls it")]
fn version_of(name: &str) -> String {
    let name = if name == "lmdb" { "heed" } else { name };
    let lock = include_str!("../Cargo.lock");
    let after = lock.split(&format!("name = \"{name}\"\nversion = \"")).nth(1);
    let version = after.and_then(|text| text.split('"').next()).unwrap_or("unknown");
    if name == "heed" { format!("heed {version}") } else { version.to_owned() }
}
