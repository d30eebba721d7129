//! Values as bytes, and the answers that are made of them.
//!
//! An accumulator is pairs of a count and a sum, 16 bytes each, which add up: a merge appends one
//! more. An element is 16 bytes of an event and as many more as its size says. A key's sessions are
//! 24 bytes each.

use alluvium::types::{combine, hash_word};

use crate::access::{SessionOf, Trace};
use crate::event::{Event, Side};

/// A count and a sum.
pub type Sums = [u64; 2];

/// Adds up an accumulator's parts.
#[inline]
pub fn sums(value: &[u8]) -> Sums {
    value.as_chunks::<16>().0.iter().fold([0, 0], |[count, sum], part| {
        let [one, other] = words(part);
        [count.wrapping_add(one), sum.wrapping_add(other)]
    })
}

fn words(part: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*part);
    [both as u64, (both >> 64) as u64]
}

/// An accumulator as bytes.
#[inline]
pub fn sums_bytes([count, sum]: Sums) -> [u8; 16] {
    (u128::from(count) | u128::from(sum) << 64).to_le_bytes()
}

/// What a state keeps of an event, at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The event's amount.
    pub amount: u32,
    /// Its bytes, those of this among them.
    pub bytes: u16,
    /// Its stream.
    pub side: Side,
    /// Its place in the stream of events.
    pub place: u64,
}

impl Element {
    /// That of an event.
    pub fn of(event: &Event, place: u32) -> Self {
        let Event { amount, bytes, side, .. } = *event;
        Element { amount, bytes, side, place: place.into() }
    }

    /// The first 16 bytes as two words.
    pub fn head(&self) -> [u64; 2] {
        let side = self.side as u64;
        [u64::from(self.amount) | u64::from(self.bytes) << 32 | side << 48, self.place]
    }

    /// What [`head`](Self::head) gave.
    pub fn from_head([word, place]: [u64; 2]) -> Self {
        let side = if word >> 48 & 1 == 0 { Side::Left } else { Side::Right };
        Element { amount: word as u32, bytes: (word >> 32) as u16, side, place }
    }

    /// Appends the element.
    #[inline]
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&sums_bytes(self.head()));
        let rest = usize::from(self.bytes).saturating_sub(16);
        to.resize(to.len() + rest, self.place as u8);
    }
}

/// The elements of a list. A list that is cut off, or is none, ends early.
pub fn elements(mut list: &[u8]) -> impl Iterator<Item = Element> + '_ {
    std::iter::from_fn(move || {
        let (head, _) = list.split_first_chunk::<16>()?;
        let element = Element::from_head(words(head));
        list = list.get(usize::from(element.bytes).max(16)..).unwrap_or_default();
        Some(element)
    })
}

/// A session in the list of a key's sessions.
pub fn session_bytes(session: &SessionOf) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&session.start.to_le_bytes());
    bytes[8..16].copy_from_slice(&session.end.to_le_bytes());
    bytes[16..].copy_from_slice(&u64::from(session.key).to_le_bytes());
    bytes
}

/// What is made of the value of a window that fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Count and sum, of an accumulator.
    Sums,
    /// Count, sum and a digest of all elements, which does not depend on their order.
    Elements,
    /// Number of pairs of a left and a right element, and the sum of their products.
    Pairs,
}

/// Folds elements into what a shape tells of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Folding {
    counts: [u64; 2],
    sums: [u64; 2],
    digest: u64,
}

impl Folding {
    /// Takes one more.
    #[inline]
    pub fn add(&mut self, element: &Element) {
        let side = element.side as usize;
        self.counts[side] += 1;
        self.sums[side] += u64::from(element.amount);
        let [word, place] = element.head();
        self.digest = self.digest.wrapping_add(hash_word(word ^ place.rotate_left(20)));
    }

    /// Takes what another has.
    pub fn merge(&mut self, other: &Folding) {
        for side in 0..2 {
            self.counts[side] += other.counts[side];
            self.sums[side] += other.sums[side];
        }
        self.digest = self.digest.wrapping_add(other.digest);
    }

