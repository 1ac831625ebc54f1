//! Futures in memory that is used again, for calls through a trait object that may wait: a box would be an allocation for each call.
//!
//! Each thread keeps freed blocks by size. Futures of unusual size or alignment are ordinary allocations. Hot path.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Sizes of blocks, bytes: powers of two from this one on.
const LEAST: usize = 128;
/// Number of sizes.
const SIZES: usize = 8;
/// Alignment of blocks, bytes.
const ALIGN: usize = 16;
/// Memory that a thread keeps of blocks of one size, bytes.
const KEPT: usize = 64 * 1024;

/// A future on the heap, as `Pin<Box<dyn Future>>`, whose memory comes from its thread.
pub struct Pooled<'f, T> {
    future: NonNull<dyn Future<Output = T> + 'f>,
}

impl<'f, T> Pooled<'f, T> {
    /// Moves a future to the heap.
    pub fn new<F: Future<Output = T> + 'f>(future: F) -> Pooled<'f, T> {
        let place = take(Layout::new::<F>()).cast::<F>();
        // SAFETY: `take` returns memory for the layout of `F` that nothing else uses.
        unsafe { place.write(future) };
        Pooled { future: place }
    }
}

impl<T> Future for Pooled<'_, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // SAFETY: the future lives until `self` is dropped, and is reached through `self` alone. It stays where it is until then, so
        // that it is pinned whether or not `self` moves.
        unsafe { Pin::new_unchecked(self.future.as_mut()) }.poll(cx)
    }
}

impl<T> Drop for Pooled<'_, T> {
    fn drop(&mut self) {
        /// Memory of a future, given back also where the future panics when it is dropped.
        struct Memory(NonNull<u8>, Layout);

        impl Drop for Memory {
            fn drop(&mut self) {
                give(self.0, self.1);
            }
        }

        // SAFETY: the future is initialized, and nobody reaches it after this.
        let layout = Layout::for_value(unsafe { self.future.as_ref() });
        let _memory = Memory(self.future.cast(), layout);
        // SAFETY: as above; it is dropped in place, as a pinned value has to be.
        unsafe { self.future.drop_in_place() };
    }
}

impl<T> fmt::Debug for Pooled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pooled")
    }
}

/// Free blocks of a thread, by size.
struct Free([Vec<NonNull<u8>>; SIZES]);

impl Drop for Free {
    fn drop(&mut self) {
        for (size, blocks) in self.0.iter_mut().enumerate() {
            for block in blocks.drain(..) {
                // SAFETY: the block was allocated with the layout of its size, and only this list has it.
                unsafe { dealloc(block.as_ptr(), block_layout(size)) };
            }
        }
    }
}

thread_local! {
    static FREE: RefCell<Free> = const { RefCell::new(Free([const { Vec::new() }; SIZES])) };
}

/// Returns the number of the size of blocks that a layout fits into, or `None` if there is none.
#[inline]
fn size_of_block(layout: Layout) -> Option<usize> {
    let size = layout.size().div_ceil(LEAST).next_power_of_two().trailing_zeros() as usize;
    (layout.size() > 0 && layout.align() <= ALIGN && size < SIZES).then_some(size)
}

/// Returns the layout of the blocks of a size.
#[inline]
fn block_layout(size: usize) -> Layout {
    Layout::from_size_align(LEAST << size, ALIGN).expect("sizes of blocks are small")
}

/// Returns memory for a layout.
#[inline]
fn take(layout: Layout) -> NonNull<u8> {
    if layout.size() == 0 {
        return NonNull::without_provenance(
            std::num::NonZero::new(layout.align()).expect("an alignment is not zero"),
        );
    }
    let Some(size) = size_of_block(layout) else { return allocate(layout) };
    let free = FREE.try_with(|free| free.borrow_mut().0[size].pop());
    free.ok().flatten().unwrap_or_else(|| allocate(block_layout(size)))
}

