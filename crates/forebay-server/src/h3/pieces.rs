//! Memory for what is put together before QUIC gets it. QUIC keeps it until the client has acknowledged it; then it serves again. Hot path.

use bytes::Bytes;
use std::cell::RefCell;

/// Most buffers that a thread keeps.
const KEPT: usize = 256;
/// Largest buffer that is kept or handed over, bytes: a head, and content that is gathered behind it.
const LARGEST: usize = 6 * 1024;
/// Shortest piece for which QUIC gets the buffer itself. A shorter one would hold much more memory than it needs.
const SHORTEST: usize = 512;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Buffer that becomes spare once nothing refers to it.
struct Piece(Vec<u8>);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.0));
    }
}

/// Returns an empty buffer.
pub(super) fn take() -> Vec<u8> {
    // It fails at the end of the thread.
    SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Keeps the memory of a buffer for the next one who asks.
fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() > LARGEST {
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

/// Moves the content of a buffer to the caller, without a copy if it fills a good part of its memory. The buffer is empty afterwards.
pub(super) fn share(buffer: &mut Vec<u8>) -> Bytes {
    if buffer.len() >= SHORTEST && buffer.capacity() <= LARGEST {
        return Bytes::from_owner(Piece(std::mem::take(buffer)));
    }
    let bytes = Bytes::copy_from_slice(buffer);
    give(std::mem::take(buffer));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare() -> usize {
        SPARE.with(|spare| spare.borrow().len())
    }

    #[test]
    fn memory_serves_again_once_nothing_refers_to_it() {
        let mut buffer = take();
        buffer.extend_from_slice(&[7; 1000]);
        let memory = buffer.as_ptr();
        let piece = share(&mut buffer);
        assert_eq!((piece.as_ptr(), &piece[..], buffer.capacity()), (memory, &[7; 1000][..], 0));
        let part = piece.slice(10..20);
        drop(piece);
        assert_eq!(spare(), 0, "a part of it is in use");
        drop(part);
        assert_eq!(spare(), 1);
        let again = take();
        assert_eq!((again.as_ptr(), spare()), (memory, 0));
    }

    #[test]
    fn pieces_hold_no_more_memory_than_they_need() {
        for (len, capacity) in [(100, 2000), (100_000, 100_000)] {
            let mut buffer = Vec::with_capacity(capacity);
            buffer.resize(len, 1);
            let memory = buffer.as_ptr();
            let piece = share(&mut buffer);
            assert_eq!((piece.len(), buffer.len()), (len, 0));
            assert_ne!(piece.as_ptr(), memory);
        }
        assert_eq!(spare(), 1, "the large one is freed");
        let all: Vec<_> = (0..KEPT + 10).map(|_| share(&mut vec![1; SHORTEST])).collect();
        drop(all);
        assert_eq!(spare(), KEPT);
    }
}
