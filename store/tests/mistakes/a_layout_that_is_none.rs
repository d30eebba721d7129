//! A name in the place of a layout.

fn open(store: &alluvium::Store) {
    let _ = store.map::<u64, u64>("counts").layout("heap").open();
}

fn main() {}
