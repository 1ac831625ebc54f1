//! Serial numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that is used once in the life of the process: for names of temporary files, multipart boundaries.
pub fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
