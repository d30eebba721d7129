//! Firing sessions: what the watermark lets happen, timer by timer.
//!
//! A timer that comes too early, because its session was extended, is set again. Events that wait come in
//! when all sessions have closed that were closed for them.

use alluvium_pagestore::{ErrorKind, Key, Result, Time};

use super::super::contents::Out;
use super::super::session_contents::SessionContents;
use super::super::{Advanced, Emit, clipped};
use super::Sessions;
use super::rest::SessionDiff;

impl<K, C> Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    /// As [`Aligned::advance`](super::super::aligned::Aligned::advance).
    pub(crate) fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, C::Row>,
    ) -> Result<Advanced> {
        let watermark = self.progress.advance(watermark)?;
        self.reach.advance(watermark);
        let mut fuel = fuel.max(1);
        while fuel > 0 {
            fuel -= 1;
            self.catch_up(out)?;
            if self.let_in(watermark, out)? || self.late.unload(fuel.max(1))? {
                continue;
            }
            let waiting = self.late.first()?.filter(|sent| *sent <= watermark);
            // Sessions that were closed for an event that waits close first.
            if self.fire(waiting.unwrap_or(watermark), &mut fuel, out)? {
                continue;
            }
            if self.timers.lack(&self.progress, waiting.unwrap_or(watermark)) {
                fuel = self.timers.bring_in(&self.progress, &mut *self.sets, fuel)?;
                continue;
            }
            match waiting {
                Some(sent) => {
                    // All sessions that were closed then are closed: nothing else joins these.
                    self.progress.settled.set(sent.max(self.progress.settled.get()));
                    self.late.begin(sent);
                }
                None => return self.settle(watermark, fuel),
            }
        }
        Ok(Advanced { done: false })
    }

    /// Lets the next event in that has waited; says whether there was one.
    fn let_in(&mut self, watermark: Time, out: Out<'_, K, C::Row>) -> Result<bool> {
        let Some((sent, (at, key, item))) = self.late.take() else { return Ok(false) };
        // Others may still come that were sent with the watermark.
        let noted = match sent < watermark {
            true => Ok(()),
            false => self.note_reach(&key, sent),
        };
        if let Err(error) = noted.and_then(|()| self.put(at, &key, &item, out)) {
            self.late.give_back((at, key, item));
            return Err(error);
        }
        self.late.is_in((at, key, item));
        Ok(true)
    }

    /// Does what timers before `watermark` ask for, one or more as far as there is fuel; says whether
    /// there was one.
    fn fire(&mut self, watermark: Time, fuel: &mut usize, out: Out<'_, K, C::Row>) -> Result<bool> {
        let mut has_fired = false;
        while self.fire_next(watermark)? {
            has_fired = true;
            if *fuel == 0 {
                break;
            }
            *fuel -= 1;
            self.catch_up(out)?;
        }
        Ok(has_fired)
    }

    /// Does what the first timer before `watermark` asks for, if there is one.
    fn fire_next(&mut self, watermark: Time) -> Result<bool> {
        let next = self.timers.pop(&self.progress, watermark);
        let Some((at, key)) = next else { return Ok(false) };
        let (rules, rest) = (self.rules, &mut self.rest);
        let mut is_emptied = false;
        let looked_at = self.sets.modify(&key, &mut |set| {
            // Several sessions may have had this timer; each gets the next of its own.
            let mut removed = 0;
            for n in rules.armed(set, at).into_iter().flatten() {
                let n = n - removed;
                let Some(session) = set.get_mut(n).filter(|session| session.2.0 == at) else {
                    continue;
                };
                let next = rules.due(session, at.plus(-1));
                if next > at {
                    session.2.0 = next;
                    rest.unset.push((next, key.clone()));
                    continue;
                }
                let span = (session.0, session.1);
                let tells = rules.emit == Emit::OnClose || !session.2.1;
                session.2.1 = true;
                let close = rules.due(session, at);
                let is_closed = close <= at;
                let tell = SessionDiff { diff: i64::from(tells), is_closed };
                rest.telling.push_back((key.clone(), span, session.3.clone(), tell));
                if is_closed {
                    set.remove(n);
                    removed += 1;
                } else {
                    session.2.0 = close;
                    rest.unset.push((close, key.clone()));
                }
            }
            is_emptied = set.is_empty();
        });
        match looked_at {
            Ok(()) if is_emptied => self.rest.emptied.push(key),
            Ok(()) => {}
            Err(error) => {
                self.rest.unset.push((at, key));
                return Err(error);
            }
        }
        Ok(true)
    }

    fn settle(&mut self, watermark: Time, mut fuel: usize) -> Result<Advanced> {
        let closed = match watermark {
            Time::MAX => Time::MAX,
            _ => clipped(i128::from(watermark.0) - i128::from(self.rules.lateness)),
        };
        self.progress.settled.set(watermark);
        self.progress.busy.set(false);
        self.progress.due.set(false);
        // Sessions that nobody extends end within the gap.
        self.contents.prefetch(watermark.plus(self.rules.gap))?;
        if self.timers.are_few(&self.progress) && !self.progress.is_moving() {
            match self.timers.bring_in(&self.progress, &mut *self.sets, fuel) {
                // It is yet to be needed.
                Err(error) if error.kind() == ErrorKind::OverBudget => {}
                looked => fuel = looked?,
            }
        }
        let done = closed == Time::MIN || self.contents.purge(closed, fuel.max(1))?;
        Ok(Advanced { done })
    }
}
