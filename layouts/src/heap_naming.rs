//! What a checkpoint of heap state names: planned at its barrier, and told at its end, when the helper writes which
//! records of segments of before are live.

use alluvium_pagestore::{
    Account, BlobRef, BlobWriter, Death, Error, ErrorKind, Helper, LiveSet, Result, SegmentInfo,
};
use crossbeam_channel::{Receiver, TryRecvError, bounded};

use crate::heap_files::{Dead, DeadPlaces, HeapFiles, LiveSets, Named, Plan};
use crate::heap_marks::Place;
use crate::table::StateContext;

/// Bytes that are left free beside what is kept.
pub(crate) const FREE_BYTES: u64 = 4 << 10;
/// What writing a death takes.
const DEATH_BYTES: u64 = (size_of::<Death>() + 4) as u64;

/// A checkpoint as it is begun, after one that is remembered.
#[derive(Debug)]
pub(crate) struct Begun {
    /// By slot: what is live there is written anew. Empty if there is none.
    pub anew: Vec<bool>,
    /// Which records of other segments are live, if sets are made.
    pub sets: LiveSets,
    pub dead: Dead,
    /// Records that are to be written, at most.
    pub records: u64,
    /// For the caller to book.
    pub bytes: u64,
}

impl Begun {
    /// One of so many entries, of which so many have changed. Without the memory to tell what has died, all is
    /// written.
    pub fn of(
        files: &mut HeapFiles,
        account: &Account,
        counts: (u64, u64),
        segment_bytes: u64,
    ) -> Self {
        let plan = files.plan(counts.0, counts.1, segment_bytes);
        Self::planned(files, account, counts.0, plan, 0)
    }

    /// [`of`](Begun::of) where what has changed is new: no record dies as a newer one is written. All is written, too, if
    /// a state that opens with the memory there is could not read which records are dead, for which it needs so
    /// many bytes beside the lists.
    pub fn of_new(
        files: &mut HeapFiles,
        account: &Account,
        counts: (u64, u64),
        segment_bytes: u64,
        reading_bytes: u64,
    ) -> Self {
        let plan = Plan { outdated: 0, ..files.plan(counts.0, counts.1, segment_bytes) };
        let reading = reading_bytes + files.reading_bytes(&plan);
        Self::planned(files, account, counts.0, plan, reading)
    }

    fn planned(
        files: &mut HeapFiles,
        account: &Account,
        entries: u64,
        mut plan: Plan,
        reading_bytes: u64,
    ) -> Self {
        let sets = if plan.makes_sets { files.sets_bytes(&plan) } else { 0 };
        let deaths = DEATH_BYTES * (files.dead().len() + plan.outdated);
        let mut bytes = if plan.is_full { 0 } else { sets + deaths };
        let wanted = (bytes + deaths).max(reading_bytes) + 2 * FREE_BYTES;
        let has_room = account.available() >= wanted;
        if !has_room && !plan.is_full {
            // What has died need not be told if all is written.
            (plan, bytes) = (files.plan_all(entries), 0);
        }
        let dead = match files.follow(&plan) {
            Some(dead) => dead,
            None => {
                (plan, bytes) = (files.plan_all(entries), 0);
                files.follow(&plan).expect("that takes no memory")
            }
        };
        let sets = if plan.makes_sets { files.empty_sets(&plan) } else { LiveSets::default() };
        let Plan { mut anew, records, .. } = plan;
        if !anew.contains(&true) {
            anew = Vec::new();
        }
        Self { anew, sets, dead, records, bytes }
    }
}

/// The helper writes which records are live.
#[derive(Debug)]
pub(crate) struct Telling {
    sealed: Vec<SegmentInfo>,
    named: Named,
    /// Whether sets take the place of lists.
    has_sets: bool,
    answer: Receiver<Told>,
    /// It has answered, that it could not.
    is_over: bool,
}

/// The helper's answer: the list of deaths; of each set its slot and its number of records; and the
/// places it was lent.
struct Told {
    list: Result<Option<BlobRef>>,
    sets: Result<Vec<(usize, u64, BlobRef)>>,
    lent: Vec<Vec<Place>>,
}

