//! One bucket: its lists in memory, its runs, and notes on keys whose elements there are special.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::rc::Rc;

use alluvium_pagestore::{Account, HeapSize, KeyHash, MemoryKind, Result, Time, rounded};

use super::arena_unsafe::{Arena, ArenaKind};
use super::block::ListType;
use super::chain_unsafe::{ChainDrain, ElementChain};
use super::frozen::{BookedByKind, EarlyElements, FrozenBucket, FrozenElements, LIVE, sooner};
use super::heads_unsafe::ListHeads;
use super::key_unsafe::{KeyRef, OwnedKey};
use super::notes::{ImportedRuns, KeptNote, KeyNote};
use super::run::ListRun;
use crate::heap::entry_table_unsafe::{EntryTable, FrozenTable, KeyedEntry};
use crate::heap::hash_range::HashRange;
use crate::heap::snapshot::Snapshot;
use crate::support::gaps::Gaps;
use crate::support::tree_bytes::tree_bytes;

/// Bytes booked for a bucket without lists: itself, and its part of the tree.
pub const BUCKET_BYTES: u64 = rounded(size_of::<AppendBucket>()) as u64 + NODE_BYTES;
/// A bucket's part of the nodes of the tree of buckets.
const NODE_BYTES: u64 = 56;
/// What the first node of that tree takes more.
pub const FIRST_BYTES: u64 = tree_bytes::<Time, Box<AppendBucket>>(1) - NODE_BYTES;
const _: () = assert!(are_enough(FIRST_BYTES, BUCKET_BYTES));

/// Less than that on storage is not worth a merge, however much of it is cut off.
const CUT_BYTES_MIN: u64 = 64 << 10;

/// Whether so many bytes, and so many for each bucket, are enough, however many there are.
const fn are_enough(first: u64, each: u64) -> bool {
    // From eleven on there are several nodes, that may be half full.
    let mut len = 1;
    while len <= 1_000 {
        let own = len * rounded(size_of::<AppendBucket>()) as u64;
        if tree_bytes::<Time, Box<AppendBucket>>(len as usize) + own > first + len * each {
            return false;
        }
        len += 1;
    }
    true
}

/// A bucket.
#[derive(Debug)]
pub struct AppendBucket {
    pub time: Time,
    /// No run of it has a lower number. Runs that do are of a bucket of the same time that was
    /// purged.
    pub first: u64,
    pub range: HashRange,
    pub(super) account: Rc<Account>,
    pub live: ListHeads,
    pub early: EntryTable<EarlyElements>,
    notes: EntryTable<KeyNote>,
    notes_bytes: u64,
    /// Notes that were left when all runs were merged last: merging once more would leave them too.
    notes_left: u64,
    /// How many there were when other states were asked for the memory of a merge.
    pub asked_at: u64,
    /// Bytes of runs on storage that notes have cut off, about.
    cut_bytes: u64,
    /// Ranges of hashes whose keys have nothing any more in runs before some.
    pub gaps: Gaps,
    /// The notes at the barrier of a checkpoint that is being taken.
    noted: Option<Box<Snapshot<KeptNote>>>,
    /// How many imports there are from each other bucket.
    pub sources: BTreeMap<Time, u64>,
    /// By number.
    pub runs: Vec<ListRun>,
    /// Where the chains of `live` and `early` have their chunks.
    pub arena: Arena,
    /// Heap bytes of their keys and elements.
    pub values: u64,
    /// Elements of `live` and `early`.
    pub elements: u64,
    /// One of its lists was asked for alone.
    pub is_read_singly: bool,
    /// What it takes once it is packed and loaded, if it may be packed, and what the buckets before it take: when it was
    /// counted last.
    pub loaded: u64,
    pub loaded_before: u64,
}

