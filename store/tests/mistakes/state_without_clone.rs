//! State that cannot be cloned, which a page that is being written needs.

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Row(u64);

fn open(store: &alluvium::Store) {
    let _ = store.map::<u64, Row>("rows").open();
}

fn main() {}
