//! A program that opens a store and no state.

use alluvium::{MIB, Result, Store};

fn main() -> Result<()> {
    let store = Store::builder(alluvium_weight::directory()).memory(16 * MIB).open()?;
    println!("{:?}", store.checkpoint(1)?);
    Ok(())
}
