//! The allocator of the program, and the memory that it keeps for later.
//!
//! jemalloc keeps blocks of one size together. The heap of glibc does not: among blocks of all sizes and lifetimes, as a proxy has
//! them, half of its pages stay in use for small rests (docs/performance-notes.md has figures).

#[cfg(not(feature = "jemalloc"))]
pub use std::alloc::System as Allocator;
/// Allocates all that Rust code asks for. C libraries use the allocator of the C library.
#[cfg(feature = "jemalloc")]
pub use tikv_jemallocator::Jemalloc as Allocator;

/// Gives the free blocks that the calling thread keeps for itself back to the allocator. Takes microseconds.
pub fn release_of_thread() {
    #[cfg(feature = "jemalloc")]
    let _ = control(FLUSH);
}

/// Gives free pages of the heap back to the system. Takes about 0.1 ms a megabyte, during which other threads may have to wait
/// for memory. Blocks that other threads keep for themselves stay (see [`release_of_thread`]).
pub fn trim() {
    release_of_thread();
    #[cfg(feature = "jemalloc")]
    let _ = control(PURGE);
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but free memory, and takes the locks that allocating takes.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Gives free pages of the heap back that have not been used for about ten seconds. The allocator has no clock of its own: threads that
/// serve requests from memory that they have do not call it for long.
pub fn decay() {
    #[cfg(feature = "jemalloc")]
    let _ = control(DECAY);
}

/// Gives back the free blocks of the calling thread.
#[cfg(feature = "jemalloc")]
const FLUSH: &std::ffi::CStr = c"thread.tcache.flush";

/// Gives back the free pages of all arenas: 4096 is `MALLCTL_ARENAS_ALL`.
#[cfg(feature = "jemalloc")]
const PURGE: &std::ffi::CStr = c"arena.4096.purge";

/// Gives back the pages of all arenas that have been free for long.
#[cfg(feature = "jemalloc")]
const DECAY: &std::ffi::CStr = c"arena.4096.decay";

/// Runs a command of jemalloc (mallctl(3)) that takes and returns nothing. Returns its error number, 0 if there is none. Only unknown
/// names fail, and a failure changes nothing.
#[cfg(feature = "jemalloc")]
fn control(name: &std::ffi::CStr) -> i32 {
    use std::ptr::null_mut;
    // SAFETY: the name ends with a zero; without places for values, nothing is read or written.
    unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) }
}

#[cfg(all(test, any(target_env = "gnu", feature = "jemalloc")))]
mod tests {
    /// Returns the resident memory, KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }

    #[test]
    fn memory_between_pieces_that_stay_is_given_back() {
        // Each too small to be mapped by itself; every hundredth stays, the last one above all others.
        let mut pieces: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 2000])).collect();
        let full = resident();
        for (i, p) in pieces.iter_mut().enumerate() {
            if i % 100 != 99 {
                *p = None;
            }
        }
        super::trim();
        let left = resident();
        assert!(left + 20_000 < full, "{full} KiB, then {left} KiB");
        assert_eq!(pieces.iter().flatten().count(), 200);
    }

    #[cfg(feature = "jemalloc")]
    #[test]
    fn commands_are_known() {
        for known in [super::FLUSH, super::PURGE, super::DECAY] {
            assert_eq!(super::control(known), 0, "{known:?}");
        }
        assert_ne!(super::control(c"unknown"), 0);
    }
}
