//! Explicit congestion notification of a path (RFC 9000, section 13.4 and appendix A.4).

/// Counts of an ACK frame: packets that arrived with ECT(0), ECT(1) and CE.
pub(super) type Counts = [u64; 3];

/// Packets that are sent with a mark before something is known about the path.
const TEST_PACKETS: u8 = 10;

/// State of the validation of ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnState {
    /// The first packets are marked.
    Testing,
    /// The marks of the first packets have no answer yet. No others are marked.
    Unknown,
    /// Marks arrive.
    Capable,
    /// The path or the peer does not support it, or the caller does not want it.
    Failed,
}

/// ECN of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ecn {
    pub(super) state: EcnState,
    /// Packets sent while testing.
    sent: u8,
    /// How many of them were lost.
    lost: u8,
}

impl Ecn {
    pub(super) fn new(wanted: bool) -> Ecn {
        let state = if wanted { EcnState::Testing } else { EcnState::Failed };
        Ecn { state, sent: 0, lost: 0 }
    }

    /// Returns `true` if the next packet is to be marked with ECT(0).
    pub(super) fn marks(&self) -> bool {
        matches!(self.state, EcnState::Testing | EcnState::Capable)
    }

    pub(super) fn on_sent(&mut self) {
        if self.state == EcnState::Testing {
            self.sent += 1;
            if self.sent >= TEST_PACKETS {
                self.state = EcnState::Unknown;
            }
        }
    }

    /// Notes that a marked packet was lost. If all marked packets are, the path drops them.
    pub(super) fn on_lost(&mut self) {
        if self.state != EcnState::Unknown {
            return;
        }
        self.lost = self.lost.saturating_add(1);
        if self.lost >= self.sent {
            self.state = EcnState::Failed;
        }
    }

    /// Checks the counts of an ACK frame that raises the largest acknowledged number and acknowledges `marked` packets with
    /// ECT(0) anew, of `sent` that were sent in the space. `seen` are the counts before. Returns `true` if more packets had CE.
    pub(super) fn on_ack(
        &mut self,
        marked: u64,
        counts: Option<Counts>,
        sent: u64,
        seen: &mut Counts,
    ) -> bool {
        if self.state == EcnState::Failed {
            return false;
        }
        let Some(counts) = counts else {
            if marked > 0 {
                self.state = EcnState::Failed;
            }
            return false;
        };
        let before = std::mem::replace(seen, counts);
        match increase(before, counts) {
            // Nothing was sent with ECT(1). A mark may be lost on the way only together with its packet.
            Some([ect0, 0, ce]) if ect0.saturating_add(ce) >= marked && is_sent(counts, sent) => {
                if marked > 0 {
                    self.state = EcnState::Capable;
                }
                ce > 0
            }
            _ => {
                self.state = EcnState::Failed;
                false
            }
        }
    }
}

/// Returns how much the counts rose, unless one fell.
fn increase(before: Counts, after: Counts) -> Option<Counts> {
    let [a, b, c] = after;
    let [x, y, z] = before;
    Some([a.checked_sub(x)?, b.checked_sub(y)?, c.checked_sub(z)?])
}

/// Tells whether so many packets were sent with a mark.
fn is_sent([ect0, _, ce]: Counts, sent: u64) -> bool {
    ect0.saturating_add(ce) <= sent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets as long as they are marked, at most `packets`. Returns their number.
    fn send(ecn: &mut Ecn, packets: u64) -> u64 {
        let marked = (0..packets).take_while(|_| {
            let marks = ecn.marks();
            ecn.on_sent();
            marks
        });
        marked.count() as u64
    }

    #[test]
    fn a_path_is_tested_with_ten_packets() {
        let (mut ecn, mut seen) = (Ecn::new(true), [0; 3]);
        assert_eq!((send(&mut ecn, 100), ecn.state), (10, EcnState::Unknown));
        assert!(!ecn.on_ack(4, Some([4, 0, 0]), 10, &mut seen));
        assert_eq!((ecn.state, send(&mut ecn, 100)), (EcnState::Capable, 100));
        assert!(ecn.on_ack(4, Some([5, 0, 3]), 110, &mut seen));
        assert!(!ecn.on_ack(1, Some([6, 0, 3]), 110, &mut seen));
        // The counts hold for all packets of the space, acknowledged or not.
        assert!(!ecn.on_ack(1, Some([50, 0, 3]), 110, &mut seen));
        assert_eq!(ecn.state, EcnState::Capable);
        assert!(!Ecn::new(false).marks());
    }

    #[test]
    fn wrong_counts_end_it() {
        let cases = [
            ("no counts", 1, None),
            ("too few", 3, Some([12, 0, 0])),
            ("fewer than before", 0, Some([9, 0, 1])),
            ("fewer CE than before", 0, Some([12, 0, 0])),
            ("marks that were not sent", 1, Some([10, 1, 1])),
            ("more than sent", 1, Some([20, 0, 1])),
        ];
        for (case, marked, counts) in cases {
            let (mut ecn, mut seen) = (Ecn::new(true), [0; 3]);
            send(&mut ecn, 10);
            ecn.on_ack(10, Some([10, 0, 1]), 20, &mut seen);
            assert_eq!(ecn.state, EcnState::Capable);
            assert!(!ecn.on_ack(marked, counts, 20, &mut seen), "{case}");
            assert_eq!(ecn.state, EcnState::Failed, "{case}");
            assert!(!ecn.on_ack(1, Some([100, 0, 50]), 200, &mut seen), "{case}");
        }
    }

    #[test]
    fn a_path_that_drops_marks_is_found() {
        let mut ecn = Ecn::new(true);
        send(&mut ecn, 10);
        for _ in 0..9 {
            ecn.on_lost();
        }
        assert_eq!(ecn.state, EcnState::Unknown);
        ecn.on_lost();
        assert_eq!(ecn.state, EcnState::Failed);
    }
}
