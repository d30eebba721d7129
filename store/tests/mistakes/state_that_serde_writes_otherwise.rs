//! Attributes of serde's with which a type writes something else than it reads.

#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
#[state(serde)]
enum Skipping {
    A,
    #[serde(skip)]
    B,
    C,
}

#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
#[state(serde)]
struct Shortened {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maybe: Option<u8>,
}

#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
#[state(serde)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
}

#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]
#[state(serde, trusted)]
struct Cached {
    #[serde(skip)]
    length: Option<u64>,
    text: String,
}

fn main() {}
