//! The elements of one key, gathered from memory and from runs, in order.
//!
//! Whoever gathers has cursors that all stand at the key's place or after it, and the key's pieces
//! in memory. What comes first is decided by bucket and rank; of each cursor only one entry is in
//! memory at a time. Keys of the same hash, of which there is hardly ever more than one, may
//! alternate in a run: those that are passed are noted, and each has its turn.

use alluvium_pagestore::{Error, ErrorKind, Result};

use super::block::NextElements;
use super::chain_unsafe::ElementChunks;
use super::element_type_unsafe::ElementSlice;
use super::frozen::FrozenElements;
use super::key_unsafe::{KeyRef, OwnedKey, has};
use super::notes::{OwnedRuns, resolve};
use super::run_cursor::RunCursor;

/// Before what it comes: the number of the bucket it belongs to, and its shifted rank.
type ArrivalOrder = (usize, i64);

/// Where the elements of one key were left, until they are gathered again by cursors that have not moved.
#[derive(Clone, Copy, Debug)]
pub struct GatherStop {
    turn: ArrivalOrder,
    /// Elements of what had its turn that are still to be told.
    left: usize,
}

/// The elements of one key.
pub struct GatheredElements<'c, 'a> {
    key: KeyRef<'c>,
    place: u64,
    views: &'c [OwnedRuns],
    cursors: &'c mut [RunCursor],
    /// Of each cursor, whose turn its entry has; `None` if it has none of the key.
    fronts: Vec<Option<ArrivalOrder>>,
    /// Pieces in memory, the last first.
    pieces: Vec<(ArrivalOrder, ElementChunks<'a>)>,
    current: CurrentElements<'a>,
    /// Whose turn that is.
    turn: ArrivalOrder,
    /// Other keys at the same place.
    others: &'c mut Vec<OwnedKey>,
    /// Elements that were told, and passed.
    looked_at: u64,
    /// A read failed. What comes after is not told then, whatever the caller made of the error.
    failed: Option<ErrorKind>,
}

enum CurrentElements<'a> {
    None,
    Memory(ElementChunks<'a>),
    /// A cursor, and how many elements of its entry were told.
    Stored(usize, usize),
}

impl<'c, 'a> GatheredElements<'c, 'a> {
    /// Gathers `key`, which stands at `place`, from its pieces in memory and from cursors at that
    /// place or after it. `others` gets the keys that stand at the same place.
    pub fn new(
        (key, place): (KeyRef<'c>, u64),
        views: &'c [OwnedRuns],
        cursors: &'c mut [RunCursor],
        pieces: impl Iterator<Item = FrozenElements<'a>>,
        others: &'c mut Vec<OwnedKey>,
    ) -> Result<Self> {
        let mut own: Vec<_> = pieces
            .filter_map(|piece| {
                let (owner, delta) = resolve(views, piece.source)?;
                Some(((owner, piece.rank.saturating_add(delta)), piece.chain?.chunks()))
            })
            .collect();
        own.sort_by_key(|(turn, _)| std::cmp::Reverse(*turn));
        let fronts = vec![None; cursors.len()];
        let mut gathered = Self {
            key,
            place,
            views,
            cursors,
            fronts,
            pieces: own,
            current: CurrentElements::None,
            turn: (0, 0),
            others,
            looked_at: 0,
            failed: None,
        };
        for number in 0..gathered.cursors.len() {
            let cursor = &gathered.cursors[number];
            if cursor.drives || resolve(views, (cursor.bucket, cursor.number)).is_some() {
                gathered.find(number)?;
            }
        }
        Ok(gathered)
    }

    /// Whether there is any element.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.fronts.iter().all(Option::is_none)
    }

    /// Moves a cursor to its next entry of the key.
    fn find(&mut self, number: usize) -> Result<()> {
        self.fronts[number] = None;
        let cursor = &mut self.cursors[number];
        while cursor.peek()? == Some(self.place) {
            let key = cursor.key();
            if key != self.key {
                if !has(self.others, key) {
                    self.others.push(key.to_owned());
                }
            } else if let Some((owner, delta)) = resolve(self.views, (cursor.bucket, cursor.number))
            {
                self.fronts[number] = Some((owner, cursor.rank().saturating_add(delta)));
                return Ok(());
            }
            self.looked_at += 1;
            cursor.advance();
        }
        Ok(())
    }

