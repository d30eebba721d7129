//! What an event or a timer entails beside the set of its key: timers to set, results to tell, sets to
//! remove. It is noted in memory and done before anything else, by the same call or, if memory is
//! short, by the next one. No checkpoint is taken meanwhile.

use std::collections::VecDeque;

use alluvium_pagestore::{Key, Result, Time};

use super::super::come_out::ComeOut;
use super::super::contents::Out;
use super::super::reach::SessionSpan;
use super::super::session_contents::SessionContents;
use super::Sessions;
use super::next_timers::NextTimers;
use super::rules::EventEffects;

pub(super) struct SessionRest<K, P> {
    /// Timers that found no room yet.
    pub(super) unset: Vec<(Time, K)>,
    /// Keys without sessions whose sets are to be removed.
    pub(super) emptied: Vec<K>,
    /// What is to be told of sessions, and whether they are closed.
    pub(super) telling: VecDeque<(K, SessionSpan, P, SessionDiff)>,
    /// Rows of the first of these that came out before a read failed.
    come_out: ComeOut,
}

/// What is to be told of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionDiff {
    pub(super) diff: i64,
    pub(super) is_closed: bool,
}

impl<K: Key + Ord, P> SessionRest<K, P> {
    pub(super) fn new() -> Self {
        let (unset, emptied, telling) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { unset, emptied, telling, come_out: ComeOut::default() }
    }

    fn is_empty(&self) -> bool {
        self.unset.is_empty() && self.telling.is_empty() && self.emptied.is_empty()
    }

    /// Does what a change of a set entails; what cannot be done now is noted.
    pub(super) fn follow(&mut self, timers: &mut NextTimers<K>, joined: EventEffects<K, P>) {
        let EventEffects { key, set, cancel, taken_back, told } = joined;
        for at in cancel {
            timers.cancel(key.clone(), at);
        }
        let tell = |diff| SessionDiff { diff, is_closed: false };
        for (span, part) in taken_back {
            self.telling.push_back((key.clone(), span, part, tell(-1)));
        }
        if let Some((span, part)) = told {
            self.telling.push_back((key.clone(), span, part, tell(1)));
        }
        self.unset.extend(set.map(|at| (at, key)));
    }
}

impl<K, C> Sessions<K, C>
where
    K: Key + Ord,
    C: SessionContents<K>,
{
    /// Does what the calls before had to leave: lets an event in that is kept already, sets timers, tells
    /// what is to be told.
    #[inline]
    pub(crate) fn catch_up(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        if self.entering.is_none() && self.rest.is_empty() {
            return Ok(());
        }
        let done = self.do_rest(out);
        if done.is_err() {
            self.progress.busy.set(true);
        }
        done
    }

    fn do_rest(&mut self, out: Out<'_, K, C::Row>) -> Result<()> {
        self.enter(out)?;
        let Self { rest, timers, contents, sets, rules, progress, .. } = self;
        while let Some((at, key)) = rest.unset.pop() {
            if let Err(error) = timers.set(progress, &key, at) {
                rest.unset.push((at, key));
                return Err(error);
            }
        }
        while let Some((key, span, part, tell)) = rest.telling.front_mut() {
            if tell.diff != 0 {
                let come_out = &mut rest.come_out;
                come_out.try_again();
                let new = &mut |key: &K, window, row, diff| {
                    if come_out.is_new() {
                        out(key, window, row, diff);
                    }
                };
                contents.tell(key, (rules.window(*span), span.1), part, tell.diff, new)?;
                rest.come_out = ComeOut::default();
                // Told, also if it cannot be forgotten yet.
                tell.diff = 0;
            }
            if tell.is_closed {
                contents.forget(key, span.1, part)?;
            }
            rest.telling.pop_front();
        }
        while let Some(key) = rest.emptied.pop() {
            match sets.take(&key) {
                // Nothing was added since.
                Ok(set) => debug_assert!(set.is_none_or(|set| set.is_empty())),
                Err(error) => {
                    rest.emptied.push(key);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
