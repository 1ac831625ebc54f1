//! A global allocator that counts, for tests that a path allocates nothing.

use crate::heap::Allocator;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    // Constant and without a destructor: reading it never allocates, not even at the end of a thread.
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { allocations: 0, bytes: 0, freed: 0 }) };
}

/// Memory that the current thread has allocated since it began. Freed memory is not subtracted but counted by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `alloc`, `alloc_zeroed` and `realloc`.
    pub allocations: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes given back, by whichever thread they were asked for.
    pub freed: u64,
}

impl Counts {
    /// Returns the number of bytes that were asked for and not given back.
    pub fn live(&self) -> i64 {
        self.bytes.wrapping_sub(self.freed) as i64
    }
}

/// The allocator of the program ([`crate::heap`]) with counters per thread. Use it in a test program:
/// `#[global_allocator] static A: CountingAllocator = CountingAllocator;`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// Counters of the calling thread. They stay 0 unless this is the program's global allocator.
    pub fn counts() -> Counts {
        COUNTS.get()
    }
}

fn count(bytes: usize) {
    let before = COUNTS.get();
    COUNTS.set(Counts {
        allocations: before.allocations.wrapping_add(1),
        bytes: before.bytes.wrapping_add(bytes as u64),
        ..before
    });
}

fn count_freed(bytes: usize) {
    let before = COUNTS.get();
    COUNTS.set(Counts { freed: before.freed.wrapping_add(bytes as u64), ..before });
}

// SAFETY: every call is handed on to `Allocator` unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those that `Allocator` asks for.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count_freed(layout.size());
        // SAFETY: as above; `ptr` came from `Allocator`, since this allocator hands on everything.
        unsafe { Allocator.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { Allocator.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        count_freed(layout.size());
        // SAFETY: as above.
        unsafe { Allocator.realloc(ptr, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn counts_this_thread_only() {
        let before = CountingAllocator::counts();
        let block = std::hint::black_box(vec![0u8; 1000]);
        let after = CountingAllocator::counts();
        assert_eq!((after.allocations - before.allocations, after.bytes - before.bytes), (1, 1000));
        drop(block);
        let freed = CountingAllocator::counts();
        assert_eq!(
            (freed.allocations, freed.bytes, freed.freed - after.freed),
            (after.allocations, after.bytes, 1000)
        );
        assert_eq!(freed.live(), before.live());
    }
}
