//! `#[state(serde)]` on a type that serde does not know.

#[derive(Clone, alluvium::State)]
#[state(serde)]
struct Row(u64);

fn main() {}
