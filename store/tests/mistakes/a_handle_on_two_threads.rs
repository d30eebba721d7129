//! A state has one writer.

fn share(mut counts: alluvium::Count<u64>) {
    std::thread::scope(|scope| {
        scope.spawn(|| counts.add(&1, 1));
    });
}

fn main() {}
