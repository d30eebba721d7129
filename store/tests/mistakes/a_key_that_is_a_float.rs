//! A key without equality and hash.

fn open(store: &alluvium::Store) {
    let _ = store.map::<f64, u64>("prices");
}

fn main() {}
