//! The commonest mistake: a plain struct as a value, without `#[derive(State)]`.

struct Price {
    cents: i64,
}

fn open(store: &alluvium::Store) -> alluvium::Result<()> {
    let mut prices = store.map::<u64, Price>("prices").open()?;
    prices.update(&7, || Price { cents: 1 }, |price| price.cents += 1)
}

fn main() {}
