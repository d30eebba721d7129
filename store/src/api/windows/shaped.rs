//! Windows of either shape over their contents: aligned, or sessions.

use alluvium_pagestore::{Key, Result, Time};

use super::aligned::Aligned;
use super::contents::{Out, SliceContents};
use super::session_contents::SessionContents;
use super::sessions::Sessions;
use super::{Advanced, Late, ProgressCell, clipped};
use crate::cells::cell_handle::CellHandle;
use crate::store::kept_back::KeptByWindows;

/// Windows whose contents are `C` if they are aligned, and `S` if they are sessions.
pub(crate) enum Shaped<K, C, S>
where
    K: Key + Ord,
    C: SliceContents<K>,
    S: SessionContents<K, Element = C::Element, Item = C::Item, Row = C::Row>,
{
    Aligned(Box<Aligned<K, C>>),
    Sessions(Box<Sessions<K, S>>),
}

impl<K, C, S> Shaped<K, C, S>
where
    K: Key + Ord,
    C: SliceContents<K>,
    S: SessionContents<K, Element = C::Element, Item = C::Item, Row = C::Row>,
{
    pub(crate) fn progress(&self) -> &CellHandle<ProgressCell> {
        match self {
            Shaped::Aligned(windows) => &windows.progress,
            Shaped::Sessions(windows) => &windows.progress,
        }
    }

    /// Looks at events that come to the windows `name`. Returns the time with which they count as
    /// sent, and whether all are in time.
    pub(crate) fn look_at(
        &self,
        name: &str,
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        late: &mut dyn FnMut(Late<K, C::Element>),
    ) -> Result<(Time, bool)> {
        self.progress().check_events(name, self.progress().own(), batch)?;
        let sent = sent.max(self.progress().watermark.get());
        // With the check of keys for states whose key groups move, the only look at each event before it is folded
        // in: nearly always all are in time.
        let in_time = batch.iter().all(|(_, at, _)| (sent..Time::MAX).contains(at));
        if !in_time {
            drop_timeless(sent, batch, late);
        }
        Ok((sent, in_time))
    }

    /// Does what was left of an event that is kept, with memory that is kept back: then a checkpoint can be taken. If that
    /// fails, the next call goes on with it, and says why.
    #[cold]
    pub(crate) fn catch_up(&mut self, kept_back: &KeptByWindows, out: Out<'_, K, C::Row>) {
        let Shaped::Sessions(windows) = self else { return };
        if kept_back.try_lent(&mut || windows.catch_up(out)) {
            windows.progress.busy.set(false);
        }
    }

    /// Adds events to sessions, or events of which some are not in time.
    pub(crate) fn add_others(
        &mut self,
        (sent, in_time): (Time, bool),
        batch: &mut Vec<(K, Time, C::Element)>,
        late: &mut dyn FnMut(Late<K, C::Element>),
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        match self {
            Shaped::Aligned(windows) => windows.add_one_by_one(sent, batch, late, out),
            Shaped::Sessions(windows) if in_time => windows.add_in_time(sent, batch, out),
            Shaped::Sessions(windows) => windows.add_one_by_one(sent, batch, late, out),
        }
    }

    pub(crate) fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, C::Row>,
    ) -> Result<Advanced> {
        match self {
            Shaped::Aligned(windows) => windows.advance(watermark, fuel, out),
            Shaped::Sessions(windows) => windows.advance(watermark, fuel, out),
        }
    }

    /// Of sessions: keeps no more timers in memory than that.
    pub(crate) fn keep_timers(&mut self, most: usize) {
        if let Shaped::Sessions(windows) = self {
            windows.keep_timers(most);
        }
    }

    pub(crate) fn clear_poison(&mut self) {
        match self {
            Shaped::Aligned(windows) => windows.contents.clear_poison(),
            Shaped::Sessions(windows) => windows.clear_poison(),
        }
    }
}

/// Hands events at the end of time to `late`: no window has them.
#[cold]
fn drop_timeless<K, E>(
    sent: Time,
    batch: &mut Vec<(K, Time, E)>,
    late: &mut dyn FnMut(Late<K, E>),
) {
    for (key, at, element) in batch.extract_if(.., |(_, at, _)| *at == Time::MAX) {
        let lateness = clipped(i128::from(sent.0) - i128::from(at.0)).0;
        late(Late { at, key, element, lateness });
    }
}
