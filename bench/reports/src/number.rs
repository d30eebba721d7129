//! Numbers in three digits.

/// Formats a rate or a number of bytes in three digits with K, M or G.
pub fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "K"),
        v => (v, ""),
    };
    let digits = if value >= 99.95 || value == 0.0 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

/// Formats nanoseconds with their unit.
pub fn time(ns: f64) -> String {
    match ns {
        v if v >= 1e9 => format!("{} s", short(v / 1e9)),
        v if v >= 1e6 => format!("{} ms", short(v / 1e6)),
        v if v >= 1e3 => format!("{} us", short(v / 1e3)),
        v => format!("{v:.0} ns"),
    }
}

/// Formats a value of a column whose header has the unit: three digits, or all digits of the whole
/// part with its thousands separated.
pub fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => thousands(value),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn thousands(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, plain) = plain.strip_prefix('-').map_or(("", &plain[..]), |plain| ("-", plain));
    let groups: Vec<_> = plain.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{sign}{}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts: Vec<_> = [0.0, 0.5, 12.3456, 99.96, 1234.0, 5.678e7].map(short).into();
        assert_eq!(texts, ["0", "0.50", "12.3", "100", "1.23K", "56.8M"]);
        assert_eq!(
            (time(12.0), time(1500.0), time(2e9)),
            ("12 ns".into(), "1.50 us".into(), "2.00 s".into())
        );
    }

    #[test]
    fn digits_of_a_column_need_no_unit() {
        let found = [0.0, 0.0123, 0.9996, 1.5, 9.996, 54.321, 99.96, 1234.5, 7_654_321.0];
        let expected = ["0", "0.012", "1.00", "1.50", "10.0", "54.3", "100", "1,234", "7,654,321"];
        assert_eq!(found.map(digits), expected);
        assert_eq!((digits(-1e6), digits(-0.5)), ("-1,000,000".to_owned(), "-0.500".to_owned()));
    }
}
