//! The commonest mistake: a plain struct as a value, without `#[derive(State)]`.

struct Price {
    cents: i64,
}

fn open(store: &alluvium::Store) -> i64 {
    let _ = store.map::<u64, Price>("prices").open();
    Price { cents: 1 }.cents
}

fn main() {}
