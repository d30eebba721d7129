//! Trials: decode some records again right after encoding, encode the result, and compare.
//!
//! A type may write something else than it reads, by serde's attributes or by a conversion written
//! by hand. Its records would have sound checksums and decode to other values. A trial finds that
//! before anything refers to the record.
//!
//! What it keeps true:
//! - A writer tries its first [`FIRST`] records, then those whose number is a power of two. After a
//!   failure it tries every record.
//! - A trial takes memory for at most [`TRIED_BYTES_MAX`] of archive, its decoded value, and a
//!   second archive. Longer records are not tried.
//! - A trial compares bytes, not lengths. Values with a `HashMap` or `HashSet` have no order; a
//!   trial only checks that they decode.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rkyv::util::AlignedVec;

use crate::block::{self, BlockEntry, BorrowedEntry};
use crate::schema::has_no_order;
use crate::{Error, ErrorKind, Result, State, codec, description_of};

/// So many records of a writer are all tried.
const FIRST: u64 = 16;
/// The longest archive that is tried.
const TRIED_BYTES_MAX: usize = 4 << 10;

/// Chooses the records of a writer to try, and notes failures.
#[derive(Clone, Debug, Default)]
pub struct Trials {
    records: u64,
    has_failed: bool,
}

/// Decodes the first bytes and encodes what they were into the second.
type Reencode<'a> = &'a mut dyn FnMut(&[u8], &mut AlignedVec) -> Result<()>;

impl Trials {
    /// Encodes with [`codec::encode`], and tries the record if it is its turn.
    ///
    /// # Errors
    /// Those of encoding; [`ErrorKind::Config`], which names the types, if the record does not
    /// decode to what was written.
    pub fn encode<K: State, V: State>(
        &mut self,
        scratch: &mut AlignedVec,
        key: &K,
        value: &V,
    ) -> Result<()> {
        codec::encode(scratch, key, value)?;
        let mut again = |bytes: &[u8], out: &mut AlignedVec| {
            let (key, value) = codec::decode::<K, V>(bytes)?;
            let encoded = codec::encode(out, &key, &value);
            drop_quietly((key, value));
            encoded
        };
        self.run(scratch, &mut again, names::<K, V>, lacks_order::<K, V>)
    }

    /// Encodes with [`block::encode`], and tries the block if it is its turn.
    ///
    /// # Errors
    /// Those of [`encode`](Trials::encode).
    pub fn encode_block<'a, K: State, E: State, I: ExactSizeIterator<Item = &'a E> + Clone>(
        &mut self,
        scratch: &mut AlignedVec,
        entries: &Vec<BorrowedEntry<'a, K, I>>,
    ) -> Result<()> {
        block::encode(scratch, entries)?;
        let mut again = |bytes: &[u8], out: &mut AlignedVec| {
            let read = block::decode::<K, E>(bytes)?;
            let encoded = block::encode(out, &read.iter().map(borrowed).collect());
            drop_quietly(read);
            encoded
        };
        self.run(scratch, &mut again, names::<K, E>, lacks_order::<K, E>)
    }

    /// Tries a key or value that was encoded alone.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the type if it does not come back as it was written.
    pub(crate) fn try_one<T: State>(&mut self, encoded: &[u8]) -> Result<()> {
        let mut again = |bytes: &[u8], out: &mut AlignedVec| {
            let one = codec::decode_one::<T>(bytes)?;
            let encoded = codec::encode_one(out, &one);
            drop_quietly(one);
            encoded
        };
        let name = || std::any::type_name::<T>().into();
        self.run(encoded, &mut again, name, || has_no_order(&description_of::<T>()))
    }

    fn run(
        &mut self,
        encoded: &[u8],
        again: Reencode<'_>,
        names: fn() -> String,
        lacks_order: fn() -> bool,
    ) -> Result<()> {
        self.records += 1;
        let is_due = self.has_failed || self.records <= FIRST || self.records.is_power_of_two();
        if !is_due || encoded.len() > TRIED_BYTES_MAX {
            return Ok(());
        }
        let mut out = AlignedVec::new();
        let read = again(encoded, &mut out);
        let (what, cause) = match read {
            Ok(()) if out[..] == *encoded || lacks_order() => return Ok(()),
            Ok(()) => ("comes back as another value", None),
            Err(error) => ("cannot be read back", Some(error)),
        };
        self.has_failed = true;
        let message = format!("the encoding of {} {what}", names());
        let error = Error::new(ErrorKind::Config, message);
        Err(match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        })
    }
}

