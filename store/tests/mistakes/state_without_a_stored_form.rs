//! State with neither rkyv's derives nor `#[state(serde)]`.

#[derive(Clone, alluvium::State)]
struct Row(u64);

fn open(store: &alluvium::Store) {
    let _ = store.value::<Row>("row");
}

fn main() {}
