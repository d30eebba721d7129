//! State that shares a part with others.

use std::rc::Rc;

#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Row {
    id: u64,
    name: Rc<String>,
}

fn main() {}
