//! Which accesses are legal in which order, for the keys of each operator.
//!
//! A key is in one of a few states; an access is legal in some of them and leads to one. "No access
//! after delete" holds where nothing leads out of [`Gone`](At::Gone).

use crate::access::{Class, Kind, Role, Trace};
use crate::{Error, Result};

/// Where a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// Never written.
    #[default]
    New,
    /// Read to be written; the put has to follow.
    Read,
    /// Written.
    Live,
    /// Read for the last time; the delete has to follow.
    Told,
    /// Deleted.
    Gone,
}

/// The order of accesses that an operator promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// (get put)*
    Aggregation,
    /// (get put)+ get delete, or purged; nothing after it.
    Folded,
    /// merge+ get delete, or purged; nothing after it.
    Kept,
    /// As `Folded`, with merges of absorbed sessions; lists of sessions are read and written at any
    /// time, also after their delete, and deleted only while there.
    FoldedSessions,
    /// As `Kept`, otherwise as `FoldedSessions`.
    KeptSessions,
    /// ((get put)+ delete)*, ranges over all of it: what is gone is looked up again.
    Interval,
    /// Left: (put | get | delete)*. Right: (merge | get | delete)*. What is gone is looked up again.
    Continuous,
    /// Any order; for an operator that promises none.
    Any,
}

impl Grammar {
    /// Where an access leads from `at`; `None` if it is not legal there.
    fn next(self, class: Class, at: At, kind: Kind, role: Role) -> Option<At> {
        use At::*;
        use Grammar::*;
        use Kind::*;
        if class == Class::Sessions {
            return match (kind, at) {
                (Get, _) => Some(at),
                (Merge, _) => Some(Live),
                (Delete, Live) => Some(Gone),
                _ => None,
            };
        }
        let again = matches!(self, Aggregation | Interval);
        let folded = matches!(self, Folded | FoldedSessions | Aggregation);
        let kept = matches!(self, Kept | KeptSessions);
        let sessions = matches!(self, FoldedSessions | KeptSessions);
        match (kind, role, at) {
            _ if self == Any => Some(Live),
            _ if self == Continuous => continuous(class, kind),
            (Range, ..) if self == Interval => Some(at),
            (Get, Role::Fold, New | Live) if folded => Some(Read),
            (Get, Role::Append, New | Live | Gone) if self == Interval => Some(Read),
            (Put, _, Read) => Some(Live),
            (Merge, Role::Element, New | Live) if kept => Some(Live),
            (Merge, Role::Absorb, Live) if sessions => Some(Live),
            (Get, Role::Absorb, Live) if sessions => Some(Told),
            (Get, Role::Answer, Live) if !again => Some(Told),
            (Delete, _, Told) if !again => Some(Gone),
            (Delete, _, Live) if self == Interval => Some(Gone),
            (Purge, _, Live) if matches!(self, Folded | Kept) => Some(Gone),
            _ => None,
        }
    }

    /// Checks a trace.
    ///
    /// # Errors
    /// [`Error::Wrong`], naming the first access that is not legal.
    pub fn check(self, trace: &Trace) -> Result<()> {
        let mut places = vec![At::New; trace.keys.len()];
        for (number, access) in trace.accesses.iter().enumerate() {
            let mut step = |key: u32| {
                let at = &mut places[key as usize];
                match self.next(trace.keys.class(key), *at, access.kind, access.role) {
                    Some(next) => {
                        *at = next;
                        Ok(())
                    }
                    None => {
                        let access = trace.describe(number);
                        let message =
                            format!("{access}: not legal for {self:?}, the key is {at:?}");
                        Err(Error::Wrong(message))
                    }
                }
            };
            match access.kind {
                Kind::Purge => {
                    let purged = &trace.purges[access.argument as usize];
                    let keys = &trace.purged[purged.from as usize..purged.to as usize];
                    keys.iter().try_for_each(|(key, _)| step(*key))?;
                }
                _ => step(access.key)?,
            }
        }
        Ok(())
    }
}

fn continuous(class: Class, kind: Kind) -> Option<At> {
    match (class, kind) {
        (_, Kind::Get) | (Class::State, Kind::Put) | (Class::Right, Kind::Merge) => Some(At::Live),
        (_, Kind::Delete) => Some(At::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(grammar: Grammar, accesses: &[(Kind, Role)]) -> Result<()> {
        let mut trace = Trace::default();
        let key = trace.keys.make_next(Class::State);
        accesses.iter().for_each(|(kind, role)| trace.push(*kind, *role, key, 0));
        grammar.check(&trace)
    }

    #[test]
    fn what_a_grammar_does_not_have_is_named() {
        use Kind::*;
        let (get, put) = ((Get, Role::Fold), (Put, Role::Fold));
        let (last, gone) = ((Get, Role::Answer), (Delete, Role::None));
        assert!(check(Grammar::Folded, &[get, put, get, put, last, gone]).is_ok());
        let error = check(Grammar::Folded, &[get, put, last, gone, get]).unwrap_err().to_string();
        assert!(error.starts_with("access 4 (get 0000000001): not legal"), "{error}");
        for accesses in [&[get, get][..], &[put], &[get, put, gone], &[(Merge, Role::Element)]] {
            assert!(check(Grammar::Folded, accesses).is_err(), "{accesses:?}");
        }
        let merge = (Merge, Role::Element);
        assert!(check(Grammar::Kept, &[merge, merge, last, gone]).is_ok());
        assert!(check(Grammar::Kept, &[merge, last, gone, merge]).is_err());
        let (read, write) = ((Get, Role::Append), (Put, Role::Append));
        assert!(check(Grammar::Interval, &[read, write, gone, read, write]).is_ok());
        assert!(check(Grammar::Interval, &[read, write, gone, gone]).is_err());
    }
}
