//! Comparing a bucket's tags, all at once. Vector instructions pay: a probe compares seven tags
//! in three instructions where ordinary arithmetic takes about thirty.

/// The lanes of `low` (four) and `high` (three or four) that equal `tag`, a bit each.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn tags_equal(low: u64, high: u64, tag: u16) -> u8 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16,
        _mm_setzero_si128,
    };
    // SAFETY: SSE2, which these need, is part of every x86-64 processor.
    unsafe {
        let tags = _mm_set_epi64x(high as i64, low as i64);
        let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
        _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u8
    }
}

#[cfg(not(target_arch = "x86_64"))]
/// The lanes that equal `tag`, a bit each.
#[inline(always)]
pub fn tags_equal(low: u64, high: u64, tag: u16) -> u8 {
    tags_equal_portable(low, high, tag)
}

/// The same in ordinary arithmetic: a lane is zero iff adding 0x7fff to its low 15 bits does not
/// reach, and it does not have, its top bit.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn tags_equal_portable(low: u64, high: u64, tag: u16) -> u8 {
    const LANES: u64 = 0x0001_0001_0001_0001;
    const LOW15: u64 = 0x7fff * LANES;
    let four = |word: u64| {
        let different = word ^ (u64::from(tag) * LANES);
        let zero = !(((different & LOW15) + LOW15) | different | LOW15);
        // Gathers the four top bits.
        ((zero >> 15 & 1) | (zero >> 30 & 2) | (zero >> 45 & 4) | (zero >> 60 & 8)) as u8
    };
    four(low) | four(high) << 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_comparisons_agree() {
        let mut word = 1u64;
        for i in 0..if cfg!(miri) { 100 } else { 10_000u64 } {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i;
            let (low, high) = (word & word.rotate_left(7), word.rotate_left(31) & word);
            for tag in [0, low as u16, (high >> 16) as u16, 0x8000, 0xffff] {
                assert_eq!(tags_equal(low, high, tag), tags_equal_portable(low, high, tag));
            }
        }
    }
}
