//! Heap memory that values own, in the bytes an allocator really takes for it.
//!
//! A general-purpose allocator rounds: on the common 64-bit allocators a request of `n` bytes takes
//! `max(24, n + 8)` rounded up to 16. Capacities alone are about a quarter low for short strings,
//! so the budget counts [`rounded`] bytes.

/// Bytes an allocator takes for a request of `bytes`; 0 for an empty request.
pub const fn rounded(bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    let with_header = bytes + 8;
    let least = if with_header < 32 { 32 } else { with_header };
    least.div_ceil(16) * 16
}

/// Heap bytes owned by a value, as the allocator rounds them.
///
/// The store calls [`heap_bytes`](HeapSize::heap_bytes) before and after each closure that may
/// change a value, unless [`NONE`](HeapSize::NONE) says that the type never owns heap memory, in
/// which case all accounting folds away.
pub trait HeapSize {
    /// True if no value of this type ever owns heap memory.
    const NONE: bool;

    /// Heap bytes owned by this value, not counting its own size. Cost: O(1) for strings and
    /// vectors of plain data, O(n) for vectors of values that own heap.
    fn heap_bytes(&self) -> usize;
}

macro_rules! none {
    ($($t:ty),* $(,)?) => {$(
        impl HeapSize for $t {
            const NONE: bool = true;
            #[inline(always)]
            fn heap_bytes(&self) -> usize { 0 }
        }
    )*};
}
none!(
    (), bool, char, u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, usize, isize, f32, f64,
    crate::Time
);

impl HeapSize for String {
    const NONE: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(self.capacity())
    }
}

impl<T: HeapSize> HeapSize for Vec<T> {
    const NONE: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        let own = rounded(self.capacity() * size_of::<T>());
        if T::NONE { own } else { own + self.iter().map(T::heap_bytes).sum::<usize>() }
    }
}

impl<T: HeapSize> HeapSize for Box<T> {
    const NONE: bool = false;
    #[inline]
    fn heap_bytes(&self) -> usize {
        rounded(size_of::<T>()) + (**self).heap_bytes()
    }
}

impl<T: HeapSize> HeapSize for Option<T> {
    const NONE: bool = T::NONE;
    #[inline]
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::heap_bytes)
    }
}

impl<T: HeapSize, const N: usize> HeapSize for [T; N] {
    const NONE: bool = T::NONE;
    #[inline]
    fn heap_bytes(&self) -> usize {
        if T::NONE { 0 } else { self.iter().map(T::heap_bytes).sum() }
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt),+)),* $(,)?) => {$(
        impl<$($t: HeapSize),+> HeapSize for ($($t,)+) {
            const NONE: bool = $($t::NONE)&&+;
            #[inline]
            fn heap_bytes(&self) -> usize { 0 $(+ self.$i.heap_bytes())+ }
        }
    )*};
}
tuples!((A 0), (A 0, B 1), (A 0, B 1, C 2), (A 0, B 1, C 2, D 3), (A 0, B 1, C 2, D 3, E 4));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_the_allocator_rounds() {
        assert_eq!(rounded(0), 0);
        assert_eq!(rounded(1), 32);
        assert_eq!(rounded(24), 32);
        assert_eq!(rounded(25), 48);
        assert_eq!(rounded(40), 48);
        assert_eq!(String::with_capacity(100).heap_bytes(), 112);
        let v = vec![String::with_capacity(10), String::with_capacity(100)];
        assert_eq!(v.heap_bytes(), rounded(48) + 32 + 112);
        assert_eq!((1u64, String::new()).heap_bytes(), 0);
    }

    #[test]
    fn plain_data_folds_to_nothing() {
        const { assert!(<(u64, [u32; 4], Option<i8>)>::NONE) };
        const { assert!(!<(u64, String)>::NONE) };
    }
}
