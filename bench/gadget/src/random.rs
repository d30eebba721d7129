//! Seeded random numbers and the distributions of keys, gaps and sizes.
//!
//! The same seed gives the same numbers on every machine: the generator is splitmix64, and no
//! distribution asks the system for anything.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, Result};

/// Splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of numbers of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scattered(self.0)
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * (1.0 - self.unit()).ln()).sqrt(), self.unit());
        radius * (angle * std::f64::consts::TAU).cos()
    }
}

/// A bijection of 64 bits: neighbours end up far apart.
pub(crate) fn scattered(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn usage<T>(what: &str, text: &str, known: &str) -> Result<T> {
    Err(Error::Usage(format!("{what} {text:?}: expected one of {known}")))
}

fn number(what: &str, text: &str, part: Option<&str>) -> Result<f64> {
    let found = part.and_then(|part| part.parse::<f64>().ok()).filter(|value| value.is_finite());
    found.ok_or_else(|| Error::Usage(format!("{what} {text:?}: a number is missing or malformed")))
}

/// A distribution of non-negative numbers: gaps between events, or sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Always the same.
    Constant(f64),
    /// Between two bounds.
    Uniform(f64, f64),
    /// With this mean.
    Exponential(f64),
    /// With this mean and standard deviation; what is below 0 counts as 0.
    Normal(f64, f64),
}

impl Amount {
    /// Draws one.
    pub fn draw(&self, random: &mut Random) -> f64 {
        match *self {
            Amount::Constant(value) => value,
            Amount::Uniform(from, to) => from + (to - from) * random.unit(),
            Amount::Exponential(mean) => random.exponential(mean),
            Amount::Normal(mean, deviation) => (mean + deviation * random.normal()).max(0.0),
        }
    }
}

impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let mut next = || number("distribution", text, parts.next());
        let amount = match kind {
            "constant" => Amount::Constant(next()?),
            "uniform" => Amount::Uniform(next()?, next()?),
            "exponential" => Amount::Exponential(next()?),
            "normal" => Amount::Normal(next()?, next()?),
            _ => {
                let known = "constant:X, uniform:FROM:TO, exponential:MEAN, normal:MEAN:DEVIATION";
                return usage("distribution", text, known);
            }
        };
        let sound = match amount {
            Amount::Constant(value) | Amount::Exponential(value) => value >= 0.0,
            Amount::Uniform(from, to) => 0.0 <= from && from <= to,
            Amount::Normal(mean, deviation) => mean >= 0.0 && deviation >= 0.0,
        };
        match sound {
            true => Ok(amount),
            false => Err(Error::Usage(format!("distribution {text:?}: a number is negative"))),
        }
    }
}

/// A distribution of keys, as the command line has it.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyShape {
    /// Each key as often as any other.
    Uniform,
    /// The n-th most frequent key has weight n^-s; ranks are scattered over the keys.
    Zipf(f64),
    /// A share of the keys gets a share of the events.
    Hotspot(f64, f64),
    /// Key ids fall off exponentially: 95 % of the events have the first tenth of the keys.
    Exponential,
    /// Zipf over the age of keys: new keys come one by one, and recent ones are the frequent ones.
    Latest,
    /// One key after the other, from the start again after the last.
    Sequential,
    /// Weights of the keys, from a file with one number a line.
    Empirical(String),
}

impl FromStr for KeyShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parts = rest.split(':');
        let mut next = || number("key distribution", text, parts.next());
        Ok(match kind {
            "uniform" => KeyShape::Uniform,
            "zipf" => match next()? {
                s if s > 0.0 => KeyShape::Zipf(s),
                _ => return usage("key distribution", text, "zipf:S with S above 0"),
            },
            "hotspot" => match (next()?, next()?) {
                (keys, events) if 0.0 < keys && keys <= 1.0 && (0.0..=1.0).contains(&events) => {
                    KeyShape::Hotspot(keys, events)
                }
                _ => return usage("key distribution", text, "hotspot:KEYS:EVENTS, shares up to 1"),
            },
            "exponential" => KeyShape::Exponential,
            "latest" => KeyShape::Latest,
            "sequential" => KeyShape::Sequential,
            "empirical" if !rest.is_empty() => KeyShape::Empirical(rest.to_owned()),
            _ => {
                let known = "uniform, zipf:S, hotspot:KEYS:EVENTS, exponential, latest, \
                             sequential, empirical:FILE";
                return usage("key distribution", text, known);
            }
        })
    }
}

