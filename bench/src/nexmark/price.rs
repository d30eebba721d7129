//! Prices: log-uniform from 100 to 100,000,000, in integer arithmetic.
//!
//! Beam's formula is `round(100 * 10^(6u))` with u uniform in [0, 1). Here u is a 64-bit fraction
//! and the power is 2^(i + f): i shifts, the leading 10 bits of f look up a table made by integer
//! square roots, the rest goes through three terms of the exponential series. The result is
//! within 1 of the exact value everywhere (tested against floating point), the same on every
//! machine.

use super::random::Random;

/// 6 * log2(10) in units of 2^-58.
const EXPONENT_RANGE: u64 = 5_744_883_506_029_941_791;
/// ln 2 in units of 2^-62.
const LN_2: u64 = 3_196_577_161_300_663_914;
const ONE: u64 = 1 << 62;
const TABLE_BITS: u32 = 10;

/// 2^(k / 1024) in units of 2^-62.
static POWERS: [u64; 1 << TABLE_BITS] = powers();

/// A price drawn from `random`, in cents as Beam has it.
pub(super) fn price(random: &mut Random) -> i64 {
    price_at(random.word())
}

/// The price at the point `u / 2^64` of the distribution. About 5 ns.
fn price_at(u: u64) -> i64 {
    let exponent = high_half(u, EXPONENT_RANGE);
    let (whole, fraction) = (exponent >> 58, exponent & ((1 << 58) - 1));
    let power = POWERS[(fraction >> (58 - TABLE_BITS)) as usize];
    let rest = (fraction & ((1 << (58 - TABLE_BITS)) - 1)) << 4;
    let scaled = times(power, exp(times(rest, LN_2)));
    // 100 * 2^whole * scaled, rounded: at most 27 bits before the point.
    let hundred = (scaled as u128 * 100) << whole;
    ((hundred + (ONE / 2) as u128) >> 62) as i64
}

/// e^x for x below 2^-10: the next term of the series is below 2^-44.
const fn exp(x: u64) -> u64 {
    let square = times(x, x) / 2;
    ONE + x + square + times(square, x) / 3
}

const fn times(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 62) as u64
}

const fn high_half(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

const fn powers() -> [u64; 1 << TABLE_BITS] {
    // roots[k] = 2^(1 / 2^(k+1)); a table entry is the product of those its bits name.
    let mut roots = [0u64; TABLE_BITS as usize];
    let mut k = 0;
    let mut root = 2 * ONE as u128;
    while k < TABLE_BITS as usize {
        root = (root << 62).isqrt();
        roots[k] = root as u64;
        k += 1;
    }
    let mut table = [ONE; 1 << TABLE_BITS];
    let mut entry = 0;
    while entry < table.len() {
        let mut bit = 0;
        while bit < TABLE_BITS {
            if entry >> (TABLE_BITS - 1 - bit) & 1 == 1 {
                table[entry] = times(table[entry], roots[bit as usize]);
            }
            bit += 1;
        }
        entry += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_those_of_the_formula() {
        let mut random = Random::new(7);
        for _ in 0..200_000 {
            let u = random.word();
            let exact = 10f64.powf(6.0 * (u as f64 / 2f64.powi(64))) * 100.0;
            let found = price_at(u);
            assert!((found as f64 - exact).abs() <= 1.0, "{u}: {found} for {exact}");
        }
    }

    #[test]
    fn prices_span_six_decades_and_never_fall() {
        assert_eq!((price_at(0), price_at(u64::MAX)), (100, 100_000_000));
        let step = u64::MAX / 100_000;
        let all: Vec<_> = (0..100_000).map(|k| price_at(k * step)).collect();
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]));
        let low = all.iter().filter(|&&p| p < 100_000).count();
        assert!((49_990..50_010).contains(&low), "half the prices lie in half the decades: {low}");
    }
}
