//! Memory that events of windows leave: to the next checkpoint, to opening again, and to firing.
//!
//! Windows are several states in one memory, and each looks after its own next checkpoint. Heap states keep free what
//! theirs takes, but book nothing: events of other states would take it. Opening takes a little more than was there, as
//! tables grow in another order. Sessions that close are reads and writes, which want memory as any others do. So while
//! memory is little, that is booked here: of the store, and of sets of sessions in memory of their own.
//!
//! What it keeps true: an event is let in only if all of it is booked. It is lent while a state is opened, while a
//! checkpoint is taken, and to windows that fire and lack memory; an event that comes beside a checkpoint leaves as
//! much free.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use alluvium_pagestore::{Account, ErrorKind, MemoryKind, ReclaimScope, Result};

use super::{Reservation, StoreCore};
use crate::api::windows::Advanced;
use crate::cells::state_cell::Hooks;

/// With more memory than this nothing is booked: the growth of states leaves it free.
const LITTLE: u64 = 1 << 20;
/// What opening takes beside what states had, and a checkpoint beside what each keeps: with sums by slice, each of whose
/// states opens only if so much is free for slices, and with sessions.
const TO_OPEN: u64 = 40 << 10;
const TO_OPEN_SESSIONS: u64 = 24 << 10;
/// What late events and progress take, once they are restored, that they did not take when they were new.
const RESTORED: u64 = 8 << 10;
/// What closing sessions takes of the memory of their sets.
const TO_CLOSE: u64 = 32 << 10;

/// What is kept back of one memory.
pub(crate) struct KeptBack {
    above: Rc<Account>,
    account: Rc<Account>,
    wanted: Cell<u64>,
    missing: Cell<u64>,
    /// Not booked, but left free by the growth of all states: of more than little memory.
    left_free: Cell<u64>,
    /// A checkpoint is being taken, and has a part of it in use.
    is_sealing: Cell<bool>,
    /// Whose memory it is, if it is not the store's: nobody else asks it for some.
    state: Option<Weak<dyn Hooks>>,
}

impl KeptBack {
    fn new(above: &Rc<Account>, state: Option<Weak<dyn Hooks>>) -> Rc<Self> {
        let account = Account::below(above, "what windows keep back", u64::MAX);
        let (wanted, missing, left_free, is_sealing) = Default::default();
        let above = above.clone();
        Rc::new(Self { above, account, wanted, missing, left_free, is_sealing, state })
    }

    /// Has all states leave so much free from now on, beside what one of them keeps; it is not booked.
    fn leave_free(&self, bytes: u64) {
        self.left_free.set(self.left_free.get().max(bytes));
        self.account.keep_free(0, self.left_free.get());
    }

    /// Wants so much from now on.
    fn want(&self, bytes: u64) {
        self.lend();
        self.wanted.set(bytes);
        self.missing.set(bytes);
    }

    /// Gives back all that is booked, until events come again; says whether that was something.
    fn lend(&self) -> bool {
        let booked = self.wanted.get() - self.missing.get();
        self.missing.set(self.wanted.get());
        // A state that is gone may have given back all that was booked of its memory.
        let is_there = self.above.used_for(MemoryKind::Buffers) >= booked;
        if is_there {
            self.account.release(MemoryKind::Buffers, booked);
        }
        self.tell();
        is_there && booked > 0
    }

    /// Other states need not leave what is booked of the store's memory: checkpoints have it first.
    fn tell(&self) {
        if self.state.is_none() {
            self.above.has_to_lend(self.wanted.get() - self.missing.get());
        }
    }

    fn has_all(&self) -> bool {
        self.missing.get() == 0
    }

    /// Makes sure that an event leaves enough.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if there is no room for it.
    fn check(&self) -> Result<()> {
        if self.is_sealing.get() { self.make_room(self.wanted.get()) } else { self.fill() }
    }

    fn make_room(&self, bytes: u64) -> Result<()> {
        let available = self.account.available();
        if let Some(state) = self.state.as_ref().and_then(Weak::upgrade)
            && available < bytes
        {
            state.reclaim(ReclaimScope::All, bytes - available)?;
        }
        self.account.ensure(bytes, "what windows leave for checkpoints and for firing")
    }

