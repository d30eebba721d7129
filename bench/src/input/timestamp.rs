//! Times as text, in UTC.

use alluvium::Time;

/// `YYYY-MM-DD HH:MM:SS[.fraction]`, the fraction in up to nine digits, of the years 1678 to 2261.
pub(crate) fn parse_time(text: &str) -> std::result::Result<Time, String> {
    let parse = || {
        let (date, clock) = text.split_once(' ')?;
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let [year, month, day] = numbers(date, '-')?;
        let [hour, minute, second] = numbers(clock, ':')?;
        if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
        let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600;
        let seconds = seconds + minute * 60 + second;
        Some(Time(seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?))
    };
    parse().ok_or_else(|| format!("{text:?} is not a time like 2020-01-01 00:00:01.5"))
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let number = |part: &str| part.parse().ok().filter(|number| (0..10_000).contains(number));
    let parts = text.split(separator).map(number);
    parts.collect::<Option<Vec<i64>>>()?.try_into().ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, after Howard Hinnant's
/// `days_from_civil`: years begin in March, so that the leap day is the last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_an_optional_fraction() {
        let ms = |text| parse_time(text).unwrap().as_ms();
        assert_eq!(ms("1970-01-01 00:00:00"), 0);
        assert_eq!(ms("2015-07-15 00:00:00"), 1_436_918_400_000);
        assert_eq!(ms("2020-02-29 23:59:59.5"), 1_583_020_799_500);
        assert_eq!(ms("1970-01-01 00:00:02.001"), 2_001);
        assert_eq!(parse_time("1970-01-01 00:00:02.0000001").unwrap(), Time(2_000_000_100));
        for text in [
            "2020-01-01",
            "2020-01-01 00:00:00.1234567890",
            "2020-01-01 00:00:00.+1",
            "2020-01-01 00:00",
            "9999-01-01 00:00:00",
            "99999999999999-01-01 00:00:00",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
