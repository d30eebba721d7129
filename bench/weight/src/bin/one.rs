//! A program with one map.

use alluvium::{MIB, Result, Store};
use alluvium_weight::exercise;

fn main() -> Result<()> {
    let store = Store::builder(alluvium_weight::directory()).memory(16 * MIB).open()?;
    println!("{}", exercise(&store, "counters", 1u64, 7u64)?);
    println!("{:?}", store.checkpoint(1)?);
    Ok(())
}
