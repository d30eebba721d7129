//! The events of the benchmark, as its generator makes them, and the table of its ads.
//!
//! 100 campaigns of 10 ads each, all identifiers are UUIDs, all fields uniform, as in the original; larger
//! tables and skewed ads are an extension. The original's skew is one of times: an event is up to 50 ms early or
//! late, and one in 100,000 up to a minute late. Each event is a function of the seed and its number, so that a
//! run may be divided among workers and goes on anywhere. What replaces Kafka and JSON: the source makes
//! the events as records, in the worker that sends them.

use serde::{Deserialize, Serialize};

/// Campaigns of the original.
pub const CAMPAIGNS: u64 = 100;
/// Ads of a campaign of the original.
pub const ADS_A_CAMPAIGN: u64 = 10;
/// Length of a window, in nanoseconds.
pub const WINDOW_NS: i64 = 10_000_000_000;

/// When the first event is: some windows after the begin of time, at which tables are loaded, so that late
/// events are after that too.
pub const BEGIN_NS: i64 = 7 * WINDOW_NS;

/// How early or late events are at most, if times are skewed.
const SKEW_MS: u64 = 50;
/// How late some events are, if times are skewed.
pub const LATE_MS: u64 = 60_000;
/// One event in so many is late.
const LATE_ONE_IN: u64 = 100_000;
const MS: i64 = 1_000_000;

/// Which events there are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// Of all that is random.
    pub seed: u64,
    /// Ads of all campaigns together, the same number of each.
    pub ads: u64,
    /// Exponent of a Zipf distribution of the ads; 0 is uniform.
    pub zipf: f64,
    /// Events a second of event time.
    pub rate: u64,
    /// How many there are.
    pub count: u64,
    /// Whether times are skewed, and some events late.
    pub is_skewed: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Who saw it.
    pub user: u128,
    /// Where.
    pub page: u128,
    /// What.
    pub ad: u128,
    /// Of 5: banner, modal, sponsored search, mail, mobile.
    pub ad_type: u8,
    /// Of 3: view, click, purchase.
    pub kind: u8,
    /// When, in nanoseconds, as the event says.
    pub at: i64,
    /// From where.
    pub address: u32,
}

/// The kind of event that counts.
pub const VIEW: u8 = 0;

/// A random number of two, always the same.
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random UUID of version 4.
fn uuid(seed: u64, kind: u64, number: u64) -> u128 {
    let high = u128::from(mixed(seed ^ kind << 56, number * 2));
    let low = u128::from(mixed(seed ^ kind << 56, number * 2 + 1));
    let random = high << 64 | low;
    random & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62
}

/// The UUID as text, in `out`.
pub fn write_uuid(id: u128, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for nibble in (0..32).rev() {
        out.push(DIGITS[(id >> (nibble * 4) & 0xf) as usize]);
        if matches!(nibble, 24 | 20 | 16 | 12) {
            out.push(b'-');
        }
    }
}

/// The UUID of a text, if it is one.
pub fn read_uuid(text: &[u8]) -> Option<u128> {
    let mut id = 0u128;
    let mut digits = 0;
    for &byte in text.iter().filter(|byte| **byte != b'-') {
        id = id << 4 | u128::from((byte as char).to_digit(16)?);
        digits += 1;
    }
    (digits == 32 && text.len() == 36).then_some(id)
}

impl Events {
    /// The ad of this number.
    pub fn ad(&self, number: u64) -> u128 {
        uuid(self.seed, 1, number)
    }

    /// The campaign of the ad of this number.
    pub fn campaign(&self, ad: u64) -> u128 {
        uuid(self.seed, 2, ad / (self.ads / CAMPAIGNS).max(1))
    }

    /// When the event of this number comes.
    pub fn time(&self, number: u64) -> i64 {
        BEGIN_NS + (u128::from(number) * 1_000_000_000 / u128::from(self.rate.max(1))) as i64
    }

    /// The first event that does not come before `time`.
    pub fn first_at(&self, time: i64) -> u64 {
        let since = time.saturating_sub(BEGIN_NS).max(0).unsigned_abs();
        let scaled = u128::from(since) * u128::from(self.rate.max(1));
        scaled.div_ceil(1_000_000_000) as u64
    }

    /// After all windows are over.
    pub fn end(&self) -> i64 {
        ((self.time(self.count) + SKEW_MS as i64 * MS) / WINDOW_NS + 1) * WINDOW_NS
    }

