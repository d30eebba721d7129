//! Frames: entries are dropped once, what is fresh and due, copies, and dead records.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::support::record_type_unsafe::in_memory;

/// A frame whose records are known to be of these types.
struct Of<K, V>(Frame, PhantomData<(K, V)>);

fn frame<K, V>(slots: u32) -> Of<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let types = in_memory::of::<K, V>();
    Of(Frame::new(types, slots, PoolPiece::allocated(Frame::layout(types, slots))), PhantomData)
}

impl<K, V> Deref for Of<K, V> {
    type Target = Frame;
    fn deref(&self) -> &Frame {
        &self.0
    }
}

impl<K, V> DerefMut for Of<K, V> {
    fn deref_mut(&mut self) -> &mut Frame {
        &mut self.0
    }
}

// SAFETY: here and below, the frame was made for records of these types.
impl<K: 'static, V: 'static> Of<K, V> {
    fn put(&mut self, slot: u32, key: K, value: V, epoch: MarkEpoch) {
        // SAFETY: as above.
        unsafe { self.0.put(slot, (key, value), epoch) }
    }
    fn take(&mut self, slot: u32) -> (K, V) {
        // SAFETY: as above.
        unsafe { self.0.take(slot) }
    }
    fn get(&self, slot: u32) -> Option<(&K, &V)> {
        // SAFETY: as above.
        let native = unsafe { self.0.entry(slot) };
        assert_eq!(self.0.get(slot).is_some(), native.is_some());
        native
    }
    fn get_mut(&mut self, slot: u32) -> Option<(&K, &mut V)> {
        // SAFETY: as above.
        unsafe { self.0.entry_mut(slot) }
    }
}

/// Key and value of an erased record.
fn native<K: 'static, V: 'static>(record: Option<RecordRef<'_>>) -> Option<(&K, &V)> {
    record.map(RecordRef::native)
}

#[derive(Clone)]
struct Counted(Arc<AtomicUsize>, u64);
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn entries_are_dropped_once_whatever_happens_to_them() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut frame = frame(4);
    for i in 0..4 {
        let slot = frame.vacant().unwrap();
        frame.put(slot, i, Counted(dropped.clone(), i), MarkEpoch::FIRST);
    }
    assert_eq!(frame.vacant(), None);
    let (key, value) = frame.take(2);
    assert_eq!((key, value.1), (2, 2));
    drop(value);
    assert_eq!(frame.vacant(), Some(2));
    let frozen = frame.freeze();
    assert_eq!(
        native::<u64, Counted>(frozen.get(3)).map(|(key, value)| (*key, value.1)),
        Some((3, 3))
    );
    assert!(frozen.get(2).is_none());
    frozen.set_grain(3, 99);
    frame.thaw(frozen);
    assert_eq!(frame.grain(3), 99);
    assert_eq!(frame.get(3).map(|(_, value)| value.1), Some(3));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(frame);
    assert_eq!(dropped.load(Ordering::SeqCst), 4);
}

#[test]
fn a_frozen_frame_is_read_from_two_threads() {
    let mut frame = frame(64);
    for i in 0..64u32 {
        frame.put(i, u64::from(i), vec![String::from("value"); i as usize], MarkEpoch::FIRST);
    }
    let frozen = frame.freeze();
    let helper = std::thread::spawn(move || {
        let strings = |record: RecordRef<'_>| record.get::<u64, Vec<String>>().1.len();
        let strings: usize = (0..64).filter_map(|s| frozen.get(s)).map(strings).sum();
        (0..64).for_each(|slot| frozen.set_grain(slot, slot + 1));
        (frozen, strings)
    });
    let strings: usize = (0..64).filter_map(|s| frame.get(s)).map(|(_, v)| v.len()).sum();
    let (frozen, theirs) = helper.join().unwrap();
    assert_eq!((strings, theirs), (2016, 2016));
    frame.thaw(frozen);
    assert_eq!((frame.grain(5), frame.take(5).1.len()), (6, 5));
}

#[test]
fn a_record_marked_dead_is_there_until_it_is_taken() {
    let mut frame = frame(2);
    frame.put(0, 1u8, 1u8, MarkEpoch::FIRST);
    frame.put(1, 2u8, 2u8, MarkEpoch::FIRST);
    let frozen = frame.freeze();
    frame.mark_dead(0, 4);
    frozen.set_grain(0, 77);
    frozen.set_grain(1, 78);
    frame.mark_dead(1, 7);
    assert_eq!(
        (native(frozen.get(0)), native(frozen.get(1))),
        (Some((&1u8, &1u8)), Some((&2u8, &2u8)))
    );
    frame.thaw(frozen);
    assert_eq!((frame.death(0), frame.death(1)), (Some(false), Some(true)));
    assert_eq!(frame.live_from(0).count(), 0, "both are dead");
    assert_eq!((frame.grain(0), frame.grain(1)), (77, 78));
    frame.take(0);
    assert_eq!((frame.death(0), frame.get(0), frame.used()), (None, None, 1));
}