impl Telling {
    /// Whether there is something to be told of what is named beside the segments that were `sealed`.
    pub fn is_needed(
        named: &Named,
        sealed: &[SegmentInfo],
        (sets, dead): (&LiveSets, &DeadPlaces),
    ) -> bool {
        named.image.segments.len() > sealed.len() && (!sets.is_empty() || dead.len() > 0)
    }

    /// Has the helper write which records are live of what is named.
    pub fn begin(
        (context, files): (&StateContext, &HeapFiles),
        named: Named,
        (sets, dead): (LiveSets, &mut DeadPlaces),
        sealed: Vec<SegmentInfo>,
        blobs: &BlobWriter,
    ) -> Self {
        let has_sets = !sets.is_empty();
        // Sets tell all of it.
        let ids = if has_sets { Vec::new() } else { files.ids(&named) };
        let sets = files.whole_sets(&named, sets);
        let lent = dead.lend();
        let (blobs, (reply, answer)) = (blobs.clone(), bounded(1));
        context.helper.submit(move || {
            let death = |at: &Place| Some(Death::of((*ids.get(at.slot())?)?, at.grain()));
            let mut deaths: Vec<Death> = Vec::with_capacity(lent.iter().map(Vec::len).sum());
            deaths.extend(lent.iter().flatten().filter_map(death));
            let list = Death::write(&mut deaths, |_| true, &blobs);
            let write = |(slot, set): (usize, LiveSet)| Ok((slot, set.len(), set.write(&blobs)?));
            let sets = sets.into_iter().map(write).collect();
            let _ = reply.send(Told { list, sets, lent });
        });
        Self { sealed, named, has_sets, answer, is_over: false }
    }

    /// Whether it is told. What the helper was lent is given back then.
    ///
    /// # Errors
    /// Why it could not be told.
    ///
    /// # Panics
    /// If a set does not have as many records as are live.
    pub fn is_told(&mut self, helper: &Helper, dead: &mut DeadPlaces) -> Result<bool> {
        helper.drive();
        let told = match self.answer.try_recv() {
            Ok(told) => told,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => {
                let message = "the helper lost which records are live; begin the checkpoint again";
                return Err(Error::new(ErrorKind::Io, message));
            }
        };
        dead.give_back(told.lent);
        self.is_over = true;
        let (list, sets) = (told.list?, told.sets?);
        let Named { image, slots } = &mut self.named;
        if self.has_sets {
            image.deaths = Vec::new();
        }
        image.deaths.extend(list);
        for (slot, live, blob) in sets {
            let nth = slots.iter().position(|of| *of == Some(slot)).expect("it is named");
            let segment = &mut image.segments[nth];
            assert_eq!(live, segment.live_records, "every key has one live record: {segment:?}");
            segment.live = Some(blob);
        }
        Ok(true)
    }

    /// What is named, once it is [told](Telling::is_told).
    pub fn into_named(self) -> Named {
        self.named
    }

    /// The checkpoint is given up; what it has written is removed. What the helper was lent and has not given back.
    pub fn give_up(self, context: &StateContext) -> Option<Lent> {
        remove(context, &self.sealed);
        (!self.is_over).then_some(Lent(self.answer))
    }
}

/// What the helper was lent for a checkpoint that was given up.
#[derive(Debug)]
pub(crate) struct Lent(Receiver<Told>);

impl Lent {
    /// Takes it back before the next checkpoint. If the helper has it still, that one is full.
    pub fn take_back(self, helper: &Helper, files: &mut HeapFiles) {
        // Without a thread it is here that it does it.
        while helper.is_inline() && self.0.is_empty() && helper.drive() {}
        match self.0.try_recv() {
            Ok(told) => files.give_back(told.lent),
            Err(_) => files.break_off(),
        }
    }
}

/// Removes segments that were written for nothing. One that cannot be removed now is removed at the next
/// open.
pub(crate) fn remove(context: &StateContext, segments: &[SegmentInfo]) {
    for segment in segments {
        let _ = context.segments.as_ref().map(|store| store.remove(segment.id));
    }
}
