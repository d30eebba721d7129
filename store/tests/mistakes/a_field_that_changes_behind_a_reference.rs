//! State with a part that changes while it is only read.

use std::cell::Cell;

#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
#[state(serde)]
struct Row {
    id: u64,
    seen: Cell<u64>,
}

fn main() {}
