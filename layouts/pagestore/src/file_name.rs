//! Names of files, as they are kept in memory: a kind and a number. The text is made when a file is created, opened or
//! removed.
//!
//! What it keeps true: a name that ends in a number owns no memory, so that what is noted of a file takes the same for each.

use std::fmt;

/// The name of a file in a store's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(NameParts);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum NameParts {
    Numbered(FileKind, u64),
    /// Of a few files, such as the manifest.
    Other(Box<OtherName>),
}

/// Apart, so that a name is as short as a number is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct OtherName(Box<str>);

/// What a numbered file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A segment of records.
    Segment,
    /// A sorted run.
    Run,
    /// A checkpoint's live sets and lists of the dead.
    LiveRecords,
    /// A checkpoint.
    Checkpoint,
}

const KINDS: [FileKind; 4] =
    [FileKind::Segment, FileKind::Run, FileKind::LiveRecords, FileKind::Checkpoint];
/// Digits of a number.
const DIGITS: usize = 16;

impl FileKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Segment => "seg-",
            Self::Run => "run-",
            Self::LiveRecords => "live-",
            Self::Checkpoint => "checkpoint-",
        }
    }

    /// Returns the number of a file of this kind. No other spelling of the number is one of ours.
    pub(crate) fn number_in(self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix())?;
        let is_ours = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_number = digits.len() == DIGITS && digits.bytes().all(is_ours);
        is_number.then(|| u64::from_str_radix(digits, 16).ok())?
    }
}

impl FileName {
    /// Makes the name of a numbered file.
    pub fn numbered(kind: FileKind, number: u64) -> Self {
        Self(NameParts::Numbered(kind, number))
    }

    /// Returns the kind and the number of a numbered file.
    pub fn number(&self) -> Option<(FileKind, u64)> {
        match self.0 {
            NameParts::Numbered(kind, number) => Some((kind, number)),
            NameParts::Other(_) => None,
        }
    }
}

impl From<&str> for FileName {
    fn from(name: &str) -> Self {
        let number = |kind: FileKind| kind.number_in(name).map(|number| (kind, number));
        Self(match KINDS.into_iter().find_map(number) {
            Some((kind, number)) => NameParts::Numbered(kind, number),
            None => NameParts::Other(Box::new(OtherName(name.into()))),
        })
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NameParts::Numbered(kind, number) => write!(f, "{}{number:016x}", kind.prefix()),
            NameParts::Other(name) => f.write_str(&name.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_was_given() {
        let long = "checkpoint-00000000000000ff0";
        let others =
            ["MANIFEST", "", "seg-", "seg-12", "seg-00000000000000FF", "run-+000000000000001"];
        for name in others.into_iter().chain([long]) {
            let kept = FileName::from(name);
            assert_eq!((kept.to_string().as_str(), kept.number()), (name, None));
        }
        for kind in KINDS {
            for number in [0, 255, u64::MAX] {
                let kept = FileName::numbered(kind, number);
                assert_eq!(FileName::from(&*kept.to_string()), kept);
                assert_eq!(kept.number(), Some((kind, number)));
            }
        }
        assert_eq!(FileName::from("seg-00000000000000ff").number(), Some((FileKind::Segment, 255)));
        assert_eq!(size_of::<FileName>(), 16);
    }
}
