//! Seeded chance, and how much of it.

#[path = "../../../../layouts/tests/common/dice.rs"]
mod chance;

pub use chance::Dice;

/// `default`, or what the environment variable says.
pub fn times(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}
