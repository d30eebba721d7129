//! A field whose type says nothing of its heap and its stored form.

#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Money(i64);

#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Row {
    price: Money,
}

fn main() {}