    /// Books what is missing, unless a checkpoint has it, but for pages that others are to have. Events are refused where
    /// that fails.
    fn try_fill(&self) {
        let missing = self.missing.get();
        if missing > 0 && !self.is_sealing.get() {
            let _asked = self.make_room(missing);
            self.book(missing.min(self.account.available_to_open()));
        }
    }

    fn book(&self, more: u64) {
        self.account.charge(MemoryKind::Buffers, more);
        self.missing.set(self.missing.get() - more);
        self.tell();
    }

    /// Books what is missing, as far as there is room.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn fill(&self) -> Result<()> {
        let missing = self.missing.get();
        let filled = self.make_room(missing);
        self.book(missing.min(self.account.available()));
        filled
    }
}

impl Drop for KeptBack {
    fn drop(&mut self) {
        self.lend();
    }
}

/// All that windows of a store keep back.
pub(crate) struct AllKeptBack {
    of_store: Rc<KeptBack>,
    /// Those of states with memory of their own, by their names.
    of_states: RefCell<Vec<(String, Rc<KeptBack>)>>,
}

impl AllKeptBack {
    pub(super) fn new(root: &Rc<Account>) -> Self {
        Self { of_store: KeptBack::new(root, None), of_states: RefCell::default() }
    }

    fn each(&self, call: impl Fn(&KeptBack)) {
        call(&self.of_store);
        self.of_states.borrow().iter().for_each(|(_, kept)| call(kept));
    }

    /// Before a checkpoint is taken.
    pub(crate) fn lend(&self) {
        self.each(|kept| {
            kept.lend();
        });
    }

    /// A checkpoint is being taken.
    pub(crate) fn seal(&self) {
        self.each(|kept| kept.is_sealing.set(true));
    }

    /// None is taken any more.
    pub(crate) fn end_seal(&self) {
        self.each(|kept| kept.is_sealing.set(false));
        self.fill();
    }

    /// Books what is missing as far as there is room, so that no other state takes it before the next event.
    pub(crate) fn fill(&self) {
        self.each(KeptBack::try_fill);
    }
}

/// Windows that are being opened.
pub(crate) struct WindowsToOpen {
    is_new: bool,
    meanwhile: Option<Reservation>,
}

/// What a handle of windows knows of what they keep back.
pub(crate) struct KeptByWindows {
    name: String,
    root: Rc<Account>,
    all: Vec<Rc<KeptBack>>,
}

impl KeptByWindows {
    /// Before an event is let in.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if what is kept back has no room.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.all.iter().all(|kept| kept.has_all()) { Ok(()) } else { self.check_slowly() }
    }

    #[cold]
    #[inline(never)]
    fn check_slowly(&self) -> Result<()> {
        let checked =
            self.all.iter().filter(|kept| !kept.has_all()).try_for_each(|kept| kept.check());
        checked.map_err(|error| error.with("windows", &self.name))
    }

    /// Fires windows, with what is kept back if memory is short, and with what is left free.
    pub(crate) fn fire(&self, fire: &mut dyn FnMut() -> Result<Advanced>) -> Result<Advanced> {
        match fire() {
            Err(error) if error.kind() == ErrorKind::OverBudget && self.lend() => {
                let _lenient = self.root.lend_left_free();
                let fired = fire();
                self.all.iter().for_each(|kept| kept.try_fill());
                fired
            }
            fired => fired,
        }
    }

    /// Does what was to be done, and was refused memory, with what is kept back and left free; says whether it is done.
    pub(crate) fn try_lent(&self, again: &mut dyn FnMut() -> Result<()>) -> bool {
        self.lend() && {
            let _lenient = self.root.lend_left_free();
            let done = again().is_ok();
            self.all.iter().for_each(|kept| kept.try_fill());
            done
        }
    }

    fn lend(&self) -> bool {
        let mut has_lent = false;
        self.all.iter().for_each(|kept| has_lent |= kept.lend());
        has_lent || self.root.left_free() > 0
    }
}

