//! Values of tests of tables: of all sizes and alignments, with and without drop glue.

/// A value made of a number.
pub(super) trait NumberedValue: Clone + Send + Sync + 'static {
    fn of(n: u64) -> Self;
    fn is(&self, n: u64) -> bool;
}

/// A number that stands where 64 divides the address.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Wide(u64);

macro_rules! made {
    ($type:ty, $of:expr, $is:expr) => {
        impl NumberedValue for $type {
            fn of(n: u64) -> Self {
                let of: fn(u64) -> Self = $of;
                of(n)
            }

            fn is(&self, n: u64) -> bool {
                let is: fn(&Self, u64) -> bool = $is;
                is(self, n)
            }
        }
    };
}

made!((), |_| (), |_, _| true);
made!(u8, |n| n as u8, |of, n| *of == n as u8);
made!(u64, |n| n, |of, n| *of == n);
made!([u8; 3], |n| [n as u8, (n >> 8) as u8, 7], |of, n| of[1] == (n >> 8) as u8);
made!([u64; 2], |n| [n; 2], |of, n| *of == [n; 2]);
made!([u64; 8], |n| [n; 8], |of, n| *of == [n; 8]);
made!([u64; 31], |n| [n; 31], |of, n| *of == [n; 31]);
made!(Wide, Wide, |of, n| of.0 == n && std::ptr::from_ref(of).addr() % 64 == 0);
made!(String, |n| n.to_string(), |of, n| *of == n.to_string());
made!(Box<[u64]>, |n| vec![n; n as usize % 5].into(), |of, n| of.iter().all(|of| *of == n));
