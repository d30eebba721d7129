//! A store belongs to the thread that opened it.

fn main() {
    let store = alluvium::Store::in_memory().open().unwrap();
    std::thread::spawn(move || store.checkpoint(0));
}
