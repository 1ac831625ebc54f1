//! Limit of frames that a client may send without progress. The state machine takes PING, PATH_CHALLENGE, MAX_DATA, empty STREAM frames
//! and their like for as long as they come, and each costs as much as a small request.
//!
//! Every frame of the client is a debt of one. Time, and what the connection is for, pay it back: content that moves, and STREAM frames
//! that the client has to acknowledge. The owner ends the connection of a client that owes too much.

use forebay_quic::connection::Stats;
use std::time::Instant;

/// Frames that a client may send without progress.
pub const FRAMES: i64 = 1000;
/// Frames that each second allows for.
const PER_SECOND: u32 = 100;
/// Frames of the client for each STREAM frame that it gets: it acknowledges it, and allows for more of them.
const PER_STREAM_FRAME: u64 = 2;
/// Bytes of content that allow for one frame.
const BYTES: u64 = 64;
/// Most frames that progress allows for in advance: acknowledgements follow what they are for.
const IN_ADVANCE: i64 = 10_000;
/// Bytes received after which a look at the frames in them is due, if the turn does not end before.
const LOOK_AFTER: usize = 16 * 1024;

/// Debt of a client.
#[derive(Debug)]
pub(super) struct Budget {
    /// Frames received and allowed for, when they were last looked at.
    received: u64,
    allowed: u64,
    /// Frames received beyond those allowed for. Negative: frames allowed for in advance.
    debt: i64,
    looked: Instant,
    /// Progress that the owner has noted, frames.
    noted: u64,
    /// Bytes received since the last look.
    unseen: usize,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { received: 0, allowed: 0, debt: 0, looked: now, noted: 0, unseen: 0 }
    }

    /// Notes content that has moved, in bytes, and requests that are over, which make up for so many frames.
    pub(super) fn note(&mut self, content: u64, frames: u64) {
        self.noted += content / BYTES + frames;
    }

    /// Notes a datagram. Returns `true` if a look is due.
    pub(super) fn receive(&mut self, bytes: usize) -> bool {
        self.unseen += bytes;
        self.unseen >= LOOK_AFTER
    }

    /// Looks at the frames that were received. Returns `true` if the client owes too much.
    pub(super) fn look(&mut self, stats: &Stats, now: Instant) -> bool {
        self.unseen = 0;
        let received = stats.received_frames;
        let allowed = self.noted + stats.sent_stream_frames * PER_STREAM_FRAME;
        let seconds = now.saturating_duration_since(self.looked);
        // A time too short for a whole frame is left for the next look.
        let in_time = u64::try_from(seconds.as_millis()).unwrap_or(u64::MAX) * u64::from(PER_SECOND) / 1000;
        if in_time > 0 {
            self.looked = now;
        }
        let paid = allowed.saturating_sub(self.allowed).saturating_add(in_time);
        let owed = received.saturating_sub(self.received);
        let change = i64::try_from(owed).unwrap_or(i64::MAX) - i64::try_from(paid).unwrap_or(i64::MAX);
        // Time pays for frames of the past only, so that an idle client cannot save it up for a flood.
        let least = if allowed > self.allowed { -IN_ADVANCE } else { self.debt.min(0) };
        self.debt = self.debt.saturating_add(change).max(least);
        (self.received, self.allowed) = (received, allowed);
        self.debt > FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stats(pings: u64, streams: u64) -> Stats {
        Stats { received_frames: pings, sent_stream_frames: streams, ..Stats::default() }
    }

    #[test]
    fn frames_without_progress() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        assert!(!budget.look(&stats(1000, 0), now));
        assert!(budget.look(&stats(1001, 0), now));
    }

    #[test]
    fn time_makes_up_for_frames() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        // An hour in which nothing happens is no reserve.
        let hour = start + Duration::from_secs(3600);
        assert!(!budget.look(&stats(0, 0), hour));
        assert!(!budget.look(&stats(1000, 0), hour));
        // Looks in short intervals lose nothing.
        for n in 1..=1000u64 {
            let now = hour + Duration::from_millis(5 * n);
            assert!(!budget.look(&stats(1000 + n / 2, 0), now), "{n}");
        }
        assert!(budget.look(&stats(1502, 0), hour + Duration::from_secs(5)));
    }

    #[test]
    fn progress_makes_up_for_frames() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.note(64 * 500, 10);
        assert!(!budget.look(&stats(0, 200), now));
        assert!(!budget.look(&stats(1910, 200), now));
        assert!(budget.look(&stats(1911, 200), now));
        // Not without end.
        let mut budget = Budget::new(now);
        assert!(!budget.look(&stats(0, 1_000_000), now));
        assert!(!budget.look(&stats(11_000, 1_000_000), now));
        assert!(budget.look(&stats(11_001, 1_000_000), now));
    }

    #[test]
    fn a_look_is_due_after_many_bytes() {
        let mut budget = Budget::new(Instant::now());
        assert!(!budget.receive(1200));
        assert!(budget.receive(LOOK_AFTER));
    }
}
