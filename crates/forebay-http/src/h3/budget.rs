//! Limits for what costs a peer little (RFC 9114, section 10.5): control frames, instructions of QPACK, unidirectional streams, and
//! requests that it gives up. Hot path.

use super::{Code, Fatal};

/// Control frames, instructions and unidirectional streams after which the connection ends, if no response was finished.
const OVERHEAD: u64 = 1000;
/// Part of these that a finished response makes up for: a peer may send priorities and insertions with each request.
pub const OVERHEAD_OF_REQUEST: u64 = 64;
/// Resets without a finished response in between after which the connection ends, as over HTTP/2.
const RESETS: u32 = 200;

/// What a peer has spent.
#[derive(Debug, Default)]
pub struct Budget {
    overhead: u64,
    resets: u32,
}

impl Budget {
    /// Counts frames, instructions and streams without a limit of their own.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn spend(&mut self, n: u64) -> Result<(), Fatal> {
        self.overhead += n;
        match self.overhead > OVERHEAD {
            true => Err(Fatal::new(Code::ExcessiveLoad, "sent too many frames and instructions")),
            false => Ok(()),
        }
    }

    /// Counts a request that ended before its response did.
    ///
    /// # Errors
    /// There are too many.
    pub fn reset(&mut self) -> Result<(), Fatal> {
        self.resets += 1;
        match self.resets > RESETS {
            true => Err(Fatal::new(Code::ExcessiveLoad, "reset too many requests")),
            false => Ok(()),
        }
    }

    /// Notes a response that was finished.
    pub fn finished(&mut self) {
        self.resets = self.resets.saturating_sub(1);
        self.overhead = self.overhead.saturating_sub(OVERHEAD_OF_REQUEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_responses_make_up_for_frames_and_resets() {
        let mut budget = Budget::default();
        assert_eq!(budget.spend(OVERHEAD), Ok(()));
        budget.finished();
        assert_eq!(budget.spend(OVERHEAD_OF_REQUEST), Ok(()));
        assert_eq!(budget.spend(1).map_err(|e| e.code), Err(Code::ExcessiveLoad));
        for _ in 0..RESETS {
            assert_eq!(budget.reset(), Ok(()));
        }
        budget.finished();
        assert_eq!(budget.reset(), Ok(()));
        assert_eq!(budget.reset().map_err(|e| e.code), Err(Code::ExcessiveLoad));
    }
}
