//! The open sessions of a key, in order of time.
//!
//! Most keys have one, which stands in the value itself; a few are a vector. From [`CHUNK_MAX`] sessions on they are in
//! chunks, so that one that comes or goes moves the sessions of its chunk, and not all after it. On storage all are the
//! bytes of a vector.

use alluvium_pagestore::{HeapSize, Schema, Time, rounded};
use rkyv::rancor::Fallible;
use rkyv::ser::{Allocator, Writer};
use rkyv::vec::{ArchivedVec, VecResolver};
use rkyv::{Archive, Deserialize, Place, Serialize};
use smallvec::SmallVec;

/// One session: the times of its first and last event, when its timer is set for, whether its
/// result has come out, and what is kept of it.
pub(crate) type Session<P> = (Time, Time, (Time, bool), P);

/// Sessions of a chunk, at most.
const CHUNK_MAX: usize = 256;

/// The open sessions of a key, in order of time.
#[derive(Clone, Debug)]
pub struct SessionSet<P>(SessionChunks<P>);

#[derive(Clone, Debug)]
enum SessionChunks<P> {
    Few(SmallVec<[Session<P>; 1]>),
    /// None of the chunks is empty.
    Many(Vec<Vec<Session<P>>>),
}

impl<P> SessionSet<P> {
    pub(crate) fn new() -> Self {
        Self(SessionChunks::Few(SmallVec::new()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            SessionChunks::Few(all) => all.is_empty(),
            SessionChunks::Many(_) => false,
        }
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> SessionIter<'_, P> {
        let (now, chunks) = match &self.0 {
            SessionChunks::Few(all) => (&all[..], &[][..]),
            SessionChunks::Many(chunks) => (&[][..], &chunks[..]),
        };
        let left = now.len() + chunks.iter().map(Vec::len).sum::<usize>();
        SessionIter { chunks: chunks.iter(), now: now.iter(), left }
    }

    /// Those from the `first` on, in order.
    pub(crate) fn iter_from(&self, first: usize) -> impl Iterator<Item = &Session<P>> {
        let (now, rest) = match &self.0 {
            SessionChunks::Few(all) => (all.get(first..), &[][..]),
            SessionChunks::Many(chunks) => {
                let (chunk, at) = place(chunks, first);
                (
                    chunks.get(chunk).and_then(|now| now.get(at..)),
                    chunks.get(chunk + 1..).unwrap_or_default(),
                )
            }
        };
        now.unwrap_or_default().iter().chain(rest.iter().flatten())
    }

    /// How many come before the first for which `is_before` is false; it is true of all before that.
    /// Cost: O(log n), and a look at the length of each chunk.
    pub(crate) fn partition_point(&self, is_before: impl Fn(&Session<P>) -> bool) -> usize {
        let chunks = match &self.0 {
            SessionChunks::Few(all) => return all.partition_point(is_before),
            SessionChunks::Many(chunks) => chunks,
        };
        let whole = |chunk: &Vec<Session<P>>| chunk.last().is_some_and(&is_before);
        let chunk = chunks.partition_point(whole);
        let before: usize = chunks[..chunk].iter().map(Vec::len).sum();
        before + chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(is_before))
    }

    pub(crate) fn get_mut(&mut self, n: usize) -> Option<&mut Session<P>> {
        match &mut self.0 {
            SessionChunks::Few(all) => all.get_mut(n),
            SessionChunks::Many(chunks) => {
                let (chunk, at) = place(chunks, n);
                chunks.get_mut(chunk)?.get_mut(at)
            }
        }
    }

    /// Puts a session in as the `n`th.
    pub(crate) fn insert(&mut self, n: usize, session: Session<P>) {
        match &mut self.0 {
            SessionChunks::Few(all) => {
                all.insert(n.min(all.len()), session);
                if all.len() > CHUNK_MAX {
                    let mut chunks = vec![std::mem::take(all).into_vec()];
                    split(&mut chunks, 0, n);
                    self.0 = SessionChunks::Many(chunks);
                }
            }
            SessionChunks::Many(chunks) => {
                let (mut chunk, mut at) = place(chunks, n);
                if chunk == chunks.len() {
                    // After the last.
                    chunk -= 1;
                    at = chunks[chunk].len();
                }
                chunks[chunk].insert(at, session);
                if chunks[chunk].len() > CHUNK_MAX {
                    split(chunks, chunk, at);
                }
            }
        }
    }

    /// Takes the `n`th out.
    pub(crate) fn remove(&mut self, n: usize) -> Option<Session<P>> {
        let chunks = match &mut self.0 {
            SessionChunks::Few(all) => return (n < all.len()).then(|| all.remove(n)),
            SessionChunks::Many(chunks) => chunks,
        };
        let (chunk, at) = place(chunks, n);
        let sessions = chunks.get_mut(chunk).filter(|sessions| at < sessions.len())?;
        let session = sessions.remove(at);
        if sessions.is_empty() {
            chunks.remove(chunk);
        }
        if chunks.len() == 1 {
            self.0 = SessionChunks::Few(chunks.pop().unwrap_or_default().into());
        }
        Some(session)
    }
}

/// The chunk of the `n`th, and where it is there; after the last chunk if there are not so many.
fn place<P>(chunks: &[Vec<Session<P>>], n: usize) -> (usize, usize) {
    let mut at = n;
    for (chunk, sessions) in chunks.iter().enumerate() {
        if at < sessions.len() {
            return (chunk, at);
        }
        at -= sessions.len();
    }
    (chunks.len(), 0)
}

