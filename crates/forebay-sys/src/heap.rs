//! Memory that the C library keeps for later.

/// Gives free pages of the heap back to the system. Takes about 0.1 ms a megabyte, during which other threads may have to wait
/// for memory. Does nothing where the C library is not glibc.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but free memory, and takes the locks that allocating takes.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
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
}