#[test]
fn a_record_is_fresh_from_a_change_until_it_is_written() {
    let mut frame = frame(4);
    (0..3).for_each(|slot| frame.put(slot, u64::from(slot), 10 * slot, MarkEpoch::FIRST));
    let live: Vec<_> = frame.live_from(1).map(|record| *record.get::<u64, u32>().1).collect();
    assert_eq!(live, [10, 20]);
    let frozen = frame.freeze();
    frozen.set_grain(0, 5);
    frame.thaw(frozen);
    assert_eq!((frame.fresh(), frame.stored(0)), (3, None));
    frame.settle(0, 9);
    assert_eq!((frame.fresh(), frame.stored(0), frame.is_fresh(0)), (2, Some((9, 5)), false));
    let frozen = frame.freeze();
    assert!(frozen.get(0).is_none() && frozen.get(1).is_some(), "what is fresh is written");
    frame.thaw(frozen);
    assert_eq!(
        (frame.freshen(0, MarkEpoch::FIRST), frame.stored(0), frame.fresh()),
        (Some((9, 5)), None, 3)
    );
    frame.take(0);
    assert_eq!((frame.stored(0), frame.fresh()), (None, 2));
}

#[test]
fn a_copy_has_a_place_only_of_what_has_not_changed_since() {
    let (before, now) = (MarkEpoch::FIRST, MarkEpoch::FIRST.next());
    for is_written in [false, true] {
        let (mut frame, mut other) = (frame(6), frame::<u64, u32>(6));
        let mut copies = self::frame::<u64, u32>(6);
        (0..4).for_each(|slot| frame.put(slot, u64::from(slot), 10 * slot, before));
        frame.settle(3, 7);
        frame.put(5, 5, 50, now);
        other.put(4, 4, 40, before);
        frame.copy_due(&mut copies, now);
        other.copy_due(&mut copies, now);
        assert_eq!((frame.fresh(), frame.due(now), copies.used()), (4, 0, 4));
        assert_eq!((frame.stored(1), frame.stored(3)), (None, Some((7, 0))));
        // One changes, and one makes place for another that is the same.
        *frame.get_mut(1).unwrap().1 += 1;
        let (key, value) = frame.take(2);
        frame.put(2, key, value, now);
        assert_eq!((copies.get(1), frame.get(1)), (Some((&1, &10)), Some((&1, &11))));
        if is_written {
            let frozen = copies.freeze();
            (0..4).for_each(|slot| frozen.set_grain(slot, 100 + slot));
            copies.thaw(frozen);
            let end = copies.end_of_copies(0);
            assert_eq!((end, copies.end_of_copies(end)), (3, 4));
            let died: Vec<u32> = frame.settle_copies(&copies, 0..end, (9, now)).collect();
            assert_eq!((died, frame.fresh()), (vec![101, 102], 3));
            assert_eq!(
                [0, 1, 2, 3].map(|s| frame.stored(s)),
                [Some((9, 100)), None, None, Some((7, 0))]
            );
            assert_eq!(other.settle_copies(&copies, end..4, (9, now)).count(), 0);
            assert_eq!((other.fresh(), other.stored(4)), (0, Some((9, 103))));
        } else {
            assert_eq!((frame.fresh(), frame.stored(0)), (4, None));
            copies.clear();
            assert_eq!((copies.used(), copies.get(0)), (0, None));
        }
    }
}

#[test]
fn what_a_panic_leaves_behind_copies_is_forgotten() {
    struct Fragile(u64);
    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert!(self.0 != 2, "planned");
            Self(self.0)
        }
    }
    let (before, now) = (MarkEpoch::FIRST, MarkEpoch::FIRST.next());
    let (mut frame, mut copies) = (frame(4), frame::<u32, Fragile>(4));
    (0..4).for_each(|slot| frame.put(slot, slot, Fragile(slot.into()), before));
    let copied = std::panic::AssertUnwindSafe(|| frame.copy_due(&mut copies, now));
    assert!(std::panic::catch_unwind(copied).is_err());
    copies.forget_behind();
    assert_eq!((copies.used(), frame.due(now)), (0, 4));
    assert!((0..4).all(|slot| copies.get(slot).is_none() && frame.get(slot).is_some()));
    assert_eq!(copies.vacant(), Some(0));
}

