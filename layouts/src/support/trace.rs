//! What is rare and takes long, told to `tracing` where the feature of that name is on: pages written
//! and evicted, stalls, index splits, checkpoints, restores. Never a record.
//!
//! Off, which is the default, the macros are nothing, and what they name is not evaluated. Target of
//! all is `alluvium`; a state's name is in the field `state`.

/// Tells an event: `trace_event!(DEBUG, "page evicted", page = 3)`.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! trace_event {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::tracing::event!(
            target: "alluvium", $crate::tracing::Level::$level, $($name = $value,)* $message
        )
    };
}

/// Opens a span until the end of the block: `trace_span!(DEBUG, "flush", page = 3)`.
#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! trace_span {
    ($level:ident, $title:literal $(, $name:ident = $value:expr)* $(,)?) => {
        let _span = $crate::tracing::span!(
            target: "alluvium", $crate::tracing::Level::$level, $title, $($name = $value,)*
        )
        .entered();
    };
}

#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! trace_event {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = &$value;)*
        }
    };
}

#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! trace_span {
    ($level:ident, $title:literal $(, $name:ident = $value:expr)* $(,)?) => {
        if false {
            $(let _ = &$value;)*
        }
    };
}
