//! Segments that are given up together, and how far the frames in memory have been looked through for
//! records of them.

use crate::hybrid_log::frame_set::FrameSet;

/// Numbers of segments: a bit for each.
#[derive(Debug, Default)]
pub struct SegmentSet(Vec<u64>);

impl SegmentSet {
    /// Puts a number in.
    pub fn insert(&mut self, segment: u32) {
        let word = segment as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (segment % 64);
    }

    /// Puts in what another one has.
    pub fn insert_all(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    /// Takes a number out.
    pub fn remove(&mut self, segment: u32) {
        if let Some(word) = self.0.get_mut(segment as usize / 64) {
            *word &= !(1 << (segment % 64));
        }
    }

    /// Whether a number is in it.
    #[inline]
    pub fn has(&self, segment: u32) -> bool {
        let word = self.0.get(segment as usize / 64);
        word.is_some_and(|word| word >> (segment % 64) & 1 == 1)
    }
}

/// A set of segments, and the frame that is next.
#[derive(Debug, Default)]
pub struct LeavingSegments {
    segments: SegmentSet,
    /// Frames that may have records of them.
    frames: FrameSet,
    next: u32,
    /// Those that come later have nothing that was on storage before.
    end: u32,
    /// A frame that may have records of them could not be looked through.
    has_skipped: bool,
}

impl LeavingSegments {
    /// No segments yet, to be looked for in so many frames.
    pub fn none(frames: usize) -> Self {
        Self { end: frames as u32, ..Self::default() }
    }

    /// Adds a segment, of which frames may have records.
    pub fn add(&mut self, segment: u32, frames: FrameSet) {
        self.segments.insert(segment);
        self.frames.insert_all(frames);
    }

    /// All of them.
    pub fn segments(&self) -> &SegmentSet {
        &self.segments
    }

    /// A segment is gone.
    pub fn remove(&mut self, segment: u32) {
        self.segments.remove(segment);
    }

    /// Whether a segment is one of them.
    #[inline]
    pub fn has(&self, segment: u32) -> bool {
        self.segments.has(segment)
    }

    /// How many frames may have records of them.
    pub fn frames(&self) -> u64 {
        self.frames.count()
    }

    /// Whether a frame may.
    pub fn may_be_in(&self, frame: u32) -> bool {
        self.frames.may_have(frame)
    }

    /// Whether all frames have been looked through, or there is nothing to look for.
    pub fn is_over(&self) -> bool {
        self.segments.0.is_empty() || self.next >= self.end
    }

    /// The frame that was next cannot be looked through now.
    pub fn skip(&mut self) {
        self.has_skipped = true;
    }

    /// Whether there were frames that could not be looked through.
    pub fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// The frame to look through now.
    pub fn next_frame(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_added_and_ends_after_the_last_frame() {
        let mut leaving = LeavingSegments::none(5);
        assert!(leaving.is_over(), "nothing to look for");
        let mut frames = FrameSet::default();
        frames.insert(3);
        for segment in [0, 63, 64, 200] {
            leaving.add(segment, frames);
        }
        for segment in 0..1000 {
            assert_eq!(leaving.has(segment), [0, 63, 64, 200].contains(&segment), "{segment}");
        }
        leaving.remove(63);
        leaving.remove(5000);
        assert!(!leaving.has(63) && leaving.has(0) && leaving.has(64));
        let mut all = SegmentSet::default();
        all.insert(700);
        all.insert_all(leaving.segments());
        assert!([0, 64, 200, 700].into_iter().all(|segment| all.has(segment)) && !all.has(63));
        let mut looked = Vec::new();
        while !leaving.is_over() {
            looked.push(leaving.next_frame());
        }
        assert_eq!(looked, [0, 1, 2, 3, 4]);
        assert!(leaving.may_be_in(3) && !leaving.may_be_in(4) && leaving.frames() == 1);
    }
}
