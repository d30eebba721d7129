//! A borrowed value is gone before the state changes.

fn change(map: &mut alluvium::Map<u64, u64>) -> alluvium::Result<()> {
    let seen = map.get(&1)?;
    map.put(2, 3)?;
    drop(seen);
    Ok(())
}

fn main() {}
