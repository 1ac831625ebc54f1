//! Events and spans of packets and frames, which only tests look at
//!
//! With a disabled level the macros of `tracing` leave a span behind that is filled and dropped, and
//! look for the `log` crate's logger if another crate enables that.

macro_rules! trace {
    ($($arg:tt)*) => {
        if cfg!(test) {
            tracing::trace!($($arg)*);
        }
    };
}

/// Enters a span until the value is dropped
#[cfg(test)]
macro_rules! span {
    ($($arg:tt)*) => {
        tracing::trace_span!($($arg)*).entered()
    };
}

#[cfg(not(test))]
macro_rules! span {
    ($($arg:tt)*) => {
        if false {
            tracing::trace_span!($($arg)*);
        }
    };
}

pub(crate) use {span, trace};
