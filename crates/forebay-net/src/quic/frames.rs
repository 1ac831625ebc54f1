//! Reading of frames (RFC 9000, section 19) in payloads that quinn-proto is about to seal.

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

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// PADDING, and all that follows it directly. `is_last`: up to the end of the packet.
    Padding { is_last: bool },
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

    fn stream(&mut self, kind: u64) -> Option<()> {
        self.varints(if kind & 0x04 == 0 { 1 } else { 2 })?;
        let length = if kind & 0x02 == 0 { self.0.len() as u64 } else { self.varint()? };
        self.bytes(length)
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

    /// Reads a frame. `None`: there is none, or it is unknown or broken.
    pub(super) fn next(&mut self) -> Option<Frame> {
        if self.0.first() == Some(&0) {
            return Some(self.padding());
        }
        match self.varint()? {
            kind @ 0x08..=0x0f => self.stream(kind)?,
            kind @ 0x02..=0x03 => {
                self.varints(2)?;
                let ranges = self.varint()?;
                self.varints(ranges.checked_mul(2)?.checked_add(1)?)?;
                self.varints(if kind == 0x03 { 3 } else { 0 })?;
            }
            0x01 | 0x1e => {}
            0x04 => self.varints(3)?,
            0x06 => {
                self.varint()?;
                self.counted()?;
            }
            0x07 => self.counted()?,
            0x05 | 0x11 | 0x15 => self.varints(2)?,
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.varints(1)?,
            0x18 => {
                self.varints(2)?;
                let length = *self.0.first()?;
                self.bytes(1 + u64::from(length) + 16)?;
            }
            0x1a..=0x1b => self.bytes(8)?,
            0x1c => {
                self.varints(2)?;
                self.counted()?;
            }
            0x1d => {
                self.varint()?;
                self.counted()?;
            }
            _ => return None,
        }
        Some(Frame::Other)
    }
}

/// Returns `true` if all bytes are zero. It compares 16 at a time.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(payload: &[u8]) -> Vec<Frame> {
        let mut frames = Frames::of(payload);
        std::iter::from_fn(|| frames.next()).collect()
    }

    #[test]
    fn integers() {
        for (bytes, value) in
            [(&[0x3f][..], 63), (&[0x40, 64], 64), (&[0x80, 0, 0x40, 0], 16384), (&[0xff; 8], (1 << 62) - 1)]
        {
            assert_eq!(varint(bytes), Some((value, &[][..])));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
            assert_eq!(varint(&[bytes, &[7]].concat()), Some((value, &[7][..])));
        }
    }

    #[test]
    fn every_frame_and_padding_behind_it() {
        let rows: &[&[u8]] = &[
            &[0x01],
            &[0x02, 5, 0, 1, 2, 0, 0],
            &[0x03, 5, 0, 0, 2, 0, 0, 0],
            &[0x04, 9, 1, 0],
            &[0x05, 8, 0],
            &[0x06, 0, 2, 0, 0],
            &[0x07, 2, 0, 0],
            &[0x0a, 0, 2, 0, 0],
            &[0x0f, 4, 0x40, 7, 1, 0],
            &[0x10, 0x80, 0, 0, 0],
            &[0x11, 0, 0],
            &[0x12, 0],
            &[0x15, 12, 0],
            &[0x18, 3, 1, 2, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x19, 2],
            &[0x1a, 0, 0, 0, 0, 0, 0, 0, 9],
            &[0x1b, 0, 0, 0, 0, 0, 0, 1, 0],
            &[0x1c, 0, 0, 0],
            &[0x1e],
        ];
        for frame in rows {
            assert_eq!(all(frame), [Frame::Other]);
            let padded = [*frame, &[0; 300]].concat();
            assert_eq!(all(&padded), [Frame::Other, Frame::Padding { is_last: true }]);
            assert_eq!(without_padding(&padded), frame.len() + 1, "{frame:?}");
            let twice = [&[0, 0][..], *frame, *frame, &[0; 8]].concat();
            assert_eq!(without_padding(&twice), 2 + 2 * frame.len() + 1, "{frame:?}");
            for cut in 0..frame.len() {
                assert_eq!(all(&frame[..cut]), []);
            }
        }
        assert_eq!(without_padding(&[0; 1200]), 1);
        assert_eq!(without_padding(&[]), 0);
    }

    #[test]
    fn zeros_that_are_no_padding_stay() {
        // STREAM to the end of the packet, an unknown type, and one whose length is wrong.
        for start in [&[0x08, 0][..], &[0x0c, 0, 0], &[0x21], &[0x0a, 0, 0x7f, 0xff]] {
            let payload = [start, &[0; 40]].concat();
            assert_eq!(without_padding(&payload), payload.len(), "{start:?}");
        }
        // An ACK that claims more ranges than there can be.
        let ack = [&[0x02, 5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], &[0; 40]].concat();
        assert_eq!(without_padding(&ack), ack.len());
    }
}