impl AppendBucket {
    /// An empty bucket, whose lists may be of few of so many key groups. Books [`BUCKET_BYTES`].
    pub fn new(
        list_type: &'static ListType,
        (time, first): (Time, u64),
        (range, few_of): (HashRange, Option<u16>),
        kind: ArenaKind,
        account: &Rc<Account>,
    ) -> Result<Self> {
        account.reserve(MemoryKind::Tables, BUCKET_BYTES, "a bucket")?;
        Ok(Self {
            time,
            first,
            range,
            account: account.clone(),
            live: ListHeads::new(list_type.heads, account, range, few_of),
            early: EntryTable::maybe_few_of(account.clone(), range, few_of),
            notes: EntryTable::maybe_few_of(account.clone(), range, few_of),
            notes_bytes: 0,
            notes_left: 0,
            asked_at: 0,
            cut_bytes: 0,
            gaps: Gaps::default(),
            noted: None,
            sources: BTreeMap::new(),
            runs: Vec::new(),
            arena: Arena::of(kind),
            values: 0,
            elements: 0,
            is_read_singly: false,
            loaded: 0,
            loaded_before: 0,
        })
    }

    /// Bytes of its lists in memory that are in no run.
    pub fn live_bytes(&self) -> u64 {
        if self.elements == 0 { 0 } else { self.booked().total() }
    }

    fn booked(&self) -> BookedByKind {
        BookedByKind {
            index: self.live.memory_bytes() + self.early.memory_bytes(),
            pages: self.arena.bytes(),
            values: self.values,
            tables: 0,
        }
    }

    /// Whether nothing is in it.
    pub fn is_vacant(&self) -> bool {
        self.elements == 0 && self.runs.is_empty() && self.notes.is_empty()
    }

    /// Takes its lists in memory out, as those of the run `number`. Cost: O(1).
    pub fn freeze(&mut self, number: u64) -> FrozenBucket {
        let booked = self.booked();
        // The chains keep their memory.
        self.arena.leave();
        (self.values, self.elements) = (0, 0);
        FrozenBucket {
            heads: self.live.freeze(),
            early: self.early.freeze(),
            bucket: self.time,
            number,
            range: self.range,
            booked,
        }
    }

    /// Books a key that has come, and owns so much.
    fn add_key(&mut self, bytes: u64) {
        self.account.charge(MemoryKind::Values, bytes);
        self.values += bytes;
    }

    /// Adds a chunk to a chain of this bucket, whose elements are such, and books what that takes.
    #[inline(always)]
    pub fn grow(element: Layout, arena: &mut Arena, account: &Account, chain: &mut ElementChain) {
        let missing = arena.missing(element, chain.next_capacity(element));
        if missing > 0 {
            account.charge(MemoryKind::Pages, missing);
        }
        chain.grow(element, arena);
    }

    /// Moves the elements that are left of another bucket's chain to one of this bucket. Cost:
    /// O(elements). There is memory for [`Arena::bytes_max`].
    fn add_chain(&mut self, from: &mut ChainDrain) -> ElementChain {
        let mut chain = ElementChain::default();
        let element = self.arena.elements().layout();
        while from.len() > 0 {
            if !chain.has_room() {
                Self::grow(element, &mut self.arena, &self.account, &mut chain);
            }
            from.move_some(&mut chain, u32::MAX);
        }
        let values = chain.heap_bytes();
        self.account.charge(MemoryKind::Values, values);
        self.values += values;
        self.elements += chain.len();
        chain
    }

    /// Books that a key which owned so much, and the elements of its chain, are gone. The chunks stay.
    fn remove_chain(&mut self, key_bytes: u64, chain: &ElementChain) {
        let counts = (&mut self.values, &mut self.elements);
        Self::book_gone(&self.account, counts, key_bytes, chain);
    }

    fn book_gone(
        account: &Account,
        (values, elements): (&mut u64, &mut u64),
        key_bytes: u64,
        chain: &ElementChain,
    ) {
        let gone = key_bytes + chain.heap_bytes();
        account.release(MemoryKind::Values, gone);
        *values -= gone;
        *elements -= chain.len();
    }

