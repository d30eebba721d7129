//! A look-up by another type than the key's.

fn look(map: &mut alluvium::Map<u64, u64>) {
    let _ = map.get(&7u32);
}

fn main() {}