impl fmt::Display for KeyShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyShape::Uniform => f.write_str("uniform"),
            KeyShape::Zipf(s) => write!(f, "zipf:{s}"),
            KeyShape::Hotspot(keys, events) => write!(f, "hotspot:{keys}:{events}"),
            KeyShape::Exponential => f.write_str("exponential"),
            KeyShape::Latest => f.write_str("latest"),
            KeyShape::Sequential => f.write_str("sequential"),
            KeyShape::Empirical(file) => write!(f, "empirical:{file}"),
        }
    }
}

/// Draws keys below a bound.
#[derive(Clone, Debug)]
pub struct KeyDraw {
    keys: u64,
    kind: Draw,
}

#[derive(Clone, Debug)]
enum Draw {
    Uniform,
    Zipf(Zipf),
    Hotspot(u64, f64),
    Exponential,
    Latest(Zipf, u64),
    Sequential(u64),
    Empirical(Vec<f64>),
}

impl KeyDraw {
    /// Of `keys` keys; reads the file of an empirical distribution.
    ///
    /// # Errors
    /// No keys, or a file that cannot be read or has a line that is no weight.
    pub fn new(shape: &KeyShape, keys: u64) -> Result<Self> {
        if keys == 0 {
            return Err(Error::Usage("--keys 0: there must be a key".to_owned()));
        }
        let kind = match shape {
            KeyShape::Uniform => Draw::Uniform,
            KeyShape::Zipf(s) => Draw::Zipf(Zipf::new(keys, *s)),
            KeyShape::Hotspot(share, events) => {
                Draw::Hotspot(((keys as f64 * share).ceil() as u64).clamp(1, keys), *events)
            }
            KeyShape::Exponential => Draw::Exponential,
            KeyShape::Latest => Draw::Latest(Zipf::new(keys, 0.99), 0),
            KeyShape::Sequential => Draw::Sequential(0),
            KeyShape::Empirical(file) => Draw::Empirical(weights(Path::new(file))?),
        };
        let keys = match &kind {
            Draw::Empirical(sums) => sums.len() as u64,
            _ => keys,
        };
        Ok(KeyDraw { keys, kind })
    }

    /// Draws one.
    pub fn draw(&mut self, random: &mut Random) -> u64 {
        let keys = self.keys;
        match &mut self.kind {
            Draw::Uniform => random.below(keys),
            Draw::Zipf(zipf) => scattered(zipf.draw(random)) % keys,
            Draw::Hotspot(hot, events) => match random.unit() < *events {
                true => random.below(*hot),
                false if *hot == keys => random.below(keys),
                false => *hot + random.below(keys - *hot),
            },
            Draw::Exponential => {
                // ln 20: 95 % of the mass lies below a tenth of the keys.
                let mean = keys as f64 * 0.1 / 20f64.ln();
                (random.exponential(mean) as u64).min(keys - 1)
            }
            Draw::Latest(zipf, newest) => {
                // A new key for every tenth event, until all are there.
                if *newest + 1 < keys && random.below(10) == 0 {
                    *newest += 1;
                }
                newest.saturating_sub(zipf.draw(random) - 1)
            }
            Draw::Sequential(next) => {
                let key = *next;
                *next = (key + 1) % keys;
                key
            }
            Draw::Empirical(sums) => {
                let at = random.unit() * sums.last().copied().unwrap_or(0.0);
                (sums.partition_point(|sum| *sum <= at) as u64).min(keys - 1)
            }
        }
    }
}

