//! Days of the Gregorian calendar, in UTC, and the ranks of prices: what q15, q16 and q17 group by.

use alluvium::Time;

/// Days since 1970.
pub(super) type Day = i64;

const DAY_NS: i64 = 86_400_000_000_000;

/// The prices from which a bid has the second and the third rank.
const RANKS: [i64; 2] = [10_000, 1_000_000];

/// The day of a time.
pub(super) fn day(at: Time) -> Day {
    at.0.div_euclid(DAY_NS)
}

/// The minute of its day of a time, from 0.
pub(super) fn minute_of_day(at: Time) -> u16 {
    let minute = at.0.rem_euclid(DAY_NS) / 60_000_000_000;
    // A day has 1440.
    minute.try_into().unwrap_or(u16::MAX)
}

/// The rank of a price: 0, 1 or 2.
pub(super) fn rank(price: i64) -> usize {
    RANKS.iter().filter(|&&from| price >= from).count()
}

/// `yyyy-MM-dd`.
///
/// Reckoned in years that begin in March, so that the leap day is the last, from 0000-03-01, in
/// eras of 400 years, after Howard Hinnant's `civil_from_days`.
pub(super) fn date(day: Day) -> String {
    let days = day + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (16_631, "2015-07-15"),
            (18_321, "2020-02-29"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-106_752, "1677-09-21"),
        ] {
            assert_eq!(date(day), expected);
        }
    }

    #[test]
    fn times_have_their_day_and_minute_before_1970_too() {
        for (ms, expected) in [
            (0, (0, 0)),
            (-1, (-1, 1_439)),
            (86_399_999, (0, 1_439)),
            (86_400_000 + 59_999, (1, 0)),
            (86_400_000 + 60_000, (1, 1)),
        ] {
            let at = Time::from_ms(ms);
            assert_eq!((day(at), minute_of_day(at)), expected, "{ms} ms");
        }
    }
}