    /// By how much the time that an event says differs from when it comes.
    fn skew(&self, dice: u64, chance: u64) -> i64 {
        if !self.is_skewed {
            return 0;
        }
        let late = if chance % LATE_ONE_IN == 0 { chance / LATE_ONE_IN % LATE_MS } else { 0 };
        ((dice % (2 * SKEW_MS)) as i64 - SKEW_MS as i64 - late as i64) * MS
    }

    /// The event of this number.
    pub fn event(&self, number: u64) -> Event {
        let dice = |field: u64| mixed(self.seed ^ field << 48, number);
        Event {
            user: uuid(self.seed, 3, dice(1) % 100),
            page: uuid(self.seed, 4, dice(2) % 100),
            ad: self.ad(self.ad_number(dice(3))),
            ad_type: (dice(4) % 5) as u8,
            kind: (dice(5) % 3) as u8,
            at: self.time(number) + self.skew(dice(6), dice(7)),
            address: 0x0102_0304,
        }
    }

    /// The number of the ad that a random number stands for. Skewed: the inverse of the continuous power
    /// law between 1 and one more than the ads.
    fn ad_number(&self, random: u64) -> u64 {
        if self.zipf == 0.0 {
            return random % self.ads;
        }
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        let (most, power) = ((self.ads + 1) as f64, 1.0 - self.zipf);
        let rank = match power.abs() < 1e-9 {
            true => most.powf(share),
            false => (1.0 + share * (most.powf(power) - 1.0)).powf(1.0 / power),
        };
        (rank as u64 - 1).min(self.ads - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const EVENTS: Events =
        Events { seed: 7, ads: 1000, zipf: 0.0, rate: 10_000, count: 300_000, is_skewed: false };

    #[test]
    fn events_are_uniform_and_identifiers_are_uuids() {
        let mut kinds = BTreeMap::<u8, u64>::new();
        let mut ads = BTreeMap::<u128, u64>::new();
        for number in 0..EVENTS.count {
            let event = EVENTS.event(number);
            *kinds.entry(event.kind).or_default() += 1;
            *ads.entry(event.ad).or_default() += 1;
        }
        assert_eq!((kinds.len(), ads.len()), (3, 1000));
        assert!(kinds.values().all(|count| count.abs_diff(100_000) < 1_500), "{kinds:?}");
        assert!(ads.values().all(|count| count.abs_diff(300) < 120));
        let mut text = Vec::new();
        write_uuid(EVENTS.ad(3), &mut text);
        assert_eq!((text[14], text.len(), read_uuid(&text)), (b'4', 36, Some(EVENTS.ad(3))));
        assert_eq!(read_uuid(b"what"), None);
        let campaigns: BTreeMap<u128, u64> = (0..1000).fold(BTreeMap::new(), |mut all, ad| {
            *all.entry(EVENTS.campaign(ad)).or_default() += 1;
            all
        });
        assert!(campaigns.len() == 100 && campaigns.values().all(|ads| *ads == 10));
    }

    #[test]
    fn skewed_ads_fall_as_a_power_of_their_rank() {
        let events = Events { zipf: 1.0, ads: 100_000, ..EVENTS };
        let mut counts = vec![0u64; 100_000];
        for number in 0..200_000u64 {
            counts[events.ad_number(mixed(1, number)) as usize] += 1;
        }
        let below = |rank: usize| counts[..rank].iter().sum::<u64>() as f64 / 200_000.0;
        // Logarithmic shares: 1 of 5 decades each.
        for (rank, share) in [(9, 0.2), (99, 0.4), (999, 0.6), (9_999, 0.8)] {
            assert!((below(rank) - share).abs() < 0.01, "{rank}: {}", below(rank));
        }
    }

    #[test]
    fn times_are_skewed_as_in_the_original() {
        let events = Events { is_skewed: true, count: 1_000_000, ..EVENTS };
        let (mut early, mut late) = (0u64, 0u64);
        for number in 0..events.count {
            let by = events.event(number).at - events.time(number);
            assert!((-60_050 * MS..50 * MS).contains(&by) && by % MS == 0, "{by}");
            assert_eq!(EVENTS.event(number).at, EVENTS.time(number));
            early += u64::from(by >= 0);
            late += u64::from(by < -50 * MS);
        }
        assert!(early.abs_diff(500_000) < 3_000 && (2..25).contains(&late), "{early}, {late}");
    }

    #[test]
    fn a_run_goes_on_at_the_first_event_that_is_not_before_a_time() {
        for rate in [10_000, 3, 999_983] {
            let events = Events { rate, ..EVENTS };
            for number in [0, 1, 2, 17, 29_999, 299_999] {
                let time = events.time(number);
                let first = events.first_at(time);
                assert!(
                    events.time(first) >= time && (first == 0 || events.time(first - 1) < time)
                );
            }
        }
    }
}
