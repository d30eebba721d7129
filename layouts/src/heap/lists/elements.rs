//! Elements of lists, shown to a caller: those of one list, and those of several.

use alluvium_pagestore::Result;

use crate::contract::lists::Elements;

/// Elements of one list.
pub(super) struct Listed<'a, E>(pub(super) std::slice::Iter<'a, E>);

impl<E> Elements<E> for Listed<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        Ok(self.0.next())
    }

    fn next_chunk(&mut self) -> Result<&[E]> {
        Ok(std::mem::take(&mut self.0).as_slice())
    }
}

/// Elements of several lists, and how many were told.
pub(super) struct Joined<'a, E> {
    pub(super) lists: std::vec::IntoIter<&'a Vec<E>>,
    pub(super) list: std::slice::Iter<'a, E>,
    pub(super) told: usize,
}

impl<E> Elements<E> for Joined<'_, E> {
    fn next(&mut self) -> Result<Option<&E>> {
        loop {
            if let Some(element) = self.list.next() {
                self.told += 1;
                return Ok(Some(element));
            }
            match self.lists.next() {
                Some(list) => self.list = list.iter(),
                None => return Ok(None),
            }
        }
    }

    fn next_chunk(&mut self) -> Result<&[E]> {
        while self.list.len() == 0 {
            match self.lists.next() {
                Some(list) => self.list = list.iter(),
                None => return Ok(&[]),
            }
        }
        self.told += self.list.len();
        Ok(std::mem::take(&mut self.list).as_slice())
    }
}