#[test]
fn what_changes_after_a_barrier_is_of_the_next_checkpoint() {
    let (before, now) = (MarkEpoch::FIRST, MarkEpoch::FIRST.next());
    let mut frame = frame(3);
    (0..2).for_each(|slot| frame.put(slot, slot, slot, before));
    frame.settle(0, 9);
    // It is on storage as it was at the barrier.
    frame.freshen(0, now);
    frame.put(2, 2, 2, now);
    assert_eq!((frame.due(now), frame.fresh()), (1, 3));
    let frozen = frame.freeze_for(now.due());
    assert_eq!([0, 1, 2].map(|slot| frozen.get(slot).is_some()), [false, true, false]);
    let due = frame.thaw(frozen);
    assert_eq!([0, 1, 2].map(|slot| frame.is_due(slot, due)), [false, true, false]);
    // The checkpoint is given up: all of it is of the next one, but for what changes then.
    let later = now.next();
    assert_eq!((frame.freshen(2, later), frame.due(later)), (None, 2));
    frame.carry_over(later);
    assert_eq!((frame.due(later), frame.due(later.next())), (0, 3));
    let frozen = frame.freeze();
    assert!((0..3).all(|slot| frozen.get(slot).is_some()), "all of it, when a frame has to go");
    frame.thaw(frozen);
}

#[test]
#[should_panic(expected = "a frozen frame is never changed")]
fn a_frozen_frame_cannot_be_written() {
    let mut frame = frame(1);
    frame.put(0, 1u8, 1u8, MarkEpoch::FIRST);
    let _frozen = frame.freeze();
    frame.get_mut(0);
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Empty;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Wide(u8);

/// Puts, shows, copies, takes and drops records of these types, of which `make` makes the `n`th.
fn records_come_and_go<K, V>(make: impl Fn(u8) -> (K, V))
where
    K: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
    V: Clone + Send + Sync + PartialEq + std::fmt::Debug + 'static,
{
    let (before, now) = (MarkEpoch::FIRST, MarkEpoch::FIRST.next());
    let mut frame = frame::<K, V>(5);
    let types = in_memory::of::<K, V>();
    let slot = size_of::<(u32, AtomicU32)>().next_multiple_of(types.layout().align());
    assert!(Frame::slot_bytes(types) >= slot + types.layout().size());
    assert_eq!(Frame::slot_bytes(types), SlotLayout::for_types::<K, V>().stride);
    for n in 0..5 {
        let slot = frame.vacant().unwrap();
        let (key, value) = make(n);
        frame.put(slot, key, value, before);
    }
    let is_it = |record: Option<(&K, &V)>, n: u8| {
        let (key, value) = make(n);
        record == Some((&key, &value))
    };
    assert!((0..5).all(|n| is_it(frame.get(n.into()), n)));
    let (key, value) = frame.get_mut(3).map(|(key, value)| (key.clone(), value)).unwrap();
    assert_eq!(key, make(3).0);
    *value = make(9).1;
    assert_eq!(frame.get(3).map(|(_, value)| value.clone()), Some(make(9).1));
    assert_eq!(frame.take(3), (make(3).0, make(9).1));
    frame.drop_entry(4);
    assert_eq!((frame.used(), frame.get(3), frame.get(4)), (3, None, None));
    let shown: Vec<_> = frame.live_from(1).map(RecordRef::native::<K, V>).collect();
    assert!(shown.len() == 2 && is_it(Some(shown[0]), 1) && is_it(Some(shown[1]), 2));
    let frozen = frame.freeze();
    assert!((0..3).all(|n| is_it(native(frozen.get(n.into())), n)) && frozen.get(3).is_none());
    frame.thaw(frozen);
    if !types.needs_drop() {
        let mut copies = self::frame::<K, V>(5);
        frame.copy_due(&mut copies, now);
        assert!((0..3).all(|n| is_it(copies.get(n.into()), n)) && copies.used() == 3);
    }
    frame.clear();
    assert_eq!((frame.used(), frame.vacant()), (0, Some(0)));
}

#[test]
fn records_of_all_sizes_and_alignments_come_and_go() {
    records_come_and_go(|_| (Empty, Empty));
    records_come_and_go(|n| (n, Empty));
    records_come_and_go(|n| ([n; 3], Empty));
    records_come_and_go(|n| (Empty, [n; 3]));
    records_come_and_go(|n| ([n; 3], u64::from(n)));
    records_come_and_go(|n| (u128::from(n), n));
    records_come_and_go(|n| (n, [u64::from(n); 7]));
    records_come_and_go(|n| (n, Wide(n)));
    records_come_and_go(|n| (Wide(n), [n; 3]));
    records_come_and_go(|n| (n.to_string(), Wide(n)));
    records_come_and_go(|n| (n, vec![n.to_string(); n.into()]));
    let shared = Arc::new(());
    records_come_and_go(|n| (n, (shared.clone(), Wide(n))));
    assert_eq!(Arc::strong_count(&shared), 1, "each is dropped once");
}
