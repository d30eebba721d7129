//! How the slices of a page of the directory are coded: in bits in memory, and in bytes in a checkpoint.
//!
//! In memory a page has four columns: how far each slice is from the one before, its elements, its bytes, and the first run
//! that counts of it, as far as it differs from that of the slice before. Distances are told in the largest unit that
//! divides all of them. Of each column the page tells the least once, and of each slice what is more than that, by an
//! Exp-Golomb code whose order suits the column. A column that is the same throughout takes no bits: slices of equal width
//! and equal lists take next to none.
//!
//! A checkpoint tells each of these in bytes of seven bits. These have been so since there are packed slices.

use alluvium_pagestore::Time;

use super::slices::{PackedSlice, UNIT_BYTES};

/// Columns of a page.
const COLUMNS: usize = 4;
/// The order of a column that is the same throughout.
const SAME: u8 = 64;

/// What a slice is in each column, beside the one before.
type SliceRow = [u64; COLUMNS];

/// The columns that the first slice of a page has not.
const OF_LATER: [bool; COLUMNS] = [true, false, false, true];

/// What slices are in each column, and the unit of their distances.
fn rows_of(slices: &[(Time, PackedSlice)]) -> (Vec<SliceRow>, u64) {
    let unit = unit_of(slices);
    let (mut time, mut since) = (slices[0].0, slices[0].1.since);
    let row = |(at, slice): &(Time, PackedSlice)| {
        let passed = distance(time, *at) / unit;
        let later = zigzag(slice.since.wrapping_sub(since) as i64);
        (time, since) = (*at, slice.since);
        [passed, slice.elements, slice.bytes.div_ceil(UNIT_BYTES), later]
    };
    (slices.iter().map(row).collect(), unit)
}

fn distance(before: Time, time: Time) -> u64 {
    time.0.wrapping_sub(before.0) as u64
}

/// The largest unit that divides the distances of all slices.
fn unit_of(slices: &[(Time, PackedSlice)]) -> u64 {
    let distances = slices.windows(2).map(|two| distance(two[0].0, two[1].0));
    distances.fold(0, greatest_divisor).max(1)
}

fn greatest_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// How a column is coded.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnCode {
    least: u64,
    order: u8,
}

/// What a column has: its least and its greatest number, and how many of them have so many bits above the least.
struct ColumnCounts {
    least: u64,
    most: u64,
    lengths: [u32; u64::BITS as usize + 1],
}

impl ColumnCounts {
    fn of(numbers: impl Iterator<Item = u64> + Clone) -> Self {
        let (least, most) = numbers
            .clone()
            .fold((u64::MAX, 0), |(least, most), number| (number.min(least), number.max(most)));
        let mut lengths = [0; u64::BITS as usize + 1];
        numbers.for_each(|number| lengths[bits_of(number - least) as usize] += 1);
        Self { least: least.min(most), most, lengths }
    }

    /// The order by which the column takes the least bits, about.
    fn code(&self) -> ColumnCode {
        let longest = bits_of(self.most - self.least);
        if longest == 0 {
            return ColumnCode { least: self.least, order: SAME };
        }
        let bits_by = |order: u32| -> u64 {
            let bits = |length: u32| order + 1 + 2 * length.saturating_sub(order);
            (0..=longest)
                .map(|length| u64::from(self.lengths[length as usize] * bits(length)))
                .sum()
        };
        // A number of 64 bits has no room above an order of none.
        let order = (longest / u64::BITS..longest.min(u64::BITS - 1) + 1)
            .min_by_key(|order| bits_by(*order));
        ColumnCode { least: self.least, order: order.unwrap_or(1) as u8 }
    }
}

fn bits_of(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Codes the slices of a page for memory. There is one at least.
pub(super) fn coded(slices: &[(Time, PackedSlice)]) -> Vec<u8> {
    let (rows, unit) = rows_of(slices);
    let mut bytes = Vec::with_capacity(2 * slices.len() + 32);
    push(&mut bytes, unit);
    push(&mut bytes, slices[0].1.since);
    let codes: [ColumnCode; COLUMNS] = std::array::from_fn(|column| {
        let rows = &rows[usize::from(OF_LATER[column])..];
        let code = ColumnCounts::of(rows.iter().map(|row| row[column])).code();
        push(&mut bytes, code.least);
        bytes.push(code.order);
        code
    });
    let mut bits = BitWriter { bytes, last: 0, count: 0 };
    for (nth, row) in rows.iter().enumerate() {
        for (column, code) in codes.iter().enumerate() {
            if nth > 0 || !OF_LATER[column] {
                bits.push_by(*code, row[column]);
            }
        }
    }
    bits.end()
}

/// The slices of a page that was [coded] for memory.
pub(super) struct CodedSlices<'p> {
    bits: BitReader<'p>,
    codes: [ColumnCode; COLUMNS],
    unit: u64,
    time: Time,
    since: u64,
    nth: u32,
    count: u32,
}

