//! Keys drawn from a distribution, equal for equal seeds.
//!
//! Ranks are drawn, then scattered over the ids 0..n by a bijection, so that popular keys are not
//! neighbours. Zipf ranks come by rejection-inversion (Hörmann and Derflinger, 1996): no table and
//! no sum over n, so ten keys or ten billion set up at once. A uniform key costs about 2 ns, a
//! Zipf key about 30 ns; draw them ahead of what is measured.

use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::nexmark::random::{Random, mix};

/// How often keys occur.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// The k-th most popular in proportion to k^-theta.
    Zipf {
        /// The exponent, above 0: larger is more skewed.
        theta: f64,
    },
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let theta = text.strip_prefix("zipf:").and_then(|theta| theta.parse::<f64>().ok());
        match (text, theta) {
            ("uniform", _) => Ok(Distribution::Uniform),
            (_, Some(theta)) if theta > 0.0 && theta <= 10.0 => Ok(Distribution::Zipf { theta }),
            _ => Err(Error::Usage(format!(
                "distribution {text:?} is neither uniform nor zipf:THETA, such as zipf:0.99, \
                 with THETA above 0 and at most 10"
            ))),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf { theta } => write!(f, "zipf:{theta}"),
        }
    }
}

/// What a record of the read-modify-write workload holds beside its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordShape {
    /// Key and value together have this many bytes: 16, 64, 128 or 256.
    Bytes(u32),
    /// A few strings on the heap.
    Strings,
}

impl RecordShape {
    /// The sizes there are.
    pub const SIZES: [u32; 4] = [16, 64, 128, 256];
}

impl FromStr for RecordShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let size = Self::SIZES.into_iter().find(|size| size.to_string() == text);
        match (text, size) {
            ("strings", _) => Ok(RecordShape::Strings),
            (_, Some(size)) => Ok(RecordShape::Bytes(size)),
            _ => Err(Error::Usage(format!(
                "record {text:?} is none of 16, 64, 128, 256 (bytes) and strings"
            ))),
        }
    }
}

impl fmt::Display for RecordShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordShape::Bytes(size) => write!(f, "{size}"),
            RecordShape::Strings => f.write_str("strings"),
        }
    }
}

/// An endless sequence of keys below a count.
#[derive(Clone, Debug)]
pub struct Keys {
    random: Random,
    scatter: Scatter,
    ranks: Ranks,
}

#[derive(Clone, Debug)]
enum Ranks {
    Uniform(u64),
    Zipf(Zipf),
}

impl Keys {
    /// Keys in `0..count`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(count: u64, distribution: Distribution, seed: u64) -> Self {
        assert!(count > 0, "no keys to draw from");
        let ranks = match distribution {
            Distribution::Uniform => Ranks::Uniform(count),
            Distribution::Zipf { theta } => Ranks::Zipf(Zipf::new(count, theta)),
        };
        // Which keys are popular does not depend on the seed, only when they come.
        Keys { random: Random::new(mix(seed)), scatter: Scatter::new(count), ranks }
    }
}

impl Iterator for Keys {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let rank = match &self.ranks {
            Ranks::Uniform(count) => self.random.below(*count),
            Ranks::Zipf(zipf) => zipf.rank(&mut self.random),
        };
        Some(self.scatter.id(rank))
    }
}

/// A bijection of `0..count` that leaves no neighbours together.
///
/// Ids are mixed within the next power of two, again while they fall outside (once or twice).
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    count: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    /// The bijection of `0..count`; `count` must not be 0.
    pub fn new(count: u64) -> Self {
        let bits = (u64::BITS - (count.max(1) - 1).leading_zeros()).max(1);
        Scatter { count, mask: u64::MAX >> (u64::BITS - bits), shift: bits.div_ceil(2) }
    }

    /// The id of `rank`.
    ///
    /// # Panics
    /// If `rank` is not below the count.
    pub fn id(&self, rank: u64) -> u64 {
        assert!(rank < self.count, "rank {rank} of {}", self.count);
        let mut id = self.mix(rank);
        while id >= self.count {
            id = self.mix(id);
        }
        id
    }

    /// Adding, multiplying by odd numbers and shifting down are each undone, so this is a
    /// bijection of the masked words.
    fn mix(&self, id: u64) -> u64 {
        let id = id.wrapping_add(0x9e37_79b9_7f4a_7c15) & self.mask;
        let id = id.wrapping_mul(0xbf58_476d_1ce4_e5b9) & self.mask;
        let id = (id ^ (id >> self.shift)).wrapping_mul(0x94d0_49bb_1331_11eb) & self.mask;
        id ^ (id >> self.shift)
    }
}

