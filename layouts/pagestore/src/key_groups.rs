//! Sets of key groups, as files store them.
//!
//! Invariant: ranges are in order, none is empty, and no two touch. Equal sets are therefore equal
//! as values, including sets read from files.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::KeyGroup;

/// A set of key groups: ranges, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u16, u16)>", into = "Vec<(u16, u16)>")]
pub struct KeyGroups(Vec<Range<u16>>);

impl KeyGroups {
    /// Returns whether the set has the group. Cost: a search among the ranges.
    pub fn contains(&self, group: KeyGroup) -> bool {
        let after = self.0.partition_point(|range| range.start <= group.0);
        after > 0 && group.0 < self.0[after - 1].end
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Returns how many groups are in the range.
    pub fn count_in(&self, range: &Range<u16>) -> usize {
        self.within(range).map(|part| part.len()).sum()
    }

    /// Returns the parts of the set that are in the range.
    pub fn within(&self, range: &Range<u16>) -> impl Iterator<Item = Range<u16>> + '_ {
        let Range { start, end } = *range;
        let parts = self.0.iter().map(move |own| own.start.max(start)..own.end.min(end));
        parts.filter(|part| !part.is_empty())
    }

    /// Returns the ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u16>> + '_ {
        self.0.iter().cloned()
    }

    /// Returns the groups, in order.
    pub fn iter(&self) -> impl Iterator<Item = KeyGroup> + '_ {
        self.0.iter().cloned().flatten().map(KeyGroup)
    }
}

impl From<Range<u16>> for KeyGroups {
    fn from(range: Range<u16>) -> Self {
        Self(Some(range).filter(|range| !range.is_empty()).into_iter().collect())
    }
}

/// Collects groups that come in order.
impl FromIterator<KeyGroup> for KeyGroups {
    fn from_iter<I: IntoIterator<Item = KeyGroup>>(groups: I) -> Self {
        let mut ranges: Vec<Range<u16>> = Vec::new();
        for KeyGroup(group) in groups {
            match ranges.last_mut() {
                Some(last) if last.end == group => last.end += 1,
                _ => ranges.push(group..group + 1),
            }
        }
        Self(ranges)
    }
}

impl TryFrom<Vec<(u16, u16)>> for KeyGroups {
    type Error = String;

    fn try_from(ranges: Vec<(u16, u16)>) -> Result<Self, String> {
        let is_over = |range: &(u16, u16)| range.0 >= range.1;
        if ranges.iter().any(is_over) || ranges.windows(2).any(|two| two[0].1 >= two[1].0) {
            return Err("key groups are not in order".into());
        }
        Ok(Self(ranges.into_iter().map(|(start, end)| start..end).collect()))
    }
}

impl From<KeyGroups> for Vec<(u16, u16)> {
    fn from(groups: KeyGroups) -> Self {
        groups.0.into_iter().map(|range| (range.start, range.end)).collect()
    }
}

/// Formats the ranges, as in `0..4, 7..8`.
impl fmt::Display for KeyGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (nth, Range { start, end }) in self.0.iter().enumerate() {
            let before = if nth > 0 { ", " } else { "" };
            write!(f, "{before}{start}..{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_what_was_put_in() {
        for bits in 0u16..1 << 10 {
            let has = |group: u16| bits >> group & 1 == 1;
            let set: KeyGroups = (0..10).filter(|group| has(*group)).map(KeyGroup).collect();
            assert_eq!(set.len(), bits.count_ones() as usize);
            assert_eq!(set.is_empty(), bits == 0);
            assert!((0..12).all(|group| set.contains(KeyGroup(group)) == has(group)));
            assert!(set.iter().all(|group| has(group.0)) && set.iter().count() == set.len());
            assert_eq!(set.count_in(&(3..7)), (3..7).filter(|group| has(*group)).count());
            let text = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<KeyGroups>(&text).unwrap(), set, "{text}");
        }
        assert_eq!(KeyGroups::from(3..3), KeyGroups::default());
        let set: KeyGroups = [1, 2, 5].map(KeyGroup).into_iter().collect();
        assert_eq!(set.to_string(), "1..3, 5..6");
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in ["[[3,3]]", "[[4,3]]", "[[1,2],[2,3]]", "[[5,6],[1,2]]", "[[1,70000]]", "[[1]]"]
        {
            assert!(serde_json::from_str::<KeyGroups>(text).is_err(), "{text}");
        }
    }
}
