//! Memory for what is put together before QUIC gets it, which copies it. It serves again for other streams. Hot path.

use std::cell::RefCell;

/// Most buffers that a thread keeps.
const KEPT: usize = 256;
/// Largest buffer that is kept, bytes: a head, and content that is gathered behind it.
const LARGEST: usize = 6 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty buffer.
pub(super) fn take() -> Vec<u8> {
    // It fails at the end of the thread.
    SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Keeps the memory of a buffer for the next one who asks.
pub(super) fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() > LARGEST || buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare() -> usize {
        SPARE.with(|spare| spare.borrow().len())
    }

    #[test]
    fn memory_serves_again() {
        let mut buffer = take();
        buffer.extend_from_slice(&[7; 1000]);
        let memory = buffer.as_ptr();
        give(buffer);
        assert_eq!(spare(), 1);
        let again = take();
        assert_eq!((again.as_ptr(), again.len(), spare()), (memory, 0, 0));
    }

    #[test]
    fn few_and_small_buffers_are_kept() {
        give(Vec::with_capacity(LARGEST + 1));
        give(Vec::new());
        assert_eq!(spare(), 0);
        (0..KEPT + 10).for_each(|_| give(vec![1]));
        assert_eq!(spare(), KEPT);
    }
}