/// Zipf-distributed ranks from 0, by rejection-inversion.
///
/// Ranks k from 1 have weight h(k) = k^-theta. A point is drawn uniformly under the hat, which is
/// h itself taken continuously from k - 1/2 to k + 1/2; being convex, h is below the hat's area
/// there, and what is above it is rejected (a few percent).
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    theta: f64,
    area_low: f64,
    area_high: f64,
    /// Points this near above their rank are accepted without computing the area.
    near: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Self {
        let mut zipf =
            Zipf { count: count as f64, theta, area_low: 0.0, area_high: 0.0, near: 0.0 };
        zipf.area_low = zipf.area(1.5) - 1.0;
        zipf.area_high = zipf.area(zipf.count + 0.5);
        zipf.near = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            // 53 random bits make a double in [0, 1).
            let unit = (random.word() >> 11) as f64 / (1u64 << 53) as f64;
            let area = self.area_high + unit * (self.area_low - self.area_high);
            let point = self.area_inverse(area);
            let rank = point.round().clamp(1.0, self.count);
            let near = rank - point <= self.near;
            if near || area >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        (-self.theta * rank.ln()).exp()
    }

    /// The integral of h from 1 to `point`, exact also where theta is 1.
    fn area(&self, point: f64) -> f64 {
        let log = point.ln();
        growth((1.0 - self.theta) * log) * log
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let grown = ((1.0 - self.theta) * area).max(-1.0);
        (log_growth(grown) * area).exp()
    }
}

/// (e^x - 1) / x.
fn growth(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x.
fn log_growth(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_is_a_bijection_of_any_count() {
        for count in [1, 2, 3, 7, 64, 1_000, 65_537] {
            let scatter = Scatter::new(count);
            let mut ids: Vec<_> = (0..count).map(|rank| scatter.id(rank)).collect();
            let neighbours = ids.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
            assert!(count < 64 || neighbours < count as usize / 20, "{neighbours} of {count}");
            ids.sort_unstable();
            assert!(ids.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn zipf_ranks_have_the_weights_of_their_law() {
        for theta in [0.5, 0.99, 1.0, 1.5] {
            let (count, draws) = (1_000, 400_000);
            let zipf = Zipf::new(count, theta);
            let mut random = Random::new(11);
            let mut seen = vec![0u32; count as usize];
            (0..draws).for_each(|_| seen[zipf.rank(&mut random) as usize] += 1);
            let total: f64 = (1..=count).map(|k| (k as f64).powf(-theta)).sum();
            for rank in [1, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-theta) / total * draws as f64;
                let found = f64::from(seen[rank - 1]);
                let sigmas = (found - expected).abs() / expected.sqrt();
                assert!(sigmas < 5.0, "theta {theta} rank {rank}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn keys_repeat_with_their_seed_and_cover_their_range() {
        for distribution in [Distribution::Uniform, Distribution::Zipf { theta: 0.99 }] {
            let keys = |seed| Keys::new(100, distribution, seed).take(20_000).collect::<Vec<_>>();
            assert_eq!(keys(1), keys(1));
            assert_ne!(keys(1), keys(2));
            let mut distinct = keys(1);
            distinct.sort_unstable();
            distinct.dedup();
            assert!(distinct.into_iter().eq(0..100));
        }
        assert_eq!(Keys::new(1, Distribution::Zipf { theta: 0.99 }, 0).next(), Some(0));
    }

    #[test]
    fn uniform_keys_are_pinned() {
        let keys: Vec<_> = Keys::new(10_000_000, Distribution::Uniform, 0).take(3).collect();
        assert_eq!(keys, [4_241_389, 1_641_314, 9_725_018]);
    }

    #[test]
    fn options_are_read_or_refused_with_what_there_is() {
        let zipf: Distribution = "zipf:0.99".parse().unwrap();
        assert_eq!(zipf, Distribution::Zipf { theta: 0.99 });
        assert_eq!(zipf.to_string(), "zipf:0.99");
        for text in ["zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:NaN", "normal", ""] {
            let message = text.parse::<Distribution>().unwrap_err().to_string();
            assert!(message.contains("zipf:0.99"), "{message}");
        }
        assert_eq!("64".parse::<RecordShape>().unwrap(), RecordShape::Bytes(64));
        assert_eq!("strings".parse::<RecordShape>().unwrap(), RecordShape::Strings);
        assert!("17".parse::<RecordShape>().unwrap_err().to_string().contains("256"));
    }
}
