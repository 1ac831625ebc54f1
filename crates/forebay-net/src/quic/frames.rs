//! Reading of frames (RFC 9000, section 19) in payloads that quinn-proto is about to handle or to seal.

/// Type of CONNECTION_CLOSE with an error of the application.
const APPLICATION_CLOSE: u8 = 0x1d;
/// Type of HANDSHAKE_DONE.
const HANDSHAKE_DONE: u8 = 0x1e;

/// Reads a variable-length integer (RFC 9000, section 16). Returns its value and what follows.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    if first < 0x40 {
        return Some((u64::from(first), bytes.get(1..)?));
    }
    let length = 1usize << (first >> 6);
    let (head, tail) = bytes.split_at_checked(length)?;
    let value = head.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    Some((value & (u64::MAX >> (66 - 8 * length)), tail))
}

/// Appends a variable-length integer, which is below 2^62.
pub(super) fn push_varint(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let (length, mark) = match value {
        0..0x40 => (1, 0x00),
        0x40..0x4000 => (2, 0x40),
        0x4000..0x4000_0000 => (4, 0x80),
        _ => (8, 0xc0),
    };
    let at = out.len();
    out.extend_from_slice(bytes.get(8 - length..).unwrap_or_default());
    if let Some(first) = out.get_mut(at) {
        *first |= mark;
    }
}

/// Frame, with the fields that somebody looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// PADDING, and all that follows it directly. `is_last`: up to the end of the packet.
    Padding { is_last: bool },
    /// STREAM. `end`: offset behind its last byte.
    Stream { id: u64, end: u64, fin: bool },
    /// RESET_STREAM.
    ResetStream { id: u64 },
    /// STOP_SENDING.
    StopSending { id: u64 },
    /// STREAM_DATA_BLOCKED.
    StreamDataBlocked { id: u64 },
    /// NEW_CONNECTION_ID.
    NewConnectionId { sequence: u64, retire_prior_to: u64 },
    /// RETIRE_CONNECTION_ID.
    RetireConnectionId { sequence: u64 },
    /// PATH_CHALLENGE.
    PathChallenge { data: u64 },
    /// PATH_RESPONSE.
    PathResponse { data: u64 },
    /// CONNECTION_CLOSE.
    Close { of_application: bool },
    /// Any other.
    Other,
}

/// Frames of a payload that have not been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames<'p>(&'p [u8]);