/// Sums of the weights in a file, from its first line on.
fn weights(file: &Path) -> Result<Vec<f64>> {
    let text = std::fs::read_to_string(file).map_err(|error| Error::io(file, "read", error))?;
    let (mut sums, mut sum) = (Vec::new(), 0.0);
    for (at, line) in text.lines().enumerate() {
        let field = line.rsplit(',').next().unwrap_or_default().trim();
        match field.parse::<f64>() {
            Ok(weight) if weight >= 0.0 && weight.is_finite() => sum += weight,
            _ => {
                let message = format!("{field:?} is not a weight of 0 or more");
                return Err(Error::input(file, at as u64 + 1, message));
            }
        }
        sums.push(sum);
    }
    match sum > 0.0 {
        true => Ok(sums),
        false => Err(Error::input(file, sums.len() as u64, "all weights together are 0")),
    }
}

/// Ranks from 1 on with weight rank^-s, by rejection-inversion (Hörmann and Derflinger 1996): no
/// table, so that it takes no memory however many ranks there are.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    s: f64,
    ranks: f64,
    low: f64,
    high: f64,
    cut: f64,
}

impl Zipf {
    pub(crate) fn new(ranks: u64, s: f64) -> Self {
        let ranks = ranks as f64;
        let mut zipf = Zipf { s, ranks, low: 0.0, high: 0.0, cut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(ranks + 0.5);
        zipf.cut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-s));
        zipf
    }

    /// The integral of x^-s, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        match (1.0 - self.s).abs() < 1e-9 {
            true => x.ln(),
            false => (x.powf(1.0 - self.s) - 1.0) / (1.0 - self.s),
        }
    }

    fn inverse(&self, y: f64) -> f64 {
        match (1.0 - self.s).abs() < 1e-9 {
            true => y.exp(),
            false => (1.0 + y * (1.0 - self.s)).max(0.0).powf(1.0 / (1.0 - self.s)),
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let y = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(y);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.cut || y >= self.integral(rank + 0.5) - rank.powf(-self.s) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(shape: &str, keys: u64, draws: u64) -> Vec<u64> {
        let mut draw = KeyDraw::new(&shape.parse().unwrap(), keys).unwrap();
        let (mut random, mut counts) = (Random::new(7), vec![0; keys as usize]);
        (0..draws).for_each(|_| counts[draw.draw(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn each_distribution_has_the_shape_it_is_named_by() {
        assert!(counts("uniform", 10, 100_000).iter().all(|n| n.abs_diff(10_000) < 500));
        assert_eq!(counts("sequential", 4, 10), [3, 3, 2, 2]);
        let hot: u64 = counts("hotspot:0.1:0.9", 100, 100_000)[..10].iter().sum();
        assert!(hot.abs_diff(90_000) < 600, "{hot}");
        let near: u64 = counts("exponential", 1000, 100_000)[..100].iter().sum();
        assert!(near.abs_diff(95_000) < 600, "{near}");
        let latest = counts("latest", 1_000_000, 10_000);
        assert!(latest[..1100].iter().sum::<u64>() == 10_000);
        let mut zipf = counts("zipf:1", 1000, 1_000_000);
        zipf.sort_unstable_by(|a, b| b.cmp(a));
        // The sum of 1/n up to 1000 is 7.485. Scattering may put several ranks on one key.
        assert!(zipf[0] as f64 / 1e6 > 0.97 / 7.485, "{}", zipf[0]);
        let rank = Zipf::new(1000, 1.0);
        let mut random = Random::new(1);
        let firsts = (0..1_000_000).filter(|_| rank.draw(&mut random) == 1).count();
        assert!((firsts as f64 / 1e6 - 1.0 / 7.485).abs() < 0.002, "{firsts}");
    }

    #[test]
    fn weights_come_from_a_file_and_errors_name_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.csv");
        std::fs::write(&path, "a,1\nb,0\nc,3\n").unwrap();
        let shape = format!("empirical:{}", path.display());
        let found = counts(&shape, 3, 10_000);
        assert!(found[1] == 0 && found[0].abs_diff(2500) < 200, "{found:?}");
        std::fs::write(&path, "1\nx\n").unwrap();
        let error = KeyDraw::new(&shape.parse().unwrap(), 3).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn malformed_distributions_are_refused_by_name() {
        for text in ["zipf", "zipf:x", "zipf:0", "hotspot:2:1", "pareto:1", "empirical:"] {
            let error = text.parse::<KeyShape>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        for text in ["constant", "uniform:3:1", "normal:1", "cauchy:1", "constant:-1"] {
            let error = text.parse::<Amount>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