impl<'p> CodedSlices<'p> {
    /// Of so many slices, the first of which has this time.
    pub fn of(first: Time, coded: &'p [u8], count: u32) -> Self {
        let mut rest = coded;
        let mut number = || take(&mut rest).expect("a page in memory is whole");
        let (unit, since) = (number(), number());
        let codes = std::array::from_fn(|_| {
            let least = take(&mut rest).expect("a page in memory is whole");
            let (order, after) = rest.split_first().expect("a page in memory is whole");
            rest = after;
            ColumnCode { least, order: *order }
        });
        let bits = BitReader { bytes: rest, at: 0 };
        Self { bits, codes, unit, time: first, since, nth: 0, count }
    }
}

impl Iterator for CodedSlices<'_> {
    type Item = (Time, PackedSlice);

    fn next(&mut self) -> Option<Self::Item> {
        if self.nth == self.count {
            return None;
        }
        let mut row = [0; COLUMNS];
        for (column, number) in row.iter_mut().enumerate() {
            if self.nth > 0 || !OF_LATER[column] {
                *number = self.bits.take_by(self.codes[column]);
            }
        }
        self.nth += 1;
        let [distance, elements, units, since] = row;
        self.time = Time(self.time.0.wrapping_add(distance.wrapping_mul(self.unit) as i64));
        self.since = self.since.wrapping_add(unzigzag(since) as u64);
        let bytes = units.wrapping_mul(UNIT_BYTES);
        Some((self.time, PackedSlice { elements, bytes, since: self.since }))
    }
}

/// Writes numbers bit by bit, the lowest first.
struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that are yet to be written, and how many.
    last: u64,
    count: u32,
}

impl BitWriter {
    /// Writes so many low bits of a number, which has no others.
    fn push(&mut self, number: u64, count: u32) {
        let mut rest = u128::from(self.last) | u128::from(number) << self.count;
        self.count += count;
        while self.count >= u8::BITS {
            self.bytes.push(rest as u8);
            rest >>= u8::BITS;
            self.count -= u8::BITS;
        }
        self.last = rest as u64;
    }

    /// Writes a number of a column: a bit less than its part above the order has as zeros, that part, and the rest.
    fn push_by(&mut self, code: ColumnCode, number: u64) {
        if code.order == SAME {
            return;
        }
        let (more, order) = (number - code.least, u32::from(code.order));
        let above = (more >> order) + 1;
        let length = bits_of(above) - 1;
        self.push(0, length);
        self.push(1, 1);
        self.push(above ^ 1 << length, length);
        self.push(more & ((1 << order) - 1), order);
    }

    fn end(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push(self.last as u8);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote.
struct BitReader<'p> {
    bytes: &'p [u8],
    at: usize,
}

impl BitReader<'_> {
    /// The next bits, 56 at least; zeros after the last.
    fn ahead(&self) -> u64 {
        let mut word = [0; 8];
        let rest = self.bytes.get(self.at / 8..).unwrap_or(&[]);
        let count = rest.len().min(word.len());
        word[..count].copy_from_slice(&rest[..count]);
        u64::from_le_bytes(word) >> (self.at % 8)
    }

    fn take(&mut self, count: u32) -> u64 {
        if count > 32 {
            return self.take(32) | self.take(count - 32) << 32;
        }
        let bits = self.ahead() & ((1 << count) - 1);
        self.at += count as usize;
        bits
    }

    fn zeros(&mut self) -> u32 {
        let mut zeros = 0;
        while self.at < 8 * self.bytes.len() {
            let more = self.ahead().trailing_zeros().min(56);
            self.at += more as usize;
            zeros += more;
            if more < 56 {
                break;
            }
        }
        self.at += 1;
        zeros
    }

