//! Aligned windows, over any contents.
//!
//! Events go into slices, once. Windows fire in the order of their ends, a window whole before the
//! next; empty ones are passed over. What it keeps true: an event counts for exactly the windows
//! that were open at the time it was sent with, whatever the watermark was when it came. So an event
//! that is late for some of its windows waits, in a list of its own, until these have fired.

use alluvium_layouts::Cursor;
use alluvium_pagestore::{Error, Key, Result, Time};

use super::contents::{Out, SliceContents};
use super::late::LateEvents;
use super::progress::ProgressCell;
use super::{Advanced, Emit, Grid, Late, Window, Windows, clipped, has_come};
use crate::cells::cell_handle::CellHandle;

pub(crate) struct Aligned<K: Key, C: SliceContents<K>> {
    pub(super) grid: Grid,
    lateness: i128,
    emit: Emit,
    pub(crate) contents: C,
    late: LateEvents<K, C::Item>,
    pub(crate) progress: CellHandle<ProgressCell>,
    /// The window that is being fired.
    firing: Option<FiringWindow>,
    /// Up to where early results have come out.
    early: Time,
    /// The end of the last window that gave one this time.
    early_fired: Option<i128>,
    /// The end of the last window that was read ahead as the watermark came near.
    ahead: Option<i128>,
    /// Changes of windows that have fired, until the event that makes them is in.
    changes: Vec<(Window, C::Row, i64)>,
}

/// A window that is being fired, and how far that is.
#[derive(Clone, Copy)]
struct FiringWindow {
    end: i128,
    /// Before its time.
    is_early: bool,
    cursor: Cursor,
}

impl FiringWindow {
    fn of(end: i128, is_early: bool) -> Self {
        Self { end, is_early, cursor: Cursor::default() }
    }
}

/// Whether a window ends before time does. Others are told once, at the end of time: their ends are
/// clipped, and what was told of two of them before would be kept under one name.
fn is_in_time(end: i128) -> bool {
    end < i128::from(Time::MAX.0)
}

/// The last time, up to the watermark, at which early results come out; if any do.
fn last_early(emit: Emit, watermark: Time) -> Option<Time> {
    let Emit::Early(every) = emit else { return None };
    let every = super::stored(every);
    Some(Time(watermark.0.div_euclid(every).saturating_mul(every)))
}

/// What to do next.
enum NextStep {
    Fire(i128),
    FireEarly(i128),
    Unload(Time),
    Nothing,
}

impl<K: Key, C: SliceContents<K>> Aligned<K, C> {
    pub(crate) fn new(
        grid: Grid,
        windows: &Windows,
        contents: C,
        late: LateEvents<K, C::Item>,
        progress: CellHandle<ProgressCell>,
    ) -> Self {
        // A checkpoint has no firing in it: all early results of its watermark have come out.
        let early = last_early(windows.emit, progress.watermark.get()).unwrap_or(Time::MIN);
        Self {
            grid,
            lateness: windows.lateness.into(),
            emit: windows.emit,
            contents,
            late,
            progress,
            firing: None,
            early,
            early_fired: None,
            ahead: None,
            changes: Vec::new(),
        }
    }