impl StoreCore {
    /// Whether there is one that states are restored from.
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.checkpoints.borrow().base().is_some()
    }

    /// Before a state is opened, or tried: it may have what is kept back if there is a checkpoint.
    pub(super) fn lend_to_open(&self) {
        if self.has_checkpoint() {
            let _ = self.kept_back.of_store.lend();
        }
    }

    /// Before the windows `name` are opened: if they are new, some memory is taken meanwhile, so that they open again where
    /// what a checkpoint has of late events and of progress is in memory before the rest is opened.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if there is no room for it.
    pub(crate) fn keep_back_to_open(&self, name: &str) -> Result<WindowsToOpen> {
        let progress = format!("{name}/progress");
        let is_there = self.states.borrow().iter().any(|state| state.manifest.name == progress);
        let is_restored = self.checkpoints.borrow().base().is_some() || self.sources.is_some();
        let is_new = !is_there && !is_restored;
        let mut meanwhile = None;
        if is_new && self.segments.is_some() && self.root.limit() <= LITTLE {
            let (account, bytes) = (self.root.clone(), RESTORED);
            let reserved = account.reserve(MemoryKind::Buffers, bytes, "opening windows again");
            reserved.map_err(|error| error.with("state", name))?;
            meanwhile = Some(Reservation { account, bytes });
        }
        Ok(WindowsToOpen { is_new, meanwhile })
    }

    /// The windows `name` were opened, whose sessions are in `sets` if they are sessions: their events leave what each state
    /// keeps, and what closing sessions takes.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if they are new and there is no memory for it.
    pub(crate) fn keep_back(
        &self,
        name: &str,
        sets: Option<&str>,
        WindowsToOpen { is_new, meanwhile }: WindowsToOpen,
    ) -> Result<KeptByWindows> {
        drop(meanwhile);
        let before = self.kept_back.of_store.wanted.get();
        let (root, all) = (self.root.clone(), Vec::new());
        let mut kept = KeptByWindows { name: name.to_owned(), root, all };
        if self.segments.is_none() {
            return Ok(kept);
        }
        let more = if sets.is_some() { TO_OPEN_SESSIONS } else { TO_OPEN };
        let of_store = &self.kept_back.of_store;
        if self.root.limit() <= LITTLE {
            of_store.want((self.kept_by_parts(name) + more).max(before));
            kept.all.push(of_store.clone());
        } else {
            of_store.leave_free(more);
        }
        kept.all.extend(sets.and_then(|sets| self.keep_back_of(sets)));
        if !is_new {
            self.kept_back.fill();
        } else if let Err(error) = kept.check() {
            kept.all.iter().for_each(|kept| kept.want(0));
            self.kept_back.of_store.want(before);
            return Err(error);
        }
        Ok(kept)
    }

    /// The most that a state of the windows `name` leaves free and does not book. States that are short of memory are written
    /// one after the other.
    fn kept_by_parts(&self, name: &str) -> u64 {
        let states = self.states.borrow();
        let is_part = |of: &str| {
            of.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let parts = states.iter().filter(|state| is_part(&state.manifest.name));
        parts.map(|state| state.hooks.kept_bytes()).max().unwrap_or(0)
    }

    /// What the state `name` keeps back of memory of its own, if it has some, and little.
    fn keep_back_of(&self, name: &str) -> Option<Rc<KeptBack>> {
        let states = self.states.borrow();
        let state = states.iter().find(|state| state.manifest.name == name)?;
        let limit = state.account.limit();
        if limit > LITTLE || limit >= self.root.limit() {
            return None;
        }
        let mut of_states = self.kept_back.of_states.borrow_mut();
        of_states.retain(|(of, _)| of != name);
        let kept = KeptBack::new(&state.account, Some(Rc::downgrade(&state.hooks)));
        kept.is_sealing.set(self.kept_back.of_store.is_sealing.get());
        kept.want(TO_CLOSE);
        of_states.push((name.to_owned(), kept.clone()));
        Some(kept)
    }
}
