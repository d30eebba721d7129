//! Counts the words of its arguments, durably: run it twice.

use alluvium::{MIB, Result, Store};

fn main() -> Result<()> {
    let store =
        Store::builder(std::env::temp_dir().join("alluvium-counter")).memory(16 * MIB).open()?;
    let mut words = store.count::<String>("words").open()?;
    let line = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    for word in line.split_whitespace() {
        words.add(word, 1)?;
    }
    words.as_map().for_each(|word, count| {
        println!("{count:6} {word}");
        Ok(())
    })?;
    let runs = store.restored_position().unwrap_or(0) + 1;
    let checkpoint = store.checkpoint(runs)?;
    println!("{} words after {runs} runs", checkpoint.entries);
    Ok(())
}
