//! A program with lists of ten types of elements, of two types of keys.

use alluvium::{MIB, Result, State, Store};
use alluvium_weight::exercise_lists;

#[derive(Clone, Debug, PartialEq, State, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Bid {
    auction: u64,
    price: i64,
    bidder: u32,
}

#[derive(Clone, Debug, PartialEq, State, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Page {
    first: i64,
    links: Vec<u32>,
    agent: String,
}

fn main() -> Result<()> {
    let store = Store::builder(alluvium_weight::directory()).memory(64 * MIB).open()?;
    let bid = Bid { auction: 1, price: 2, bidder: 3 };
    let page = Page { first: 1, links: vec![3, 4], agent: "agent".to_owned() };
    let word = || "word".to_owned();
    let found = [
        exercise_lists(&store, "visits", 1u64, 7u64)?,
        exercise_lists(&store, "changes", 1u64, -7i64)?,
        exercise_lists(&store, "small", 1u64, 7u32)?,
        exercise_lists(&store, "pairs", 1u64, (7u64, 8u64))?,
        exercise_lists(&store, "sums", 1u64, [7u64; 4])?,
        exercise_lists(&store, "flags", 1u64, true)?,
        exercise_lists(&store, "bids", 1u64, bid)?,
        exercise_lists(&store, "lines", 1u64, word())?,
        exercise_lists(&store, "places", word(), vec![7u64, 8])?,
        exercise_lists(&store, "pages", word(), page)?,
    ];
    println!("{found:?}");
    println!("{:?}", store.checkpoint(1)?);
    Ok(())
}