    /// Drops what is left of a chain that was taken out, and keeps its chunks for others; or all
    /// memory, if that was the last one.
    pub fn recycle(&mut self, chain: ChainDrain) {
        self.arena.recycle(chain);
        if self.elements == 0 {
            // There may be heads of keys that got no element.
            let FrozenBucket { heads, early, booked, .. } = self.freeze(0);
            drop((heads, early));
            self.account.release(MemoryKind::Index, booked.index);
            self.account.release(MemoryKind::Pages, booked.pages);
            self.account.release(MemoryKind::Values, booked.values);
        }
    }

    /// Sees to it that there is a head of a key, which may be empty.
    pub fn ensure_head(&mut self, hash: u64, key: KeyRef<'_>) -> Result<()> {
        if self.live.find(hash, key).is_none() {
            self.account.ensure(key.heap_bytes(), "a key")?;
            let bytes = self.live.insert(hash, key)?;
            self.add_key(bytes);
        }
        Ok(())
    }

    /// Adds an early part of a key, which is empty.
    pub fn ensure_early(&mut self, hash: u64, key: &OwnedKey, rank: i64) -> Result<()> {
        if self.early.find(hash, |early| early.rank == rank && early.key == *key).is_none() {
            self.account.ensure(key.heap_bytes() as u64, "a key")?;
            let make = || EarlyElements { key: key.clone(), rank, chain: ElementChain::default() };
            let early = self.early.insert(hash, make)?;
            let bytes = early.key.heap_bytes() as u64;
            self.add_key(bytes);
        }
        Ok(())
    }

    /// Puts the elements of another bucket's chain before what a key's head has.
    ///
    /// # Panics
    /// If there is no head.
    pub fn prepend(&mut self, hash: u64, key: KeyRef<'_>, from: &mut ChainDrain) {
        let chain = self.add_chain(from);
        self.live.chain_mut(hash, key).expect("a head was made").prepend(chain);
    }

    /// Fills an early part with the elements of another bucket's chain.
    ///
    /// # Panics
    /// If it is not there.
    pub fn fill_early(&mut self, hash: u64, key: &OwnedKey, rank: i64, from: &mut ChainDrain) {
        let chain = self.add_chain(from);
        let early = self.early.find_mut(hash, |early| early.rank == rank && early.key == *key);
        early.expect("an early part was made").chain.prepend(chain);
    }

    /// Takes the list of a key out of memory, but for the early parts. What is taken out is to be
    /// [recycled](AppendBucket::recycle), until when its memory stays booked.
    pub fn take_live(&mut self, hash: u64, key: KeyRef<'_>) -> Option<ElementChain> {
        let Self { live, account, values, elements, .. } = self;
        live.remove(hash, key, |bytes, chain| {
            Self::book_gone(account, (values, elements), bytes, chain);
        })
    }

    /// The same with an early part of a key's list.
    pub fn take_early(&mut self, hash: u64, key: KeyRef<'_>) -> Option<EarlyElements> {
        let early = self.early.remove(hash, |early| early.key.get() == key)?;
        self.remove_chain(early.key.heap_bytes() as u64, &early.chain);
        Some(early)
    }

