//! The elements of one key, gathered from memory and from runs, in order.
//!
//! Whoever gathers has cursors that all stand at the key's place or after it, and the key's pieces
//! in memory. What comes first is decided by bucket and rank; of each cursor only one entry is in
//! memory at a time. Keys of the same hash, of which there is hardly ever more than one, may
//! alternate in a run: those that are passed are noted, and each has its turn.

use alluvium_pagestore::{Error, ErrorKind, Key, Result, State};

use super::chain_unsafe::Iter;
use super::frozen::Piece;
use super::notes::{View, resolve};
use super::run::RunCursor;
use crate::contract::lists::Elements;

/// Before what it comes: the number of the bucket it belongs to, and its shifted rank.
type Turn = (usize, i64);

/// Where the elements of one key were left, until they are gathered again by cursors that have not moved.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    turn: Turn,
    /// Elements of what had its turn that are still to be told.
    left: usize,
}

/// The elements of one key.
pub struct Gathered<'c, 'a, K, E> {
    key: &'c K,
    place: u64,
    views: &'c [View],
    cursors: &'c mut [RunCursor<K, E>],
    /// Of each cursor, whose turn its entry has; `None` if it has none of the key.
    fronts: Vec<Option<Turn>>,
    /// Pieces in memory, the last first.
    pieces: Vec<(Turn, Iter<'a, E>)>,
    current: Current<'a, E>,
    /// Whose turn that is.
    turn: Turn,
    /// Other keys at the same place.
    others: &'c mut Vec<K>,
    /// Elements that were told, and passed.
    looked_at: u64,
    /// A read failed. What comes after is not told then, whatever the caller made of the error.
    failed: Option<ErrorKind>,
}

enum Current<'a, E> {
    None,
    Memory(Iter<'a, E>),
    /// A cursor, and how many elements of its entry were told.
    Stored(usize, usize),
}

impl<'c, 'a, K: Key, E: State> Gathered<'c, 'a, K, E> {
    /// Gathers `key`, which stands at `place`, from its pieces in memory and from cursors at that
    /// place or after it. `others` gets the keys that stand at the same place.
    pub fn new(
        (key, place): (&'c K, u64),
        views: &'c [View],
        cursors: &'c mut [RunCursor<K, E>],
        pieces: impl Iterator<Item = Piece<'a, K, E>>,
        others: &'c mut Vec<K>,
    ) -> Result<Self>
    where
        K: 'a,
    {
        let mut own: Vec<_> = pieces
            .filter_map(|piece| {
                let (owner, delta) = resolve(views, piece.source)?;
                Some(((owner, piece.rank.saturating_add(delta)), piece.chain?.iter()))
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
            current: Current::None,
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
            let entry = cursor.entry();
            if entry.key != *self.key {
                if !self.others.contains(&entry.key) {
                    self.others.push(entry.key.clone());
                }
            } else if let Some((owner, delta)) = resolve(self.views, (cursor.bucket, cursor.number))
            {
                self.fronts[number] = Some((owner, entry.rank.saturating_add(delta)));
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
            (stored, _) => stored.map(|(turn, number)| (*turn, Current::Stored(number, 0))),
        };
        let next = match stored {
            Some(stored) => stored,
            None => match self.pieces.pop() {
                Some((turn, piece)) => (turn, Current::Memory(piece)),
                None => {
                    self.current = Current::None;
                    return false;
                }
            },
        };
        (self.turn, self.current) = next;
        true
    }

    /// Leaves the list, of whose last chunk `unread` elements are still to be told; the cursors stand
    /// where they are needed to [go on](Gathered::go_on).
    pub fn stop(self, unread: usize) -> Stop {
        let left = match &self.current {
            Current::None => 0,
            Current::Memory(piece) => piece.len(),
            Current::Stored(number, told) => self.cursors[*number].entry().elements.len() - told,
        };
        Stop { turn: self.turn, left: left + unread }
    }

    /// Goes on where the list was left.
    pub fn go_on(&mut self, stop: Stop) {
        self.pieces.retain(|(turn, _)| *turn >= stop.turn);
        if let Some(number) = self.fronts.iter().position(|front| *front == Some(stop.turn)) {
            let told = self.cursors[number].entry().elements.len() - stop.left;
            self.current = Current::Stored(number, told);
        } else if self.pieces.last().is_some_and(|(turn, _)| *turn == stop.turn) {
            let (_, mut piece) = self.pieces.pop().expect("looked at above");
            piece.pass(piece.len() - stop.left);
            self.current = Current::Memory(piece);
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

impl<K: Key, E: State> Elements<E> for Gathered<'_, '_, K, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        self.check()?;
        loop {
            match &mut self.current {
                Current::Memory(piece) => {
                    if let Some(element) = piece.next() {
                        self.looked_at += 1;
                        return Ok(Some(element));
                    }
                }
                Current::Stored(number, told) => {
                    let number = *number;
                    if *told < self.cursors[number].entry().elements.len() {
                        *told += 1;
                        self.looked_at += 1;
                        let told = *told;
                        return Ok(self.cursors[number].entry().elements.get(told - 1));
                    }
                    self.current = Current::None;
                    self.cursors[number].advance();
                    if let Err(error) = self.find(number) {
                        self.failed = Some(error.kind());
                        return Err(error);
                    }
                }
                Current::None => {}
            }
            if !self.turn() {
                return Ok(None);
            }
        }
    }

    fn next_chunk(&mut self) -> Result<&[E]> {
        // One element tells where the next ones are.
        if self.next()?.is_none() {
            return Ok(&[]);
        }
        let chunk = match &mut self.current {
            Current::Memory(piece) => piece.rest_of_chunk(),
            Current::Stored(number, told) => {
                let elements = &self.cursors[*number].entry().elements;
                let first = std::mem::replace(told, elements.len()) - 1;
                &elements[first..]
            }
            Current::None => unreachable!("an element was told of something"),
        };
        self.looked_at += chunk.len() as u64 - 1;
        Ok(chunk)
    }
}