/// Splits a chunk, into which a session was put last at a place.
fn split<P>(chunks: &mut Vec<Vec<Session<P>>>, chunk: usize, at: usize) {
    let sessions = &mut chunks[chunk];
    // What comes in order fills chunks whole.
    let from = if at + 1 == sessions.len() { at } else { sessions.len() / 2 };
    let rest = sessions.split_off(from);
    chunks.insert(chunk + 1, rest);
}

impl<P> FromIterator<Session<P>> for SessionSet<P> {
    fn from_iter<I: IntoIterator<Item = Session<P>>>(sessions: I) -> Self {
        let mut sessions = sessions.into_iter();
        let mut chunks = Vec::new();
        loop {
            let chunk: Vec<_> = sessions.by_ref().take(CHUNK_MAX).collect();
            if chunk.is_empty() {
                break;
            }
            chunks.push(chunk);
        }
        match chunks.len() {
            0 | 1 => Self(SessionChunks::Few(chunks.pop().unwrap_or_default().into())),
            _ => Self(SessionChunks::Many(chunks)),
        }
    }
}

/// All sessions of a set, in order.
pub(crate) struct SessionIter<'a, P> {
    chunks: std::slice::Iter<'a, Vec<Session<P>>>,
    now: std::slice::Iter<'a, Session<P>>,
    left: usize,
}

impl<P> Clone for SessionIter<'_, P> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), now: self.now.clone(), left: self.left }
    }
}

impl<'a, P> Iterator for SessionIter<'a, P> {
    type Item = &'a Session<P>;

    fn next(&mut self) -> Option<&'a Session<P>> {
        loop {
            if let Some(session) = self.now.next() {
                self.left -= 1;
                return Some(session);
            }
            self.now = self.chunks.next()?.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<P> ExactSizeIterator for SessionIter<'_, P> {}

impl<P: HeapSize> HeapSize for SessionSet<P> {
    const NO_HEAP: bool = false;

    /// Cost: a look at each chunk, unless the parts own heap.
    #[inline]
    fn heap_bytes(&self) -> usize {
        match &self.0 {
            SessionChunks::Few(all) => {
                let bytes =
                    if all.spilled() { all.capacity() * size_of::<Session<P>>() } else { 0 };
                let owned = if P::NO_HEAP {
                    0
                } else {
                    all.iter().map(|session| session.3.heap_bytes()).sum()
                };
                rounded(bytes) + owned
            }
            SessionChunks::Many(chunks) => chunks.heap_bytes(),
        }
    }
}

impl<P: Schema> Schema for SessionSet<P> {
    fn describe(out: &mut String) {
        Vec::<Session<P>>::describe(out);
    }
}

impl<P: Archive> Archive for SessionSet<P> {
    type Archived = ArchivedVec<<Session<P> as Archive>::Archived>;
    type Resolver = VecResolver;

    fn resolve(&self, resolver: VecResolver, out: Place<Self::Archived>) {
        ArchivedVec::resolve_from_len(self.iter().len(), resolver, out);
    }
}

impl<P, S> Serialize<S> for SessionSet<P>
where
    P: Serialize<S>,
    S: Fallible + Allocator + Writer + ?Sized,
{
    fn serialize(&self, serializer: &mut S) -> Result<VecResolver, S::Error> {
        ArchivedVec::serialize_from_iter::<Session<P>, _, S>(self.iter(), serializer)
    }
}

impl<P, D> Deserialize<SessionSet<P>, D> for ArchivedVec<<Session<P> as Archive>::Archived>
where
    P: Archive<Archived: Deserialize<P, D>>,
    D: Fallible + ?Sized,
{
    fn deserialize(&self, deserializer: &mut D) -> Result<SessionSet<P>, D::Error> {
        self.iter().map(|session| session.deserialize(deserializer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use alluvium_pagestore::{State, codec, description_of};

    use super::*;

    fn session(at: i64) -> Session<String> {
        (Time(at), Time(at + 1), (Time(at + 9), at % 2 == 0), at.to_string())
    }

    fn bytes<T: State>(value: &T) -> Vec<u8> {
        let mut out = Default::default();
        codec::encode_one(&mut out, value).unwrap();
        out.to_vec()
    }

    #[test]
    fn sets_of_any_size_answer_like_a_vector_and_have_its_bytes() {
        let mut chance = 5u64;
        let mut below = |limit: usize| {
            chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (chance >> 33) as usize % limit
        };
        let (mut set, mut all) = (SessionSet::new(), Vec::new());
        for step in 0..12_000usize {
            // Grows for a while, then shrinks.
            let grows = (step / 3000) % 2 == 0;
            if all.is_empty() || (below(4) > 0) == grows {
                let at = if below(2) == 0 { below(1 << 20) } else { (1 << 20) + step };
                let n = all.partition_point(|s: &Session<String>| s.0.0 < at as i64);
                assert_eq!(set.partition_point(|s| s.0.0 < at as i64), n);
                set.insert(n, session(at as i64));
                all.insert(n, session(at as i64));
            } else {
                let n = if below(2) == 0 { 0 } else { below(all.len()) };
                assert_eq!(set.remove(n), Some(all.remove(n)));
            }
            let n = below(all.len() + 1);
            assert_eq!(set.get_mut(n), all.get_mut(n));
            if step % 500 == 0 {
                assert!(set.iter().eq(all.iter()) && set.iter().len() == all.len());
                assert!(set.iter_from(n).eq(all[n..].iter()));
                assert_eq!(set.is_empty(), all.is_empty());
                assert_eq!(bytes(&set), bytes(&all), "{} sessions", all.len());
                let read: SessionSet<String> = codec::decode_one(&bytes(&all)).unwrap();
                assert!(read.iter().eq(all.iter()));
            }
        }
        type Vector = Vec<Session<String>>;
        assert_eq!(description_of::<SessionSet<String>>(), description_of::<Vector>());
    }
}
