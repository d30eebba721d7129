//! State that borrows.

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]
struct Name(String);

#[derive(Clone, rkyv::Archive, rkyv::Serialize, alluvium::State)]
struct Row<'a> {
    #[rkyv(with = rkyv::with::Inline)]
    name: &'a Name,
}

fn main() {}