    fn take_by(&mut self, code: ColumnCode) -> u64 {
        if code.order == SAME {
            return code.least;
        }
        let length = self.zeros();
        let above = self.take(length) | 1 << length;
        let rest = self.take(u32::from(code.order));
        code.least + ((above - 1) << code.order | rest)
    }
}

/// What a checkpoint tells of some slices. There is one at least.
pub(super) fn told(slices: &[(Time, PackedSlice)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut time, mut since) = (slices[0].0, 0);
    for (at, slice) in slices {
        push(&mut bytes, distance(time, *at));
        push(&mut bytes, slice.elements);
        push(&mut bytes, slice.bytes.div_ceil(UNIT_BYTES));
        push(&mut bytes, zigzag(slice.since.wrapping_sub(since) as i64));
        (time, since) = (*at, slice.since);
    }
    bytes
}

/// The slices that a checkpoint [told], as far as these bytes are that.
pub(super) fn slices_told(first: Time, mut told: &[u8]) -> Vec<(Time, PackedSlice)> {
    let (mut time, mut since) = (first, 0u64);
    let next = move || {
        let (passed, elements) = (take(&mut told)?, take(&mut told)?);
        let (units, later) = (take(&mut told)?, take(&mut told)?);
        time = Time(time.0.wrapping_add(passed as i64));
        since = since.wrapping_add(unzigzag(later) as u64);
        let bytes = units.wrapping_mul(UNIT_BYTES);
        Some((time, PackedSlice { elements, bytes, since }))
    };
    std::iter::from_fn(next).collect()
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// The next number; none at the end, and of bytes that are none.
fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::hash_word;

    /// Numbers of any length come out as they went in, whatever stands beside them.
    #[test]
    fn slices_are_decoded_as_they_were_coded() {
        for round in 0..4_000u64 {
            let mut dice = hash_word(round);
            let mut any = |bits: u64| {
                dice = hash_word(dice);
                if bits == 0 { 0 } else { dice >> (64 - bits) }
            };
            let bits: [u64; 4] = std::array::from_fn(|_| any(7) % 65);
            let mut time = Time(any(64) as i64);
            let count = 1 + any(8) % 200;
            let slices: Vec<(Time, PackedSlice)> = (0..count)
                .map(|_| {
                    time = Time(time.0.wrapping_add(any(bits[0]) as i64));
                    let bytes = UNIT_BYTES * any(bits[2].min(58));
                    (time, PackedSlice { elements: any(bits[1]), bytes, since: any(bits[3]) })
                })
                .collect();
            let first = slices[0].0;
            let page = coded(&slices);
            let again = CodedSlices::of(first, &page, slices.len() as u32);
            assert_eq!(again.collect::<Vec<_>>(), slices, "round {round}");
            assert_eq!(slices_told(first, &told(&slices)), slices, "round {round}");
        }
    }

    #[test]
    fn the_greatest_numbers_have_codes() {
        let most = PackedSlice { elements: u64::MAX, bytes: u64::MAX / 64 * 64, since: u64::MAX };
        let least = PackedSlice { elements: 0, bytes: 0, since: 0 };
        for slices in [
            vec![(Time::MIN, least), (Time::MAX, most)],
            vec![(Time::MIN, most), (Time(0), least), (Time::MAX, most)],
            vec![(Time::MAX, most)],
        ] {
            let page = coded(&slices);
            let again = CodedSlices::of(slices[0].0, &page, slices.len() as u32);
            assert_eq!(again.collect::<Vec<_>>(), slices);
        }
    }

    #[test]
    fn slices_of_equal_width_take_few_bits() {
        let bytes = |elements: fn(u64) -> u64| {
            let slice = |nth: u64| {
                let elements = elements(nth);
                let slice = PackedSlice { elements, bytes: 64 * elements, since: 7 + nth / 100 };
                (Time(1_700_000_000_000_000_000 + nth as i64 * 1_000_000_000), slice)
            };
            let slices: Vec<_> = (0..256).map(slice).collect();
            (coded(&slices).len(), told(&slices).len())
        };
        let (same, _) = bytes(|_| 3);
        let (any, any_told) = bytes(|nth| hash_word(nth) % 100);
        assert!(same < 64 && any < 3 * 256 && any_told > 7 * 256, "{same}, {any}");
    }
}