impl<'p> Frames<'p> {
    pub(super) fn of(payload: &'p [u8]) -> Frames<'p> {
        Frames(payload)
    }

    /// Returns the number of bytes that have not been read.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    fn varint(&mut self) -> Option<u64> {
        let (value, rest) = varint(self.0)?;
        self.0 = rest;
        Some(value)
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

    fn stream(&mut self, kind: u64) -> Option<Frame> {
        let id = self.varint()?;
        let offset = if kind & 0x04 == 0 { 0 } else { self.varint()? };
        let length = if kind & 0x02 == 0 { self.0.len() as u64 } else { self.varint()? };
        self.bytes(length)?;
        Some(Frame::Stream { id, end: offset.saturating_add(length), fin: kind & 0x01 != 0 })
    }

    fn padding(&mut self) -> Frame {
        if is_zero(self.0) {
            self.0 = &[];
            return Frame::Padding { is_last: true };
        }
        let padding = self.0.iter().take_while(|byte| **byte == 0).count();
        self.0 = self.0.get(padding..).unwrap_or_default();
        Frame::Padding { is_last: false }
    }

    fn skipped(skip: Option<()>) -> Option<Frame> {
        skip.map(|()| Frame::Other)
    }

    /// Reads a frame. `None`: there is none, or it is unknown or broken.
    pub(super) fn next(&mut self) -> Option<Frame> {
        if self.0.first() == Some(&0) {
            return Some(self.padding());
        }
        match self.varint()? {
            kind @ 0x08..=0x0f => self.stream(kind),
            kind @ 0x02..=0x03 => {
                self.varints(2)?;
                let ranges = self.varint()?;
                let skip = self.varints(ranges.checked_mul(2)?.checked_add(1)?);
                skip?;
                Frames::skipped(self.varints(if kind == 0x03 { 3 } else { 0 }))
            }
            0x01 | 0x1e => Some(Frame::Other),
            0x04 => {
                let id = self.varint()?;
                self.varints(2).map(|()| Frame::ResetStream { id })
            }
            0x05 => {
                let id = self.varint()?;
                self.varint().map(|_| Frame::StopSending { id })
            }
            0x06 => {
                self.varint()?;
                Frames::skipped(self.counted())
            }
            0x07 => Frames::skipped(self.counted()),
            0x11 => Frames::skipped(self.varints(2)),
            0x10 | 0x12..=0x14 | 0x16 | 0x17 => Frames::skipped(self.varints(1)),
            0x15 => {
                let id = self.varint()?;
                self.varint().map(|_| Frame::StreamDataBlocked { id })
            }
            0x18 => {
                let (sequence, retire_prior_to) = (self.varint()?, self.varint()?);
                let length = *self.0.first()?;
                self.bytes(1 + u64::from(length) + 16)?;
                Some(Frame::NewConnectionId { sequence, retire_prior_to })
            }
            0x19 => self.varint().map(|sequence| Frame::RetireConnectionId { sequence }),
            kind @ 0x1a..=0x1b => {
                let data = u64::from_be_bytes(*self.0.first_chunk()?);
                self.bytes(8)?;
                Some(if kind == 0x1a { Frame::PathChallenge { data } } else { Frame::PathResponse { data } })
            }
            0x1c => {
                self.varints(2)?;
                self.counted().map(|()| Frame::Close { of_application: false })
            }
            0x1d => {
                self.varint()?;
                self.counted().map(|()| Frame::Close { of_application: true })
            }
            _ => None,
        }
    }
}

/// Returns `true` if all bytes are zero. It compares 16 at a time.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Prepares the payload of an Initial or Handshake packet for quinn-proto, which handles each byte of padding as a frame, and takes
/// CONNECTION_CLOSE of an application, which such packets may not have (RFC 9000, section 12.5). Returns the length without the padding at
/// its end, at least one byte of which stays.
pub(super) fn prepare_early(payload: &mut [u8]) -> usize {
    let mut frames = Frames::of(payload);
    let mut forbidden = None;
    let mut length = payload.len();
    loop {
        let left = frames.left();
        match frames.next() {
            Some(Frame::Padding { is_last: true }) => {
                length = payload.len() - left + 1;
                break;
            }
            Some(Frame::Close { of_application: true }) => {
                forbidden = Some(payload.len() - left);
                break;
            }
            Some(_) => {}
            None => break,
        }
    }
    if let Some(first) = forbidden.and_then(|at| payload.get_mut(at)) {
        debug_assert_eq!(*first, APPLICATION_CLOSE);
        // Another frame that is forbidden there, which quinn-proto answers with PROTOCOL_VIOLATION.
        *first = HANDSHAKE_DONE;
    }
    length
}

/// Returns the length of a payload without the padding at its end, at least one byte of which stays.
pub(super) fn without_padding(payload: &[u8]) -> usize {
    if payload.last() != Some(&0) {
        return payload.len();
    }
    let mut frames = Frames::of(payload);
    loop {
        let left = frames.left();
        match frames.next() {
            Some(Frame::Padding { is_last: true }) => return payload.len() - left + 1,
            Some(_) => {}
            None => return payload.len(),
        }
    }
}

/// Returns the place of the error code, one byte long, in the CONNECTION_CLOSE frame of QUIC that a payload has.
pub(super) fn code_of_close(payload: &[u8]) -> Option<usize> {
    let mut frames = Frames::of(payload);
    loop {
        let at = payload.len() - frames.left();
        if frames.next()? == (Frame::Close { of_application: false }) {
            return Some(at + 1).filter(|at| payload.get(*at).is_some_and(|code| *code < 0x40));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(payload: &[u8]) -> Vec<Frame> {
        let mut frames = Frames::of(payload);
        std::iter::from_fn(|| frames.next()).collect()
    }

    #[test]
    fn integers() {
        for value in [0, 63, 64, 16383, 16384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(varint(&bytes), Some((value, &[][..])));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
            bytes.push(7);
            assert_eq!(varint(&bytes), Some((value, &[7][..])));
        }
    }

    #[test]
    fn every_frame_and_padding_behind_it() {
        let rows: &[(&[u8], Frame)] = &[
            (&[0x01], Frame::Other),
            (&[0x02, 5, 0, 1, 2, 0, 0], Frame::Other),
            (&[0x03, 5, 0, 0, 2, 0, 0, 0], Frame::Other),
            (&[0x04, 9, 1, 0], Frame::ResetStream { id: 9 }),
            (&[0x05, 8, 0], Frame::StopSending { id: 8 }),
            (&[0x06, 0, 2, 0, 0], Frame::Other),
            (&[0x07, 2, 0, 0], Frame::Other),
            (&[0x0a, 0, 2, 0, 0], Frame::Stream { id: 0, end: 2, fin: false }),
            (&[0x0f, 4, 0x40, 7, 1, 0], Frame::Stream { id: 4, end: 8, fin: true }),
            (&[0x10, 0x80, 0, 0, 0], Frame::Other),
            (&[0x11, 0, 0], Frame::Other),
            (&[0x12, 0], Frame::Other),
            (&[0x15, 12, 0], Frame::StreamDataBlocked { id: 12 }),
            (
                &[0x18, 3, 1, 2, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                Frame::NewConnectionId { sequence: 3, retire_prior_to: 1 },
            ),
            (&[0x19, 2], Frame::RetireConnectionId { sequence: 2 }),
            (&[0x1a, 0, 0, 0, 0, 0, 0, 0, 9], Frame::PathChallenge { data: 9 }),
            (&[0x1b, 0, 0, 0, 0, 0, 0, 1, 0], Frame::PathResponse { data: 256 }),
            (&[0x1c, 0, 0, 0], Frame::Close { of_application: false }),
            (&[0x1e], Frame::Other),
        ];
        for (frame, wanted) in rows {
            assert_eq!(all(frame), [*wanted]);
            let mut padded = [*frame, &[0; 300]].concat();
            assert_eq!(all(&padded), [*wanted, Frame::Padding { is_last: true }]);
            assert_eq!(prepare_early(&mut padded), frame.len() + 1, "{frame:?}");
            let mut twice = [&[0, 0][..], *frame, *frame, &[0; 8]].concat();
            assert_eq!(prepare_early(&mut twice), 2 + 2 * frame.len() + 1, "{frame:?}");
            for cut in 0..frame.len() {
                assert_eq!(all(&frame[..cut]), []);
            }
        }
        assert_eq!(prepare_early(&mut [0; 1200]), 1);
        assert_eq!(prepare_early(&mut []), 0);
    }

    #[test]
    fn an_application_close_is_forbidden() {
        let mut payload = [&[0, 0x06, 0, 2, 0x1d, 0x1d, 0x01][..], &[0x1d, 0, 0]].concat();
        assert_eq!(prepare_early(&mut payload), payload.len());
        assert_eq!(payload, [0, 0x06, 0, 2, 0x1d, 0x1d, 0x01, 0x1e, 0, 0]);
        for kept in [&[0x1c, 0, 0, 0][..], &[0x06, 0, 9, 0x1d], &[0x21, 0x1d], &[]] {
            let mut payload = kept.to_vec();
            prepare_early(&mut payload);
            assert_eq!(payload, kept);
        }
    }

    #[test]
    fn zeros_that_are_no_padding_stay() {
        // STREAM to the end of the packet, an unknown type, and one whose length is wrong.
        for start in [&[0x08, 0][..], &[0x0c, 0, 0], &[0x21], &[0x0a, 0, 0x7f, 0xff]] {
            let mut payload = [start, &[0; 40]].concat();
            assert_eq!(prepare_early(&mut payload), payload.len(), "{start:?}");
        }
        // An ACK that claims more ranges than there can be.
        let mut ack = [&[0x02, 5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], &[0; 40]].concat();
        assert_eq!(prepare_early(&mut ack), ack.len());
    }

    #[test]
    fn the_code_of_a_close() {
        assert_eq!(code_of_close(&[0x02, 5, 0, 0, 0, 0x1c, 8, 6, 0]), Some(6));
        assert_eq!(code_of_close(&[0x1c, 0x41, 0, 6, 0]), None);
        assert_eq!(code_of_close(&[0x1d, 8, 0]), None);
        assert_eq!(code_of_close(&[0x06, 0, 2, 0x1c, 8]), None);
    }
}
