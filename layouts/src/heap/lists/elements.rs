//! Elements of lists, shown to a caller.

use alluvium_pagestore::Result;

use crate::contract::lists::Elements;

/// Elements of several lists, and how many were told.
pub(super) struct JoinedElements<'a, E> {
    lists: std::vec::IntoIter<&'a Vec<E>>,
    list: std::slice::Iter<'a, E>,
    pub(super) told: usize,
}

impl<'a, E> JoinedElements<'a, E> {
    /// Those of a list, and of others behind it.
    pub(super) fn new(list: &'a [E], lists: Vec<&'a Vec<E>>) -> Self {
        Self { lists: lists.into_iter(), list: list.iter(), told: 0 }
    }
}

impl<E> Elements<E> for JoinedElements<'_, E> {
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
