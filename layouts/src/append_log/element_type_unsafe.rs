//! What code that is compiled once knows of the elements of lists: a static table of functions.
//!
//! Elements in memory are native values, side by side. Appending and reading a chunk know their type. All else (moving
//! lists, measuring and dropping them) runs on places in memory, and the [`ElementType`] that says what is there.
//!
//! What makes it sound: [`ElementType::of`] takes [`State`], which is `Send` and `Sync`, so that each function may run on
//! a helper's thread.

use std::alloc::Layout;
use std::any::TypeId;
use std::marker::PhantomData;

use alluvium_pagestore::State;

/// The type of a state's elements, erased.
pub struct ElementType {
    layout: Layout,
    /// Whether elements never own heap.
    is_plain: bool,
    needs_drop: bool,
    id: fn() -> TypeId,
    // SAFETY: so many initialised elements of this type stand from the place on, to be measured.
    heap_bytes: unsafe fn(*const u8, usize) -> u64,
    // SAFETY: as many stand there at least, which are read in their order.
    take_while: unsafe fn(*const u8, usize, VisitMeasured<'_>) -> usize,
    // SAFETY: the caller owns so many initialised elements from the place on, and does not touch them again.
    drop: unsafe fn(*mut u8, usize),
}

/// Takes the heap bytes of an element; says whether to go on.
pub type VisitMeasured<'m> = &'m mut dyn FnMut(usize) -> bool;

impl std::fmt::Debug for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ElementType({:?})", self.layout)
    }
}

/// Makes the [`ElementType`] of a type.
struct ElementTypeOf<E>(PhantomData<E>);

// SAFETY of these functions: the caller gives initialised elements, as `ElementType` says.
impl<E: 'static> ElementTypeOf<E> {
    // SAFETY: so many elements stand there, and stay as they are during `'a`.
    unsafe fn slice<'a>(first: *const u8, count: usize) -> &'a [E] {
        // SAFETY: as said above.
        unsafe { std::slice::from_raw_parts(first.cast(), count) }
    }

    // SAFETY: the caller's promise, as said above.
    unsafe fn drop(first: *mut u8, count: usize) {
        // SAFETY: as said above; their owner does not touch them again.
        unsafe { std::ptr::slice_from_raw_parts_mut(first.cast::<E>(), count).drop_in_place() }
    }
}

impl<E: State> ElementTypeOf<E> {
    const TYPE: ElementType = ElementType {
        layout: Layout::new::<E>(),
        is_plain: E::NO_HEAP,
        needs_drop: std::mem::needs_drop::<E>(),
        id: TypeId::of::<E>,
        heap_bytes: Self::heap_bytes,
        take_while: Self::take_while,
        drop: Self::drop,
    };

    // SAFETY: the caller's promise, as `ElementType` says.
    unsafe fn take_while(first: *const u8, count: usize, measured: VisitMeasured<'_>) -> usize {
        // SAFETY: as said above.
        let all = unsafe { Self::slice(first, count) };
        all.iter().take_while(|element| measured(element.heap_bytes())).count()
    }

    // SAFETY: the caller's promise, as `ElementType` says.
    unsafe fn heap_bytes(first: *const u8, count: usize) -> u64 {
        // SAFETY: as said above.
        unsafe { Self::slice(first, count) }.iter().map(|element| element.heap_bytes() as u64).sum()
    }
}

impl ElementType {
    /// That of elements `E`.
    pub const fn of<E: State>() -> &'static Self {
        const { &ElementTypeOf::<E>::TYPE }
    }

    /// Whether elements are `E`.
    #[inline(always)]
    pub fn is<E: 'static>(&self) -> bool {
        // One function has several addresses only if it is made in several parts of a program.
        std::ptr::fn_addr_eq(self.id, TypeId::of::<E> as fn() -> TypeId)
            || (self.id)() == TypeId::of::<E>()
    }

    /// Whether both are of the same type.
    pub fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.id)() == (other.id)()
    }

    /// Whether elements never own heap.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Size and alignment of an element.
    #[inline(always)]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether to drop an element does anything.
    #[inline]
    pub fn needs_drop(&self) -> bool {
        self.needs_drop
    }
}

