//! State that does not derive `KeyHash` as a key.

#[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Id(u64);

fn open(store: &alluvium::Store) {
    let _ = store.count::<Id>("ids");
}

fn main() {}