    /// What came out; `None` if there is nothing to tell.
    pub fn told(&self, shape: Shape) -> Option<[u64; 3]> {
        let ([left, right], [of_left, of_right]) = (self.counts, self.sums);
        match shape {
            Shape::Pairs => {
                let pairs = left * right;
                (pairs > 0).then(|| [pairs, of_left.wrapping_mul(of_right), 0])
            }
            Shape::Sums => (left + right > 0).then_some([left + right, of_left + of_right, 0]),
            Shape::Elements => {
                (left + right > 0).then_some([left + right, of_left + of_right, self.digest])
            }
        }
    }
}

impl Shape {
    /// What a value says; `None` if there is nothing to tell.
    pub fn told(self, value: &[u8]) -> Option<[u64; 3]> {
        if self == Shape::Sums {
            let [count, sum] = sums(value);
            return (count > 0).then_some([count, sum, 0]);
        }
        let mut folding = Folding::default();
        elements(value).for_each(|element| folding.add(&element));
        folding.told(self)
    }
}

/// What an event finds on the other side: the number of its partners and the sum of the products.
#[derive(Clone, Copy, Debug, Default)]
pub struct Partners([u64; 2]);

impl Partners {
    /// Joins `event` with an element.
    #[inline]
    pub fn add(&mut self, event: &Event, other: &Element) {
        self.0[0] += 1;
        self.0[1] += u64::from(event.amount) * u64::from(other.amount);
    }

    /// What came out; `None` without partners.
    pub fn told(&self) -> Option<[u64; 3]> {
        (self.0[0] > 0).then_some([self.0[0], self.0[1], 0])
    }
}

/// Answers, as their number and a digest that does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// How many there are.
    pub count: u64,
    /// The sum of their digests.
    pub digest: u64,
}

impl Answers {
    /// Takes an answer of `key`, at a window's start or an event's place, if there is one.
    #[inline]
    pub fn tell(&mut self, key: u64, at: i64, told: Option<[u64; 3]>) {
        if let Some([one, two, three]) = told {
            let digest = combine(hash_word(key), at as u64);
            let digest = combine(combine(combine(digest, one), two), three);
            self.count += 1;
            self.digest = self.digest.wrapping_add(digest);
        }
    }

    /// The same for a window of a trace.
    pub fn tell_window(&mut self, trace: &Trace, window: u32, told: Option<[u64; 3]>) {
        let window = &trace.windows[window as usize];
        self.tell(window.key, window.start, told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_several_sizes_are_read_as_they_were_written() {
        let mut list = Vec::new();
        let event =
            Event { key: 1, time: 2, amount: 7, bytes: 16, side: Side::Left, finishes: false };
        let other = Event { amount: 5, bytes: 40, side: Side::Right, ..event };
        Element::of(&event, 3).encode(&mut list);
        Element::of(&other, 4).encode(&mut list);
        Element::of(&event, 9).encode(&mut list);
        assert_eq!(list.len(), 72);
        let found: Vec<_> = elements(&list).map(|e| (e.amount, e.bytes, e.side, e.place)).collect();
        let (left, right) = (Side::Left, Side::Right);
        assert_eq!(found, [(7, 16, left, 3), (5, 40, right, 4), (7, 16, left, 9)]);
        assert_eq!(Shape::Pairs.told(&list), Some([2, 14 * 5, 0]));
        let told = Shape::Elements.told(&list).unwrap();
        assert_eq!(told[..2], [3, 19]);
        // Another order, the same digest; another element, another digest.
        let turned = [&list[16..], &list[..16]].concat();
        assert_eq!(Shape::Elements.told(&turned), Some(told));
        assert_ne!(
            Shape::Elements.told(&[&list[..16], &list[..16], &list[16..56]].concat()),
            Some(told)
        );
    }

    #[test]
    fn accumulators_add_up_their_parts() {
        let value = [sums_bytes([1, 10]), sums_bytes([2, u64::MAX])].concat();
        assert_eq!(sums(&value), [3, 9]);
        assert_eq!(Shape::Sums.told(&[]), None);
    }
}
