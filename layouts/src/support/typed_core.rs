//! Cores whose records have known types. A core is all of a layout but its record path: it has no types, and is compiled
//! once.

/// Declares a type that is a core, and reaches native keys and values. Its file compares the types with those of the core
/// where it makes one, and answers for what it makes of them.
macro_rules! typed_core {
    ($(#[$meta:meta])* $vis:vis struct $typed:ident($core:ty);) => {
        $crate::support::out_of_line_unsafe::drop_here!($core);

        $(#[$meta])*
        #[repr(transparent)]
        $vis struct $typed<K, V> {
            core: $crate::support::out_of_line_unsafe::DroppedHere<$core>,
            types: std::marker::PhantomData<fn() -> (K, V)>,
        }

        impl<K, V> std::ops::Deref for $typed<K, V> {
            type Target = $core;

            #[inline(always)]
            fn deref(&self) -> &$core {
                &self.core
            }
        }

        impl<K, V> std::ops::DerefMut for $typed<K, V> {
            #[inline(always)]
            fn deref_mut(&mut self) -> &mut $core {
                &mut self.core
            }
        }
    };
}
pub(crate) use typed_core;