/// Allocates memory. The size of the layout is not zero.
#[cold]
fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: no caller asks for a layout of size zero.
    let memory = unsafe { alloc(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Takes memory back that [`take`] has returned for the same layout.
#[inline]
fn give(memory: NonNull<u8>, layout: Layout) {
    if layout.size() == 0 {
        return;
    }
    let Some(size) = size_of_block(layout) else {
        // SAFETY: `take` allocated it with this layout.
        return unsafe { dealloc(memory.as_ptr(), layout) };
    };
    let kept = FREE.try_with(|free| {
        let blocks = &mut free.borrow_mut().0[size];
        let has_room = blocks.len() < KEPT / (LEAST << size);
        if has_room {
            blocks.push(memory);
        }
        has_room
    });
    // The lists of a thread that ends are gone.
    if !kept.unwrap_or(false) {
        // SAFETY: `take` allocated it with the layout of its size.
        unsafe { dealloc(memory.as_ptr(), block_layout(size)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::Waker;

    fn poll<T>(future: &mut Pooled<'_, T>) -> Poll<T> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Becomes ready with the second poll.
    async fn wait() {
        let mut waited = false;
        std::future::poll_fn(|_| match std::mem::replace(&mut waited, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    #[test]
    fn a_future_runs_and_borrows() {
        let mut text = String::from("a");
        let mut future = Pooled::new(async {
            text.push('b');
            wait().await;
            text.push('c');
            text.len()
        });
        assert_eq!(poll(&mut future), Poll::Pending);
        assert_eq!(poll(&mut future), Poll::Ready(3));
        drop(future);
        assert_eq!(text, "abc");
    }

    #[test]
    fn values_of_a_future_are_dropped_once() {
        let held = Rc::new(());
        let inside = held.clone();
        let mut future = Pooled::new(async move {
            let _held = inside;
            wait().await;
        });
        assert!(poll(&mut future).is_pending());
        assert_eq!(Rc::strong_count(&held), 2);
        drop(future);
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn memory_is_used_again() {
        let place = |future: &Pooled<'_, [u8; 300]>| future.future.cast::<u8>();
        let make = || {
            Pooled::new(async {
                wait().await;
                [7; 300]
            })
        };
        let first = make();
        let address = place(&first);
        drop(first);
        let mut again = make();
        assert_eq!(place(&again), address);
        let other = make();
        assert_ne!(place(&other), address);
        assert!(poll(&mut again).is_pending());
        assert_eq!(poll(&mut again), Poll::Ready([7; 300]));
    }

    #[test]
    fn a_thread_keeps_a_limited_amount() {
        let many: Vec<_> = (0..2 * KEPT / LEAST).map(|n| Pooled::new(async move { n })).collect();
        drop(many);
        let kept = FREE.with(|free| free.borrow().0[0].len());
        assert_eq!(kept, KEPT / LEAST);
    }

    #[test]
    fn futures_of_any_size_and_alignment_work() {
        #[repr(align(64))]
        struct Aligned([u8; 64]);
        let aligned = Aligned([5; 64]);
        let mut future = Pooled::new(async move {
            wait().await;
            (std::ptr::from_ref(&aligned).addr() % 64, aligned.0[63])
        });
        assert!(poll(&mut future).is_pending());
        assert_eq!(poll(&mut future), Poll::Ready((0, 5)));
        let large = [3u8; 100_000];
        let mut future = Pooled::new(async move {
            wait().await;
            large.iter().map(|b| u64::from(*b)).sum::<u64>()
        });
        assert!(poll(&mut future).is_pending());
        assert_eq!(poll(&mut future), Poll::Ready(300_000));
        assert_eq!(poll(&mut Pooled::new(async {})), Poll::Ready(()));
    }

    #[test]
    fn a_panic_in_a_drop_gives_the_memory_back() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("as the test wants");
            }
        }
        let mut future = Pooled::new(async {
            let _panics = Panics;
            wait().await;
        });
        assert!(poll(&mut future).is_pending());
        let before = FREE.with(|free| free.borrow().0.iter().map(Vec::len).sum::<usize>());
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(future)));
        assert!(dropped.is_err());
        let after = FREE.with(|free| free.borrow().0.iter().map(Vec::len).sum::<usize>());
        assert_eq!(after, before + 1);
    }
}