/// Elements of one list that stand side by side.
#[derive(Clone, Copy)]
pub struct ElementSlice<'a> {
    elements: &'static ElementType,
    first: *const u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

impl<'a> ElementSlice<'a> {
    /// So many elements from a place on.
    ///
    /// # Safety
    /// They are there, initialised and of this type, and nobody changes or drops them during `'a`.
    // SAFETY: the elements are the caller's to promise.
    #[inline(always)]
    pub unsafe fn new(elements: &'static ElementType, first: *const u8, len: usize) -> Self {
        debug_assert!(first.addr() % elements.layout.align() == 0);
        Self { elements, first, len, lives: PhantomData }
    }

    /// Elements that stand in a slice.
    #[inline]
    pub fn of<E: State>(native: &'a [E]) -> Self {
        let (first, len) = (native.as_ptr().cast(), native.len());
        Self { elements: ElementType::of::<E>(), first, len, lives: PhantomData }
    }

    /// The elements by their type.
    ///
    /// # Panics
    /// If they are of another one.
    #[inline(always)]
    pub fn native<E: State>(self) -> &'a [E] {
        let is_known = std::ptr::eq(self.elements, ElementType::of::<E>());
        assert!(is_known || self.elements.is::<E>(), "elements of another type");
        // SAFETY: elements of this type are there during `'a`.
        unsafe { ElementTypeOf::<E>::slice(self.first, self.len) }
    }

    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// What it has elements of.
    pub fn elements(self) -> &'static ElementType {
        self.elements
    }

    /// Those before the `at`th, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, at: usize) -> [Self; 2] {
        assert!(at <= self.len, "{at} of {} elements", self.len);
        // SAFETY: within the slice, or at its end.
        let first = unsafe { self.first.add(at * self.elements.layout.size()) };
        [Self { len: at, ..self }, Self { first, len: self.len - at, ..self }]
    }

    /// Shows the heap bytes of one element after the other as long as `measured` says so; of how many it did.
    pub fn take_while(self, measured: VisitMeasured<'_>) -> usize {
        // SAFETY: the elements are there during `'a`.
        unsafe { (self.elements.take_while)(self.first, self.len, measured) }
    }

    /// Heap that they own.
    pub fn heap_bytes(self) -> u64 {
        if self.elements.is_plain {
            return 0;
        }
        // SAFETY: the elements are there during `'a`.
        unsafe { (self.elements.heap_bytes)(self.first, self.len) }
    }
}

impl ElementType {
    /// Drops elements.
    ///
    /// # Safety
    /// So many are there, of this type, which the caller owns and does not touch again.
    // SAFETY: the elements are the caller's to promise.
    pub unsafe fn drop_elements(&self, first: *mut u8, count: usize) {
        if self.needs_drop {
            // SAFETY: as said above.
            unsafe { (self.drop)(first, count) }
        }
    }
}

/// Element types of tests, whose elements never leave memory nor their thread.
#[cfg(test)]
pub mod in_memory {
    use super::*;

    impl<E: 'static> ElementTypeOf<E> {
        const IN_MEMORY: ElementType = ElementType {
            layout: Layout::new::<E>(),
            is_plain: true,
            needs_drop: std::mem::needs_drop::<E>(),
            id: TypeId::of::<E>,
            heap_bytes: |_, _| 0,
            take_while: |_, _, _| unreachable!("not measured"),
            drop: Self::drop,
        };
    }

    /// That of any elements.
    pub fn of<E: 'static>() -> &'static ElementType {
        const { &ElementTypeOf::<E>::IN_MEMORY }
    }
}