    /// Ranks and number of the early parts of a key.
    pub fn early_of<'a>(
        &'a self,
        hash: u64,
        key: KeyRef<'a>,
    ) -> impl Iterator<Item = &'a EarlyElements> {
        let part = self.early.part_at(self.range.place(hash)).0;
        part.iter().filter(move |early| early.key.get() == key)
    }

    /// Memory that another bucket may need for what this one has of a key in memory.
    pub fn bytes_to_move(&self, hash: u64, key: KeyRef<'_>) -> u64 {
        let early = self.early_of(hash, key).map(|early| &early.chain);
        let live = self.live.find(hash, key).map(|(_, chain)| chain);
        let bytes = |chain: &ElementChain| self.arena.bytes_max(chain.len()) + chain.heap_bytes();
        early.chain(live).map(bytes).sum()
    }

    /// The first of the bucket's runs that count for a key with this hash, of which this is noted.
    pub fn first_run(&self, hash: u64, note: Option<&KeyNote>) -> u64 {
        let cut = note.map_or(0, |note| note.cut).max(self.first);
        if self.gaps.is_empty() { cut } else { cut.max(self.gaps.first_part(hash)) }
    }

    /// The hashes of keys that have something in memory or of which something is noted, from `place`
    /// to `last`, as far as the next part of a table; and where that begins, unless it is after `last`.
    pub fn hashes_at(&self, place: u64, last: u64) -> (Vec<u64>, Option<u64>) {
        let (mut hashes, mut next) = self.live.hashes_at(place, last);
        let (early, early_next) = self.early.hashes_at(place, last);
        let (notes, notes_next) = self.notes.hashes_at(place, last);
        next = sooner(next, sooner(early_next, notes_next));
        hashes.extend(early.into_iter().chain(notes));
        hashes.retain(|hash| next.is_none_or(|next| self.range.place(*hash) < next));
        hashes.sort_unstable();
        hashes.dedup();
        (hashes, next)
    }

    /// Bytes that these take.
    pub fn hashes_bytes(&self, place: u64) -> u64 {
        let tables = [
            self.live.hashes_bytes(place),
            self.early.hashes_bytes(place),
            self.notes.hashes_bytes(place),
        ];
        // Vectors that grow, and those that are added to them.
        4 * tables.iter().sum::<u64>()
    }

    /// Removes what keys with this hash have in memory, and what is noted of them; says how many
    /// elements there were.
    pub fn remove_hash(&mut self, hash: u64) -> u64 {
        let before = self.elements;
        while let Some(key) = self.live.first_of(hash) {
            let chain = self.take_live(hash, key.get()).expect("found above");
            self.recycle(chain.drain());
        }
        while let Some(key) = first_of(&self.early, hash, |early| &early.key) {
            let early = self.take_early(hash, key.get()).expect("found above");
            self.recycle(early.chain.drain());
        }
        while let Some(key) = first_of(&self.notes, hash, |note| &note.key) {
            self.take_note(hash, key.get());
        }
        before - self.elements
    }

    /// What is noted of a key.
    pub fn note(&self, hash: u64, key: KeyRef<'_>) -> Option<&KeyNote> {
        if self.notes.is_empty() {
            return None;
        }
        self.notes.find(hash, |note| note.key.get() == key)
    }

    /// Notes there are.
    pub fn notes(&self) -> u64 {
        self.notes.len()
    }

    /// Notes that a merge of all runs may drop.
    pub fn new_notes(&self) -> u64 {
        self.notes() - self.notes_left
    }

    /// All runs were merged, and what could be dropped was.
    pub fn leave_notes(&mut self) {
        self.notes_left = self.notes();
        self.cut_bytes = 0;
    }

    /// A key with this hash, which had been cut off before the run `known`, is cut off before `cut`: counts what
    /// it has between them. Says whether that is something.
    pub fn count_cut(&mut self, hash: u64, known: u64, cut: u64) -> bool {
        let (range, between) = (self.range, known..cut);
        let runs = self.runs.iter().filter(|run| between.contains(&run.number));
        let stored = runs.filter_map(|run| run.stored.as_ref());
        let bytes = stored.map(|stored| stored.bytes_of(range, hash)).sum::<u64>();
        self.cut_bytes += bytes;
        bytes > 0
    }

    /// Bytes of runs on storage that are cut off, about.
    pub fn cut_bytes(&self) -> u64 {
        self.cut_bytes
    }

    /// Whether its runs take more than half as much again on storage as what is not cut off, and enough to be
    /// merged for that.
    pub fn is_mostly_cut(&self) -> bool {
        self.cut_bytes >= CUT_BYTES_MIN && 3 * self.cut_bytes > self.stored_bytes()
    }

    /// Bytes of its runs on storage.
    pub fn stored_bytes(&self) -> u64 {
        let all = self.runs.iter().filter_map(|run| run.stored.as_ref());
        all.map(|stored| stored.bytes()).sum()
    }

    /// Bytes that notes own.
    pub fn notes_bytes(&self) -> u64 {
        self.notes_bytes
    }

    /// Visits all notes.
    pub fn for_each_note(&self, mut visit: impl FnMut(&KeyNote) -> Result<()>) -> Result<()> {
        let mut from = Some(0);
        while let Some(place) = from {
            let (notes, end) = self.notes.part_at(place);
            for note in notes {
                visit(note)?;
            }
            from = end;
        }
        Ok(())
    }

    /// The notes as they are now are to be taken.
    pub fn begin_snapshot(&mut self) {
        if !self.notes.is_empty() {
            self.noted = Some(Box::new(Snapshot::new(&self.account, self.range)));
        }
    }

    /// Whether notes are still to be taken.
    pub fn has_snapshot(&self) -> bool {
        self.noted.is_some()
    }

    /// The notes that are still to be taken, for whoever drops the bucket, or nobody.
    pub fn take_snapshot(&mut self) -> Option<Box<Snapshot<KeptNote>>> {
        self.noted.take()
    }

    /// Gives some of the notes of the barrier that were not taken yet to `take`; says whether there
    /// are more.
    pub fn take_notes(&mut self, mut take: impl FnMut(&KeyNote) -> Result<()>) -> Result<bool> {
        let Some(noted) = &mut self.noted else { return Ok(false) };
        let more = noted.take_some(&self.notes, &self.account, &mut take)?;
        if !more {
            self.noted = None;
        }
        Ok(more)
    }

    /// Keeps what is noted of a key for a checkpoint that has not got it, before that changes. If
    /// there is no room, the checkpoint is told.
    fn keep_note(&mut self, hash: u64, key: KeyRef<'_>) {
        let Some(noted) = &mut self.noted else { return };
        if !noted.wants(hash, |kept| kept.key.get() == key) {
            return;
        }
        let (key, before) = (key.to_owned(), self.notes.find(hash, |note| note.key.get() == key));
        let bytes = key.heap_bytes() as u64 + before.map_or(0, KeyNote::heap_bytes);
        if !noted.keep(hash, bytes, || KeptNote { key, before: before.cloned() }) {
            noted.lose();
        }
    }

    /// Drops the notes that only tell of runs before `number`, which are merged now.
    pub fn drop_notes(&mut self, number: u64) {
        if self.has_snapshot() {
            // They do no harm. The next merge drops them.
            return;
        }
        let mut from = Some(0);
        while let Some(place) = from {
            let (notes, end) = self.notes.part_at(place);
            let told =
                notes.iter().filter(|n| n.cut <= number && n.imports.is_empty() && n.low >= 0);
            let told: Vec<OwnedKey> = told.map(|note| note.key.clone()).collect();
            for key in told {
                self.take_note(key.key_hash(), key.get());
            }
            from = end;
        }
        if self.notes.is_empty() {
            // The table keeps its memory, and may never be so large again.
            let bytes = self.notes.freeze().memory_bytes();
            self.account.release(MemoryKind::Index, bytes);
        }
    }

    /// Takes the note of a key out.
    pub fn take_note(&mut self, hash: u64, key: KeyRef<'_>) -> Option<KeyNote> {
        self.keep_note(hash, key);
        let note = self.notes.remove(hash, |note| note.key.get() == key)?;
        self.notes_left = self.notes_left.min(self.notes());
        self.book_note(note.heap_bytes(), 0);
        self.count_imports(&note.imports, &[]);
        Some(note)
    }

    /// Notes something of a key, instead of what was noted, which is returned.
    ///
    /// # Errors
    /// If there is no memory for it; nothing has changed then.
    pub fn put_note(&mut self, note: KeyNote) -> Result<Option<KeyNote>> {
        let bytes = note.heap_bytes();
        self.account.ensure(bytes, "a note")?;
        let (hash, imports) = (note.key.key_hash(), note.imports.clone());
        self.keep_note(hash, note.key.get());
        self.account.ensure(bytes, "a note")?;
        if let Some(known) = self.notes.find_mut(hash, |known| known.key == note.key) {
            let old = std::mem::replace(known, note);
            self.book_note(old.heap_bytes(), bytes);
            self.count_imports(&old.imports, &imports);
            return Ok(Some(old));
        }
        self.notes.insert(hash, || note)?;
        self.book_note(0, bytes);
        self.count_imports(&[], &imports);
        Ok(None)
    }

    fn book_note(&mut self, before: u64, after: u64) {
        self.account.adjust(MemoryKind::Tables, before, after);
        self.notes_bytes = self.notes_bytes - before + after;
    }

    fn count_imports(&mut self, gone: &[ImportedRuns], new: &[ImportedRuns]) {
        for import in new {
            *self.sources.entry(import.source).or_default() += 1;
        }
        for import in gone {
            let count = self.sources.get_mut(&import.source).expect("a counted source");
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&import.source);
            }
        }
    }

    /// Adds the pieces in memory from `place` on, up to an end that it may bring nearer.
    pub fn collect<'a>(
        &'a self,
        place: u64,
        end: &mut Option<u64>,
        out: &mut Vec<FrozenElements<'a>>,
    ) {
        let source = (self.time, LIVE);
        let live_end = self.live.visit_part(place, &mut |hash, key, chain| {
            out.push(FrozenElements::of_head((self.range.place(hash), source), key, chain));
        });
        let (early, early_end) = self.early.part_at(place);
        out.extend(early.iter().map(|early| early.piece(self.range, source)));
        let (notes, notes_end) = self.notes.part_at(place);
        // A note only tells where else to look.
        let imported = notes.iter().filter(|note| !note.imports.is_empty());
        out.extend(imported.map(|note| FrozenElements {
            place: self.range.place(note.key.key_hash()),
            source,
            key: note.key.get(),
            rank: 0,
            chain: None,
        }));
        *end = sooner(*end, sooner(live_end, sooner(early_end, notes_end)));
        for run in &self.runs {
            if let Some(frozen) = &run.memory {
                frozen.collect(place, end, out);
            }
        }
    }

    /// Adds the pieces of one key that are in memory and in no run.
    pub fn find<'a>(&'a self, hash: u64, key: KeyRef<'_>, out: &mut Vec<FrozenElements<'a>>) {
        let source = (self.time, LIVE);
        if !self.early.is_empty() {
            let part = self.early.part_at(self.range.place(hash)).0;
            let early = part.iter().filter(|early| early.key.get() == key);
            out.extend(early.map(|early| early.piece(self.range, source)));
        }
        let head = self.live.find(hash, key);
        let at = (self.range.place(hash), source);
        out.extend(head.map(|(key, chain)| FrozenElements::of_head(at, key, chain)));
    }

    /// Takes the notes out, to be dropped, and says what is booked for them and the bucket itself.
    pub fn freeze_notes(&mut self) -> (FrozenTable<KeyNote>, BookedByKind) {
        let notes = self.notes.freeze();
        (self.notes_left, self.cut_bytes) = (0, 0);
        let gaps = std::mem::take(&mut self.gaps).bytes();
        let tables = BUCKET_BYTES + std::mem::take(&mut self.notes_bytes) + gaps;
        let booked =
            BookedByKind { index: notes.memory_bytes(), tables, ..BookedByKind::default() };
        (notes, booked)
    }
}

/// The key of some entry with this hash.
fn first_of<T>(
    table: &EntryTable<T>,
    hash: u64,
    key: impl Fn(&T) -> &OwnedKey,
) -> Option<OwnedKey> {
    table.of_hash(hash).next().map(|entry| key(entry).clone())
}

impl KeyedEntry for EarlyElements {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

impl KeyedEntry for KeyNote {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}
