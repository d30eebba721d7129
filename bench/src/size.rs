//! Sizes as people write them: `256MiB`, `64KiB`, `1GiB`, or plain bytes.

use std::fmt;
use std::str::FromStr;

use crate::Error;

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// A number of bytes, parsed from and printed with a binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let shift = match unit.trim_start() {
            "" | "B" => Some(0),
            unit => UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, shift)| shift),
        };
        let refuse = |why: &str| {
            Err(Error::Usage(format!(
                "size {text:?} {why}; write for instance 65536, 64KiB or 1GiB"
            )))
        };
        let Some(shift) = shift else {
            return refuse("has no unit of KiB, MiB, GiB, TiB or B (1 KiB is 1024 bytes)");
        };
        match digits.parse::<u64>() {
            Ok(count) if count <= u64::MAX >> shift => Ok(Size(count << shift)),
            Err(_) if digits.is_empty() => refuse("has no whole number before its unit"),
            _ => refuse("is above 16 EiB"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact =
            |&&(_, shift): &&(&str, u32)| self.0 >> shift > 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().rev().find(exact) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, bytes) in
            [("0", 0), ("4096B", 4_096), ("64KiB", 65_536), ("256MiB", 1 << 28), ("3 GiB", 3 << 30)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!(size, Size(bytes), "{text}");
            assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
        }
        assert_eq!(Size(1 << 28).to_string(), "256MiB");
        assert_eq!(Size(1_000).to_string(), "1000");
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "MiB", "12MB", "1.5GiB", "-1", "99999999999GiB", "1e6"] {
            let message = text.parse::<Size>().unwrap_err().to_string();
            assert!(
                message.contains(&format!("{text:?}")) && message.contains("64KiB"),
                "{message}"
            );
        }
    }
}
