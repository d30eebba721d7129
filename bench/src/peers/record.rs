//! The values of `rmw`: a count alone, a few words with a count at their start, or strings.

use alluvium::State;

/// A value of the workload.
///
/// What [`touch`](Record::touch) makes of a value depends on nothing but the value, so that the
/// order of operations on different keys leaves no trace.
pub trait Record: State {
    /// The value that `key` starts with.
    fn new(key: u64) -> Self;

    /// One modification. The number returned is small (its top bit is never set in a run) and
    /// depends on the value.
    fn touch(&mut self) -> u64;

    /// A digest of the value.
    fn digest(&self) -> u64;

    /// Appends the value as bytes, for stores of bytes.
    fn encode(&self, bytes: &mut Vec<u8>);

    /// The value that [`encode`](Record::encode) wrote; `None` if it is none.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

impl Record for u64 {
    #[inline]
    fn new(_: u64) -> Self {
        0
    }

    #[inline]
    fn touch(&mut self) -> u64 {
        *self += 1;
        *self
    }

    fn digest(&self) -> u64 {
        *self
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}

/// A count, numbers that stay, and at the end the sum of the counts so far: the first and the
/// last cache line of the record change.
macro_rules! words {
    ($($words:literal),*) => {$(
        impl Record for [u64; $words] {
            #[inline]
            fn new(key: u64) -> Self {
                let mut value = [key; $words];
                (value[0], value[$words - 1]) = (0, 0);
                value
            }

            #[inline]
            fn touch(&mut self) -> u64 {
                self[0] += 1;
                self[$words - 1] = self[$words - 1].wrapping_add(self[0]);
                self[0]
            }

            fn digest(&self) -> u64 {
                self.iter().fold(0, |sum, &word| alluvium::types::combine(sum, word))
            }

            fn encode(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.iter().flat_map(|word| word.to_le_bytes()));
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let (words, rest) = bytes.as_chunks::<8>();
                let words: &[[u8; 8]; $words] = words.try_into().ok()?;
                rest.is_empty().then(|| words.map(u64::from_le_bytes))
            }
        }
    )*};
}
words!(7, 15, 31);

/// Four strings of 17 characters, the first of which is a decimal count that is raised in place.
impl Record for Vec<String> {
    fn new(key: u64) -> Self {
        ["0".repeat(17), format!("{key:017}"), format!("{:017x}", !key >> 4), "x".repeat(17)].into()
    }

    fn touch(&mut self) -> u64 {
        let count = &mut self[0];
        for at in (0..count.len()).rev() {
            match count.as_bytes()[at] {
                b'9' => count.replace_range(at..=at, "0"),
                digit => {
                    let mut next = [0; 4];
                    count.replace_range(at..=at, char::from(digit + 1).encode_utf8(&mut next));
                    return u64::from(digit);
                }
            }
        }
        0
    }

    fn digest(&self) -> u64 {
        let strings = self.iter().map(|string| alluvium::types::hash_bytes(string.as_bytes()));
        strings.fold(0, alluvium::types::combine)
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        for string in self {
            bytes.extend_from_slice(&(string.len() as u32).to_le_bytes());
            bytes.extend_from_slice(string.as_bytes());
        }
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut strings = Vec::with_capacity(4);
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let (string, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            strings.push(std::str::from_utf8(string).ok()?.to_owned());
            bytes = rest;
        }
        bytes.is_empty().then_some(strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_sizes_they_are_named_by_and_survive_as_bytes() {
        fn check<V: Record + PartialEq + std::fmt::Debug>() -> usize {
            let mut value = V::new(7);
            let fresh = value.digest();
            (0..123).for_each(|_| _ = value.touch());
            assert_ne!(value.digest(), fresh);
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            assert_eq!(V::decode(&bytes).as_ref(), Some(&value));
            assert_eq!(V::decode(&bytes[1..]), None);
            8 + size_of::<V>()
        }
        assert_eq!(check::<u64>(), 16);
        assert_eq!(check::<[u64; 7]>(), 64);
        assert_eq!(check::<[u64; 15]>(), 128);
        assert_eq!(check::<[u64; 31]>(), 256);
        check::<Vec<String>>();
        let mut strings = <Vec<String> as Record>::new(0);
        strings = <Vec<String> as Record>::decode(&{
            let mut bytes = Vec::new();
            (0..123).for_each(|_| _ = Record::touch(&mut strings));
            strings.encode(&mut bytes);
            bytes
        })
        .unwrap();
        assert_eq!(strings[0], "00000000000000123");
    }
}
