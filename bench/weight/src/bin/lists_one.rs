//! A program with lists of one type.

use alluvium::{MIB, Result, Store};
use alluvium_weight::exercise_lists;

fn main() -> Result<()> {
    let store = Store::builder(alluvium_weight::directory()).memory(16 * MIB).open()?;
    println!("{}", exercise_lists(&store, "visits", 1u64, 7u64)?);
    println!("{:?}", store.checkpoint(1)?);
    Ok(())
}
