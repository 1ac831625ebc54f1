//! Padding at the end of packets. quinn-proto handles each byte of it as a frame, which takes longer than the request beside it where a
//! client pads its packets to one size (ngtcp2 does, so that the kernel splits them).

/// Zeros at the end of a payload from which on a look at its frames pays.
const WORTH_A_LOOK: usize = 8;

/// Returns the length of a payload without the padding at its end (RFC 9000, section 19.1), at least one byte of which stays. Payloads
/// that cannot be parsed keep their length.
pub(super) fn without_padding(payload: &[u8]) -> usize {
    if payload.last_chunk::<WORTH_A_LOOK>() != Some(&[0; WORTH_A_LOOK]) {
        return payload.len();
    }
    let mut rest = Rest(payload);
    while let Some(first) = rest.0.first() {
        if *first == 0 {
            if is_zero(rest.0) {
                return payload.len() - rest.0.len() + 1;
            }
            let padding = rest.0.iter().take_while(|byte| **byte == 0).count();
            rest.0 = rest.0.get(padding..).unwrap_or_default();
        } else if rest.skip_frame().is_none() {
            break;
        }
    }
    payload.len()
}

/// CONNECTION_CLOSE of an application, which packets of the handshake may not have (RFC 9000, section 12.5).
const APPLICATION_CLOSE: u8 = 0x1d;
/// HANDSHAKE_DONE, which they may not have either.
const HANDSHAKE_DONE: u8 = 0x1e;

/// Replaces CONNECTION_CLOSE of an application by another forbidden frame, in the payload of an Initial or Handshake packet.
/// quinn-proto would take it, where the right answer is PROTOCOL_VIOLATION.
pub(super) fn forbid_application_close(payload: &mut [u8]) {
    let mut rest = Rest(payload);
    let at = loop {
        match rest.0.first() {
            None => return,
            Some(0) => rest.0 = rest.0.get(1..).unwrap_or_default(),
            Some(&APPLICATION_CLOSE) => break rest.0.len(),
            Some(_) if rest.skip_frame().is_none() => return,
            Some(_) => {}
        }
    };
    let at = payload.len() - at;
    if let Some(first) = payload.get_mut(at) {
        *first = HANDSHAKE_DONE;
    }
}

/// Returns `true` if all bytes are zero. It compares 16 at a time.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Frames that have not been looked at.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn varint(&mut self) -> Option<u64> {
        let length = 1usize << (self.0.first()? >> 6);
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        let value = head.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        Some(value & (u64::MAX >> (66 - 8 * length)))
    }

    fn varints(&mut self, count: u64) -> Option<()> {
        (0..count).try_for_each(|_| self.varint().map(|_| ()))
    }

    fn bytes(&mut self, count: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    /// Skips bytes with their length before them.
    fn counted(&mut self) -> Option<()> {
        let length = self.varint()?;
        self.bytes(length)
    }

    /// Skips a frame other than PADDING (RFC 9000, section 19). `None`: it is unknown, broken, or extends to the end of the packet.
    fn skip_frame(&mut self) -> Option<()> {
        let kind = self.varint()?;
        match kind {
            0x01 | 0x1e => Some(()),
            0x02 | 0x03 => {
                self.varints(2)?;
                let ranges = self.varint()?;
                self.varints(ranges.checked_mul(2)?.checked_add(1)?)?;
                self.varints(if kind == 0x03 { 3 } else { 0 })
            }
            0x04 => self.varints(3),
            0x05 | 0x11 | 0x15 => self.varints(2),
            0x06 => {
                self.varint()?;
                self.counted()
            }
            0x07 => self.counted(),
            0x08..=0x0f => {
                self.varints(if kind & 0x04 == 0 { 1 } else { 2 })?;
                if kind & 0x02 == 0 { None } else { self.counted() }
            }
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.varint().map(|_| ()),
            0x18 => {
                self.varints(2)?;
                let length = *self.0.first()?;
                self.bytes(1 + u64::from(length) + 16)
            }
            0x1a | 0x1b => self.bytes(8),
            0x1c => {
                self.varints(2)?;
                self.counted()
            }
            0x1d => {
                self.varint()?;
                self.counted()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_behind_every_frame() {
        let frames: &[&[u8]] = &[
            &[0x01],
            &[0x02, 5, 0, 1, 2, 0, 0],
            &[0x03, 5, 0, 0, 2, 0, 0, 0],
            &[0x04, 0, 1, 0],
            &[0x05, 0, 0],
            &[0x06, 0, 2, 0, 0],
            &[0x07, 2, 0, 0],
            &[0x0a, 0, 2, 0, 0],
            &[0x0f, 0, 0x40, 0, 1, 0],
            &[0x10, 0x80, 0, 0, 0],
            &[0x11, 0, 0],
            &[0x12, 0],
            &[0x15, 0, 0],
            &[0x18, 1, 0, 2, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x19, 0],
            &[0x1a, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x1c, 0, 0, 0],
            &[0x1d, 0, 1, 0],
            &[0x1e],
        ];
        for frame in frames {
            let padded = [*frame, &[0; 300]].concat();
            assert_eq!(without_padding(&padded), frame.len() + 1, "{frame:?}");
            let twice = [&[0, 0][..], *frame, *frame, &[0; 8]].concat();
            assert_eq!(without_padding(&twice), 2 + 2 * frame.len() + 1, "{frame:?}");
            for cut in 0..frame.len() {
                let _ = without_padding(&padded[..cut]);
            }
        }
        assert_eq!(without_padding(&[0; 1200]), 1);
        assert_eq!(without_padding(&[]), 0);
    }

    #[test]
    fn an_application_close_is_forbidden() {
        let mut payload = [&[0, 0x06, 0, 2, 0x1d, 0x1d, 0x01][..], &[0x1d, 0, 0]].concat();
        forbid_application_close(&mut payload);
        assert_eq!(payload, [0, 0x06, 0, 2, 0x1d, 0x1d, 0x01, 0x1e, 0, 0]);
        for kept in [&[0x1c, 0, 0, 0][..], &[0x06, 0, 9, 0x1d], &[0x21, 0x1d], &[]] {
            let mut payload = kept.to_vec();
            forbid_application_close(&mut payload);
            assert_eq!(payload, kept);
        }
    }

    #[test]
    fn zeros_that_are_no_padding_stay() {
        // STREAM to the end of the packet, an unknown type, and one whose length is wrong.
        for start in [&[0x08, 0][..], &[0x0c, 0, 0], &[0x21], &[0x0a, 0, 0x7f, 0xff]] {
            let payload = [start, &[0; 40]].concat();
            assert_eq!(without_padding(&payload), payload.len(), "{start:?}");
        }
        // Less than is worth a look.
        assert_eq!(without_padding(&[1, 0, 0, 0]), 4);
        // An ACK that claims more ranges than there can be.
        let ack = [&[0x02, 5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], &[0; 40]].concat();
        assert_eq!(without_padding(&ack), ack.len());
    }
}