    /// Begins with what comes next, and says whether there is anything.
    fn turn(&mut self) -> bool {
        let stored =
            self.fronts.iter().enumerate().filter_map(|(n, turn)| Some((turn.as_ref()?, n)));
        let stored = stored.min();
        let memory = self.pieces.last().map(|(turn, _)| turn);
        let stored = match (stored, memory) {
            (Some((first, _)), Some(turn)) if turn < first => None,
            (stored, _) => stored.map(|(turn, number)| (*turn, CurrentElements::Stored(number, 0))),
        };
        let next = match stored {
            Some(stored) => stored,
            None => match self.pieces.pop() {
                Some((turn, piece)) => (turn, CurrentElements::Memory(piece)),
                None => {
                    self.current = CurrentElements::None;
                    return false;
                }
            },
        };
        (self.turn, self.current) = next;
        true
    }

    /// Leaves the list, of whose last chunk `unread` elements are still to be told; the cursors stand
    /// where they are needed to [go on](GatheredElements::go_on).
    pub fn stop(self, unread: usize) -> GatherStop {
        let left = match &self.current {
            CurrentElements::None => 0,
            CurrentElements::Memory(piece) => piece.len(),
            CurrentElements::Stored(number, told) => self.cursors[*number].elements().len() - told,
        };
        GatherStop { turn: self.turn, left: left + unread }
    }

    /// Goes on where the list was left.
    pub fn go_on(&mut self, stop: GatherStop) {
        self.pieces.retain(|(turn, _)| *turn >= stop.turn);
        if let Some(number) = self.fronts.iter().position(|front| *front == Some(stop.turn)) {
            let told = self.cursors[number].elements().len() - stop.left;
            self.current = CurrentElements::Stored(number, told);
        } else if self.pieces.last().is_some_and(|(turn, _)| *turn == stop.turn) {
            let (_, mut piece) = self.pieces.pop().expect("looked at above");
            piece.pass(piece.len() - stop.left);
            self.current = CurrentElements::Memory(piece);
        }
        self.turn = stop.turn;
    }

    fn check(&self) -> Result<()> {
        match self.failed {
            Some(kind) => Err(Error::new(kind, "an earlier read of this list failed")),
            None => Ok(()),
        }
    }

    /// Passes all that was not told, so that the cursors stand after the key's place.
    pub fn finish(mut self) -> Result<u64> {
        self.check()?;
        for number in 0..self.cursors.len() {
            while self.fronts[number].is_some() {
                self.cursors[number].advance();
                self.find(number)?;
            }
        }
        self.looked_at += self.pieces.len() as u64;
        Ok(self.looked_at)
    }
}

impl GatheredElements<'_, '_> {
    /// Goes to where the next elements are; says whether there are any.
    fn come_to_next(&mut self) -> Result<bool> {
        self.check()?;
        loop {
            match &self.current {
                CurrentElements::Memory(piece) if piece.len() > 0 => return Ok(true),
                CurrentElements::Stored(number, told) => {
                    let number = *number;
                    if *told < self.cursors[number].elements().len() {
                        return Ok(true);
                    }
                    self.current = CurrentElements::None;
                    self.cursors[number].advance();
                    if let Err(error) = self.find(number) {
                        self.failed = Some(error.kind());
                        return Err(error);
                    }
                }
                CurrentElements::Memory(_) | CurrentElements::None => {}
            }
            if !self.turn() {
                return Ok(false);
            }
        }
    }

    /// The next elements that stand side by side, or only one of them.
    fn next(&mut self, is_one: bool) -> Result<Option<ElementSlice<'_>>> {
        if !self.come_to_next()? {
            return Ok(None);
        }
        let slice = match &mut self.current {
            CurrentElements::Memory(piece) if is_one => piece.next_one(),
            CurrentElements::Memory(piece) => piece.next_slice(),
            CurrentElements::Stored(number, told) => {
                let [_, rest] = self.cursors[*number].elements().split_at(*told);
                let slice = if is_one { rest.split_at(1)[0] } else { rest };
                *told += slice.len();
                Some(slice)
            }
            CurrentElements::None => None,
        };
        self.looked_at += slice.map_or(0, |slice| slice.len() as u64);
        Ok(slice)
    }
}

impl NextElements for GatheredElements<'_, '_> {
    fn next_one(&mut self) -> Result<Option<ElementSlice<'_>>> {
        self.next(true)
    }

    fn next_slice(&mut self) -> Result<Option<ElementSlice<'_>>> {
        self.next(false)
    }
}
