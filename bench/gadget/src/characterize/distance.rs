//! How far two distributions of keys are apart.
//!
//! A key stands for its number by first appearance in its own trace, so that both distributions
//! have the domain of the numbers from 0: as section 4 of the paper maps them.

use serde::{Deserialize, Serialize};

/// Distances of two distributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distance {
    /// Kolmogorov-Smirnov: the largest difference of the two cumulative distributions.
    pub ks: f64,
    /// The chance of one as large if both were samples of one distribution, asymptotically.
    pub p: f64,
    /// Wasserstein: the area between the two cumulative distributions.
    pub wasserstein: f64,
    /// Accesses of the first.
    pub n: u64,
    /// Accesses of the second.
    pub m: u64,
}

/// How often each key comes, by first appearance.
pub fn counts<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Vec<u64> {
    let mut numbers = hashbrown::HashMap::<K, usize, foldhash::fast::FixedState>::default();
    let mut counts = Vec::new();
    for key in keys {
        let next = numbers.len();
        let number = *numbers.entry(key).or_insert(next);
        if number == counts.len() {
            counts.push(0);
        }
        counts[number] += 1;
    }
    counts
}

/// The distances of two distributions, each as the number of times that each key comes.
pub fn between(one: &[u64], two: &[u64]) -> Distance {
    let (n, m) = (one.iter().sum::<u64>(), two.iter().sum::<u64>());
    let (mut seen, mut ks, mut wasserstein) = ([0; 2], 0.0f64, 0.0);
    for at in 0..one.len().max(two.len()) {
        seen[0] += one.get(at).unwrap_or(&0);
        seen[1] += two.get(at).unwrap_or(&0);
        let apart = seen[0] as f64 / n.max(1) as f64 - seen[1] as f64 / m.max(1) as f64;
        ks = ks.max(apart.abs());
        wasserstein += apart.abs();
    }
    let size = (n as f64 * m as f64 / (n + m).max(1) as f64).sqrt();
    Distance { ks, p: chance((size + 0.12 + 0.11 / size) * ks), wasserstein, n, m }
}

/// Kolmogorov's distribution: the chance to pass `value`.
fn chance(value: f64) -> f64 {
    // Below this the chance is 1 to nine digits, and the sum does not converge.
    if value.is_nan() || value < 0.2 {
        return 1.0;
    }
    let term = |k: i32| {
        let sign = if k % 2 == 1 { 2.0 } else { -2.0 };
        sign * (-2.0 * f64::from(k * k) * value * value).exp()
    };
    (1..=100).map(term).sum::<f64>().clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// | key | one | sum | two | sum | apart |
    /// |-----|-----|-----|-----|-----|-------|
    /// | 0 | 2 | 0.5 | 1 | 0.2 | 0.3 |
    /// | 1 | 1 | 0.75 | 1 | 0.4 | 0.35 |
    /// | 2 | 1 | 1 | 1 | 0.6 | 0.4 |
    /// | 3 | | 1 | 2 | 1 | 0 |
    #[test]
    fn distances_are_those_of_a_table_computed_by_hand() {
        let found = between(&[2, 1, 1], &[1, 1, 1, 2]);
        assert!((found.ks - 0.4).abs() < 1e-12, "{found:?}");
        assert!((found.wasserstein - 1.05).abs() < 1e-12, "{found:?}");
        assert_eq!((found.n, found.m), (4, 5));
        let same = between(&[3, 4], &[3, 4]);
        assert_eq!((same.ks, same.p, same.wasserstein), (0.0, 1.0, 0.0));
        // Kolmogorov's table: 1.36 is passed in 5 of 100 cases, 1.63 in 1, 1.95 in 1 of 1000.
        for (value, wanted) in [(1.36, 0.05), (1.63, 0.01), (1.95, 0.001)] {
            assert!((chance(value) / wanted - 1.0).abs() < 0.03, "{value}: {}", chance(value));
        }
        assert!(chance(0.5) > 0.96 && chance(5.0) < 1e-20);
    }

    #[test]
    fn distances_are_those_of_all_pairs_of_steps() {
        for seed in 1..8 {
            let mut random = Random::new(seed);
            let mut draw =
                |keys: u64| -> Vec<u64> { (0..keys).map(|_| random.below(20)).collect() };
            let (one, two) = (draw(13), draw(40));
            let share = |of: &[u64], up_to: usize| {
                let sum: u64 = of.iter().take(up_to + 1).sum();
                sum as f64 / of.iter().sum::<u64>() as f64
            };
            let apart: Vec<f64> =
                (0..40).map(|at| (share(&one, at) - share(&two, at)).abs()).collect();
            let found = between(&one, &two);
            assert!((found.ks - apart.iter().copied().fold(0.0, f64::max)).abs() < 1e-9);
            assert!((found.wasserstein - apart.iter().sum::<f64>()).abs() < 1e-9);
        }
    }

    #[test]
    fn keys_count_by_first_appearance() {
        assert_eq!(counts(["b", "a", "b", "c", "b"].into_iter()), [3, 1, 1]);
    }
}