    /// Adds events that were sent with the time `sent`, some of them late; those that are too late for all
    /// of their windows go to `drop`. What was not added, because of an error, is left in the batch.
    pub(crate) fn add_one_by_one(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, C::Element)>,
        drop: &mut dyn FnMut(Late<K, C::Element>),
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        let mut rest = std::mem::take(batch).into_iter();
        let mut one = Vec::with_capacity(1);
        for (key, at, element) in rest.by_ref() {
            if at < sent && has_come(self.close_of(self.grid.last_end(at)), sent) {
                let lateness = clipped(i128::from(sent.0) - i128::from(at.0)).0;
                drop(Late { at, key, element, lateness });
                continue;
            }
            one.push((key, at, element));
            let done = match at < sent {
                true => self.add_late(sent, &mut one, out),
                false => self.contents.add_batch(&self.grid, &mut one),
            };
            if let Err(error) = done {
                batch.extend(one.into_iter().chain(rest));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Adds an event that is late, but not for all of its windows.
    fn add_late(
        &mut self,
        sent: Time,
        one: &mut Vec<(K, Time, C::Element)>,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        let Some((key, at, element)) = one.last() else { return Ok(()) };
        let at = *at;
        let end = self.grid.first_end(at);
        let may_be_closed =
            has_come(self.close_of(end), sent) && self.progress.settled.get() < sent;
        // What is being fired must not change meanwhile.
        let is_firing =
            self.emit != Emit::OnClose && self.firing.is_some_and(|firing| end <= firing.end);
        let item = self.contents.item(element);
        if may_be_closed || is_firing {
            self.late.keep(sent, key, at, item).map_err(Error::from)?;
        } else {
            self.put(sent, at, &key.clone(), item, out)?;
        }
        one.clear();
        Ok(())
    }

    /// When a window takes no more events.
    fn close_of(&self, end: i128) -> i128 {
        end + self.lateness
    }

    /// When a window fires.
    fn fire_of(&self, end: i128) -> i128 {
        match self.emit {
            Emit::OnClose => end + self.lateness,
            Emit::OnWatermark | Emit::Early(_) => end,
        }
    }

    /// Puts an event into its slice, and tells how that changes windows that have fired.
    fn put(
        &mut self,
        sent: Time,
        at: Time,
        key: &K,
        item: C::Item,
        out: Out<'_, K, C::Row>,
    ) -> Result<()> {
        let slice = self.grid.slice_of(at);
        let mut changes = std::mem::take(&mut self.changes);
        changes.clear();
        if self.emit != Emit::OnClose {
            let fired = self.progress.fired.get().unwrap_or(i128::MIN);
            let watermark = self.progress.watermark.get();
            let is_due = |end: i128| end > fired && has_come(self.fire_of(end), watermark);
            if self.grid.ends(at).any(is_due) {
                self.progress.due.set(true);
            }
            for end in self.grid.ends(at).filter(|end| *end <= fired) {
                if has_come(self.close_of(end), sent) {
                    continue;
                }
                let (slices, window) = (self.grid.slices_of(end), self.grid.window(end));
                let note = &mut |_: &K, window, row, diff| changes.push((window, row, diff));
                self.contents.refire(slices, window, key, slice, &item, note)?;
            }
        }
        self.contents.put(slice, key, item)?;
        changes.drain(..).for_each(|(window, row, diff)| out(key, window, row, diff));
        self.changes = changes;
        Ok(())
    }

    /// Says that no event before `watermark` is still to come: fires what that lets fire and drops
    /// what nobody needs any more, as far as `fuel` goes, counted in keys.
    pub(crate) fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, C::Row>,
    ) -> Result<Advanced> {
        let progress = self.progress.clone();
        let watermark = progress.advance(watermark)?;
        let mut fuel = fuel.max(1);
        while fuel > 0 {
            let let_in = self.let_in(fuel, out)?;
            let used = if let_in > 0 {
                let_in
            } else if self.late.unload(fuel)? {
                1
            } else if let Some(firing) = self.firing {
                self.fire(firing, fuel, out)?
            } else {
                match self.next_step(watermark)? {
                    NextStep::Fire(end) => {
                        self.contents.begin_window()?;
                        self.firing = Some(FiringWindow::of(end, false));
                    }
                    NextStep::FireEarly(end) => self.firing = Some(FiringWindow::of(end, true)),
                    NextStep::Unload(sent) => {
                        // All windows that were closed then are over, also the empty ones.
                        progress.settled.set(sent.max(progress.settled.get()));
                        self.late.begin(sent);
                    }
                    NextStep::Nothing => return self.settle(watermark, fuel),
                }
                0
            };
            fuel = fuel.saturating_sub(used);
        }
        Ok(Advanced { done: false })
    }

    /// What the watermark lets happen next: windows fire in order of their ends, and events that
    /// wait come in when all windows that were closed for them have fired.
    fn next_step(&mut self, watermark: Time) -> Result<NextStep> {
        let due = self.next_due()?;
        if let Some(sent) = self.late.first()?.filter(|sent| *sent <= watermark)
            && !due.is_some_and(|end| has_come(self.close_of(end), sent))
        {
            return Ok(NextStep::Unload(sent));
        }
        match due {
            Some(end) if has_come(self.fire_of(end), watermark) => Ok(NextStep::Fire(end)),
            Some(end) => self.next_early(end, watermark),
            None => {
                // Nothing was there to be told early.
                self.early = self.early.max(last_early(self.emit, watermark).unwrap_or(Time::MIN));
                Ok(NextStep::Nothing)
            }
        }
    }

    /// The next window of which an early result is due; `due` is the first that has not fired.
    fn next_early(&mut self, due: i128, watermark: Time) -> Result<NextStep> {
        let passed = last_early(self.emit, watermark).filter(|passed| *passed > self.early);
        let Some(passed) = passed else { return Ok(NextStep::Nothing) };
        let next = match self.early_fired {
            Some(fired) => due.max(self.grid.next_end(fired)),
            None => due,
        };
        let slice = self.contents.next_slice(self.grid.slices_of(next).start)?;
        let next = slice.map(|slice| next.max(self.grid.first_end(slice)));
        // Windows that begin later have had no time yet.
        match next.filter(|end| self.grid.window(*end).start < watermark && is_in_time(*end)) {
            Some(end) => Ok(NextStep::FireEarly(end)),
            None => {
                (self.early, self.early_fired) = (passed, None);
                Ok(NextStep::Nothing)
            }
        }
    }

    /// The end of the next window to fire, if any has something in it. Windows that were closed
    /// when all was done are over, also those that never had anything.
    fn next_due(&self) -> Result<Option<i128>> {
        let closed = i128::from(self.progress.settled.get().0) - self.lateness;
        let open = self.grid.first_end(clipped(closed));
        let next = match self.progress.fired.get() {
            Some(fired) => open.max(self.grid.next_end(fired)),
            None => open,
        };
        let slice = self.contents.next_slice(self.grid.slices_of(next).start)?;
        Ok(slice.map(|slice| next.max(self.grid.first_end(slice))))
    }

    /// Fires some keys of a window; says how many units that took.
    fn fire(
        &mut self,
        mut firing: FiringWindow,
        fuel: usize,
        out: Out<'_, K, C::Row>,
    ) -> Result<usize> {
        let end = firing.end;
        let (slices, window) = (self.grid.slices_of(end), self.grid.window(end));
        let mut used = 1;
        let count = &mut |key: &K, window, row, diff| {
            used += 1;
            out(key, window, row, diff);
        };
        let of = (slices, window, is_in_time(end));
        let done = self.contents.fire(of, &mut firing.cursor, fuel, count);
        self.firing = Some(firing);
        used += done?;
        if firing.cursor.done {
            self.firing = None;
            if firing.is_early {
                self.early_fired = Some(end);
                return Ok(used);
            }
            self.progress.fired.set(Some(end));
            let next = self.grid.window(self.grid.next_end(end));
            if self.emit == Emit::OnClose {
                self.contents.purge(next.start, next.end, fuel)?;
            }
            self.contents.prefetch(next.end)?;
        }
        Ok(used)
    }

    /// Lets events that have waited come in; says how many.
    fn let_in(&mut self, fuel: usize, out: Out<'_, K, C::Row>) -> Result<usize> {
        let mut used = 0;
        while used < fuel
            && let Some((sent, (at, key, item))) = self.late.take()
        {
            used += 1;
            // Cloned, so that it is not lost by an error: there are few of these.
            if let Err(error) = self.put(sent, at, &key, item.clone(), out) {
                self.late.give_back((at, key, item));
                return Err(error);
            }
            self.late.is_in((at, key, item));
        }
        Ok(used)
    }

    /// Has the next window read ahead, once, when no more than an eighth of its length is left: of
    /// windows that share nothing, nothing was on storage when the one before fired.
    fn read_ahead(&mut self, watermark: Time) -> Result<()> {
        let near = clipped(i128::from(watermark.0) + self.grid.length() / 8);
        match self.next_due()? {
            Some(end) if self.ahead != Some(end) && has_come(self.fire_of(end), near) => {
                self.ahead = Some(end);
                self.contents.prefetch(self.grid.window(end).end)
            }
            _ => Ok(()),
        }
    }

    /// All that may fire has fired: drops what no open window needs.
    fn settle(&mut self, watermark: Time, fuel: usize) -> Result<Advanced> {
        let open = match watermark {
            Time::MAX => Window { start: Time::MAX, end: Time::MAX },
            _ => {
                let closed = clipped(i128::from(watermark.0) - self.lateness);
                self.grid.window(self.grid.first_end(closed))
            }
        };
        self.progress.settled.set(watermark);
        self.progress.busy.set(false);
        self.progress.due.set(false);
        self.read_ahead(watermark)?;
        let done = open.start == Time::MIN || self.contents.purge(open.start, open.end, fuel)?;
        Ok(Advanced { done })
    }
}
