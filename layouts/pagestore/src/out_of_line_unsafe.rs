//! Drops large generic values in one function.
//!
//! The compiler repeats the code that drops a value in each part of a program that may drop it,
//! including panic paths. A [value out of line](OutOfLine) reduces each copy to a call. For tables
//! and their checkpoints, with ten record types, the copies were a tenth of a program's code.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value that one function, never inlined, drops.
#[derive(Debug)]
pub struct OutOfLine<T>(ManuallyDrop<T>);

impl<T> OutOfLine<T> {
    /// Wraps a value.
    #[inline]
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used again.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Deref for OutOfLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OutOfLine<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for OutOfLine<T> {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: nobody else drops or takes the value, and nobody has `self` after this.
        unsafe { ManuallyDrop::drop(&mut self.0) }
    }
}

/// A type whose values a function of this crate drops.
///
/// The code that drops a value is compiled in each crate that may drop it, also where the type has no parameters. A
/// user's crate has a call of this function only.
///
/// # Safety
/// `drop_here` drops the value and does nothing else with it.
pub unsafe trait DropHere: Sized {
    /// Drops a value.
    ///
    /// # Safety
    /// Nobody touches it afterwards.
    // SAFETY: the value is the caller's to promise.
    unsafe fn drop_here(value: &mut ManuallyDrop<Self>);
}

/// Makes types without parameters `DropHere`.
#[macro_export]
macro_rules! drop_here {
    ($type:ty) => {
        // SAFETY: it drops the value.
        unsafe impl $crate::out_of_line_unsafe::DropHere for $type {
            #[inline(never)]
            // SAFETY: the value is the caller's to promise.
            unsafe fn drop_here(value: &mut std::mem::ManuallyDrop<Self>) {
                // SAFETY: the caller does not touch it again.
                unsafe { std::mem::ManuallyDrop::drop(value) }
            }
        }
    };
}
pub use drop_here;

/// A value that a function of this crate drops, never inlined.
#[derive(Debug)]
#[repr(transparent)]
pub struct DroppedHere<T: DropHere>(ManuallyDrop<T>);

impl<T: DropHere> DroppedHere<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: DropHere> Deref for DroppedHere<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DropHere> DerefMut for DroppedHere<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: DropHere> Drop for DroppedHere<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: nobody has `self` after this.
        unsafe { T::drop_here(&mut self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_value_is_dropped_once_also_by_a_panic() {
        let shared = Rc::new(());
        let mut value = OutOfLine::new(vec![shared.clone(), shared.clone()]);
        value.push(shared.clone());
        assert_eq!((value.len(), Rc::strong_count(&shared)), (3, 4));
        drop(value);
        assert_eq!(Rc::strong_count(&shared), 1);
        let value = OutOfLine::new(vec![shared.clone()]).into_inner();
        assert_eq!((value.len(), Rc::strong_count(&shared)), (1, 2));
        drop(value);
        assert_eq!(Rc::strong_count(&shared), 1);
        let value = OutOfLine::new(vec![shared.clone()]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _value = value;
            panic!("planned");
        }));
        assert!(panicked.is_err() && Rc::strong_count(&shared) == 1);
    }

    #[test]
    fn a_value_that_is_dropped_here_is_dropped_once_also_by_a_panic() {
        struct Shared(Rc<()>);
        drop_here!(Shared);
        let shared = Rc::new(());
        let value = DroppedHere::new(Shared(shared.clone()));
        assert_eq!(Rc::strong_count(&value.0.0), 2);
        drop(value);
        assert_eq!(Rc::strong_count(&shared), 1);
        let value = DroppedHere::new(Shared(shared.clone()));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _value = value;
            panic!("planned");
        }));
        assert!(panicked.is_err() && Rc::strong_count(&shared) == 1);
    }

    #[test]
    fn a_value_that_panics_while_it_is_dropped_is_dropped_once() {
        struct Fragile(Rc<()>);
        impl Drop for Fragile {
            fn drop(&mut self) {
                assert!(Rc::strong_count(&self.0) > 2, "planned");
            }
        }
        let shared = Rc::new(());
        let value = OutOfLine::new(Fragile(shared.clone()));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value)));
        assert!(dropped.is_err() && Rc::strong_count(&shared) == 1);
    }
}
