//! A program with ten map types, two of them with strings and vectors.

use alluvium::{MIB, Result, State, Store};
use alluvium_weight::exercise;

#[derive(Clone, Debug, PartialEq, State, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Bid {
    auction: u64,
    price: i64,
    bidder: u32,
}

#[derive(Clone, Debug, PartialEq, State, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Session {
    first: i64,
    last: i64,
    pages: Vec<u32>,
    agent: String,
}

fn main() -> Result<()> {
    let store = Store::builder(alluvium_weight::directory()).memory(64 * MIB).open()?;
    let bid = Bid { auction: 1, price: 2, bidder: 3 };
    let session = Session { first: 1, last: 2, pages: vec![3, 4], agent: "agent".to_owned() };
    let found = [
        exercise(&store, "counters", 1u64, 7u64)?,
        exercise(&store, "balances", 1u64, -7i64)?,
        exercise(&store, "small", 1u32, 7u32)?,
        exercise(&store, "pairs", 1u64, (7u64, 8u64))?,
        exercise(&store, "by pair", (1u64, 2u32), 7u64)?,
        exercise(&store, "sums", 1u64, [7u64; 4])?,
        exercise(&store, "flags", 1u64, true)?,
        exercise(&store, "bids", 1u64, bid)?,
        exercise(&store, "words", "word".to_owned(), vec![7u64, 8])?,
        exercise(&store, "sessions", "user".to_owned(), session)?,
    ];
    println!("{found:?}");
    println!("{:?}", store.checkpoint(1)?);
    Ok(())
}