fn borrowed<K, E>(entry: &BlockEntry<K, E>) -> BorrowedEntry<'_, K, std::slice::Iter<'_, E>> {
    BorrowedEntry { key: &entry.key, rank: entry.rank, elements: entry.elements.iter() }
}

fn names<K, V>() -> String {
    format!("{} and {}", std::any::type_name::<K>(), std::any::type_name::<V>())
}

fn lacks_order<K: State, V: State>() -> bool {
    has_no_order(&description_of::<K>()) || has_no_order(&description_of::<V>())
}

/// Drops what a trial has decoded. It is nobody's value: that it panics concerns nobody.
fn drop_quietly<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use rkyv::rancor::Fallible;
    use rkyv::rend::u32_le;
    use rkyv::{Archive, Deserialize, Place, Serialize};

    use super::*;
    use crate::{HeapSize, Schema};

    /// Comes back as a number one higher, from 100 on.
    #[derive(Clone, Debug, PartialEq)]
    struct Drifting(u32);

    impl HeapSize for Drifting {
        const NO_HEAP: bool = true;
        fn heap_bytes(&self) -> usize {
            0
        }
    }

    impl Schema for Drifting {
        fn describe(out: &mut String) {
            out.push_str("Drifting");
        }
    }

    impl Archive for Drifting {
        type Archived = u32_le;
        type Resolver = ();
        fn resolve(&self, (): (), out: Place<u32_le>) {
            self.0.resolve((), out);
        }
    }

    impl<S: Fallible + ?Sized> Serialize<S> for Drifting {
        fn serialize(&self, _: &mut S) -> std::result::Result<(), S::Error> {
            Ok(())
        }
    }

    impl<D: Fallible + ?Sized> Deserialize<Drifting, D> for u32_le {
        fn deserialize(&self, _: &mut D) -> std::result::Result<Drifting, D::Error> {
            let number = self.to_native();
            Ok(Drifting(number + u32::from(number >= 100)))
        }
    }

    #[test]
    fn the_first_records_are_tried_and_all_after_a_failure() {
        let (mut trials, mut scratch) = (Trials::default(), AlignedVec::new());
        for number in 0..FIRST {
            trials.encode(&mut scratch, &number, &Drifting(7)).unwrap();
        }
        // Number 17 is not tried, number 32 is.
        let mut refused = (FIRST + 1..=40)
            .filter(|number| trials.encode(&mut scratch, number, &Drifting(100)).is_err());
        assert_eq!(refused.by_ref().collect::<Vec<_>>(), (32..=40).collect::<Vec<_>>());
        let error = trials.encode(&mut scratch, &Drifting(100), &1u8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let told = error.to_string();
        assert!(told.contains("Drifting and u8 comes back as another value"), "{told}");
        // A long record is none that a trial has memory for.
        let long = "long".repeat(TRIED_BYTES_MAX / 4);
        trials.encode(&mut scratch, &long, &Drifting(100)).unwrap();
    }

    #[test]
    fn blocks_and_single_values_are_tried() {
        let elements = [Drifting(1), Drifting(100)];
        let entry =
            |n: usize| vec![BorrowedEntry { key: &7u64, rank: 3, elements: elements[..n].iter() }];
        let (mut trials, mut scratch) = (Trials::default(), AlignedVec::new());
        trials.encode_block(&mut scratch, &entry(1)).unwrap();
        let error = trials.encode_block(&mut scratch, &entry(2)).unwrap_err();
        assert!(error.to_string().contains("u64 and"), "{error}");
        codec::encode_one(&mut scratch, &elements[1]).unwrap();
        Trials::default().try_one::<Drifting>(&scratch).unwrap_err();
        codec::encode_one(&mut scratch, &elements[0]).unwrap();
        Trials::default().try_one::<Drifting>(&scratch).unwrap();
    }

    #[test]
    fn what_has_no_order_is_decoded_only() {
        let many = if cfg!(miri) { 8 } else { 50u64 };
        let pairs = || (0..many).map(|n| (n, vec![format!("{n}"); n as usize % 3]));
        let (mut trials, mut scratch) = (Trials::default(), AlignedVec::new());
        for number in 0..FIRST {
            trials.encode(&mut scratch, &number, &pairs().collect::<HashMap<_, _>>()).unwrap();
            trials.encode(&mut scratch, &number, &pairs().collect::<BTreeMap<_, _>>()).unwrap();
        }
    }
}
