//! A field that rkyv does not write.

#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Row {
    id: u64,
    #[rkyv(with = rkyv::with::Skip)]
    count: u64,
}

fn main() {}
