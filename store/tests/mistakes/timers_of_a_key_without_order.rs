//! Timers fire in the order of time and key.

#[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[derive(alluvium::State, alluvium::KeyHash)]
struct Id(u64);

fn open(store: &alluvium::Store) {
    let _ = store.timers::<Id>("timers");
}

fn main() {}
