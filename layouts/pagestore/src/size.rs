//! Sizes in bytes, written as people write them.

use crate::{Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;

/// A number of bytes; parses and prints like `256MiB`.
///
/// ```
/// use alluvium_pagestore::ByteSize;
///
/// let size: ByteSize = "64MiB".parse()?;
/// assert_eq!(size.0, 64 << 20);
/// assert_eq!(size.to_string(), "64MiB");
/// # Ok::<(), alluvium_pagestore::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = match text[digits..].trim() {
            "" | "B" => Some(1),
            "KiB" => Some(KIB),
            "MiB" => Some(MIB),
            "GiB" => Some(GIB),
            _ => None,
        };
        let number = text[..digits].parse::<u64>().ok();
        number.zip(unit).and_then(|(n, unit)| n.checked_mul(unit)).map(ByteSize).ok_or_else(|| {
            let message =
                format!("\"{text}\" is not a size; write bytes, or like 64KiB, 256MiB, 2GiB");
            Error::new(ErrorKind::Config, message)
        })
    }
}

/// Converts to a number of bytes: a number, or text such as `64MiB`.
pub trait IntoByteSize {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for text that is not a size.
    fn into_byte_size(self) -> Result<ByteSize>;
}

// Of integers `u64` only, so that a number without a type is one.
impl IntoByteSize for u64 {
    fn into_byte_size(self) -> Result<ByteSize> {
        Ok(ByteSize(self))
    }
}

impl IntoByteSize for ByteSize {
    fn into_byte_size(self) -> Result<ByteSize> {
        Ok(self)
    }
}

impl IntoByteSize for &str {
    fn into_byte_size(self) -> Result<ByteSize> {
        self.parse()
    }
}

impl IntoByteSize for String {
    fn into_byte_size(self) -> Result<ByteSize> {
        self.parse()
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl ByteSize {
    /// Formats the size with one decimal and the largest unit that fits, like `56.9MiB`.
    pub fn short(self) -> String {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit {
                return format!("{:.1}{name}", self.0 as f64 / unit as f64);
            }
        }
        format!("{}B", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Ok(ByteSize(bytes)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [("0", 0), ("12", 12), ("64KiB", 65536), ("3GiB", 3 << 30), ("5B", 5)]
        {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
        for text in ["", "MiB", "1.5GiB", "12 parsecs", "99999999999999999999", "17179869184GiB"] {
            let refused = text.parse::<ByteSize>().unwrap_err();
            assert!(refused.message().contains("is not a size"), "{refused}");
        }
    }
}
