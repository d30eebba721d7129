//! An initial value of another type than the values'.

fn change(map: &mut alluvium::Map<u64, u64>) {
    let _ = map.update(&7, || String::new(), |count| *count += 1);
}

fn main() {}
