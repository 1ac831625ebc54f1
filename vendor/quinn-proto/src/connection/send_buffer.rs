use std::{collections::VecDeque, ops::Range};

use bytes::{Buf, Bytes};

use crate::{VarInt, range_set::RangeSet};

/// Buffer of outgoing retransmittable stream data
#[derive(Default, Debug)]
pub(super) struct SendBuffer {
    /// Data queued by the application but not yet acknowledged. May or may not have been sent.
    unacked_segments: VecDeque<Bytes>,
    /// Total size of `unacked_segments`
    unacked_len: usize,
    /// Acknowledged bytes removed from the first segment's view but still held by its allocation
    front_trimmed: usize,
    /// The first offset that hasn't been written by the application, i.e. the offset past the end of `unacked`
    offset: u64,
    /// The first offset that hasn't been sent
    ///
    /// Always lies in (offset - unacked.len())..offset
    unsent: u64,
    /// Acknowledged ranges which couldn't be discarded yet as they don't include the earliest
    /// offset in `unacked`
    // TODO: Recover storage from these by compacting (#700)
    acks: RangeSet,
    /// Previously transmitted ranges deemed lost
    retransmits: RangeSet,
}

impl SendBuffer {
    /// Construct an empty buffer at the initial offset
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Reset to the initial state
    ///
    /// Keeps memory for a few segments.
    pub(super) fn reinit(&mut self) {
        self.unacked_segments.clear();
        if self.unacked_segments.capacity() > RETAINED_SEGMENTS {
            self.unacked_segments = VecDeque::new();
        }
        self.unacked_len = 0;
        self.front_trimmed = 0;
        self.offset = 0;
        self.unsent = 0;
        if !self.acks.is_empty() {
            self.acks = RangeSet::new();
        }
        if !self.retransmits.is_empty() {
            self.retransmits = RangeSet::new();
        }
    }

    /// Append application data to the end of the stream
    pub(super) fn write(&mut self, data: Bytes) {
        self.unacked_len += data.len();
        self.offset += data.len() as u64;
        self.unacked_segments.push_back(data);
    }

    /// Discard a range of acknowledged stream data
    pub(super) fn ack(&mut self, range: Range<u64>) {
        let base_offset = self.offset - self.unacked_len as u64;
        if range.start > base_offset {
            self.acks.insert(range);
            return;
        }

        // Acknowledgments in order, which are the most, leave `acks` alone
        let mut end = range.end;
        while let Some(next) = self.acks.peek_min().filter(|next| next.start <= end) {
            end = end.max(next.end);
            self.acks.pop_min();
        }
        if let Some(len) = end.checked_sub(base_offset) {
            self.discard_prefix(len as usize);
        }
    }

    /// Discard the first `len` bytes that are still tracked
    fn discard_prefix(&mut self, len: usize) {
        self.unacked_len -= len;
        let mut to_advance = len;
        while to_advance > 0 {
            let front = self
                .unacked_segments
                .front_mut()
                .expect("Expected buffered data");

            if front.len() <= to_advance {
                to_advance -= front.len();
                self.unacked_segments.pop_front();
                self.front_trimmed = 0;

                let capacity = self.unacked_segments.capacity();
                if capacity > RETAINED_SEGMENTS && self.unacked_segments.len() * 4 < capacity {
                    self.unacked_segments.shrink_to(RETAINED_SEGMENTS);
                }
            } else {
                front.advance(to_advance);
                self.front_trimmed += to_advance;
                to_advance = 0;
            }
        }
    }

    /// Compute the next range to transmit on this stream and update state to account for that
    /// transmission.
    ///
    /// `max_len` here includes the space which is available to transmit the
    /// offset and length of the data to send. The caller has to guarantee that
    /// there is at least enough space available to write maximum-sized metadata
    /// (8 byte offset + 8 byte length).
    ///
    /// The method returns a tuple:
    /// - The first return value indicates the range of data to send
    /// - The second return value indicates whether the length needs to be encoded
    ///   in the STREAM frames metadata (`true`), or whether it can be omitted
    ///   since the selected range will fill the whole packet.
    pub(super) fn poll_transmit(&mut self, mut max_len: usize) -> (Range<u64>, bool) {
        debug_assert!(max_len >= 8 + 8);
        let mut encode_length = false;

        if let Some(range) = self.retransmits.pop_min() {
            // Retransmit sent data

            // When the offset is known, we know how many bytes are required to encode it.
            // Offset 0 requires no space
            if range.start != 0 {
                max_len -= VarInt::size(VarInt::from_u64_unchecked(range.start));
            }
            if range.end - range.start < max_len as u64 {
                encode_length = true;
                max_len -= 8;
            }

            let end = range.end.min((max_len as u64).saturating_add(range.start));
            if end != range.end {
                self.retransmits.insert(end..range.end);
            }
            return (range.start..end, encode_length);
        }

        // Transmit new data

        // When the offset is known, we know how many bytes are required to encode it.
        // Offset 0 requires no space
        if self.unsent != 0 {
            max_len -= VarInt::size(VarInt::from_u64_unchecked(self.unsent));
        }
        if self.offset - self.unsent < max_len as u64 {
            encode_length = true;
            max_len -= 8;
        }

        let end = self
            .offset
            .min((max_len as u64).saturating_add(self.unsent));
        let result = self.unsent..end;
        self.unsent = end;
        (result, encode_length)
    }

    /// Returns data which is associated with a range
    ///
    /// This function can return a subset of the range, if the data is stored
    /// in noncontiguous fashion in the send buffer. In this case callers
    /// should call the function again with an incremented start offset to
    /// retrieve more data.
    pub(super) fn get(&self, offsets: Range<u64>) -> &[u8] {
        let base_offset = self.offset - self.unacked_len as u64;

        let mut segment_offset = base_offset;
        for segment in self.unacked_segments.iter() {
            if offsets.start >= segment_offset
                && offsets.start < segment_offset + segment.len() as u64
            {
                let start = (offsets.start - segment_offset) as usize;
                let end = (offsets.end - segment_offset) as usize;

                return &segment[start..end.min(segment.len())];
            }
            segment_offset += segment.len() as u64;
        }

        &[]
    }

    /// Release abandoned data while preserving the final offset for RESET_STREAM
    pub(super) fn discard(&mut self) {
        *self = Self {
            offset: self.offset,
            unsent: self.offset,
            ..Self::default()
        };
    }

    /// Queue a range of sent but unacknowledged data to be retransmitted
    pub(super) fn retransmit(&mut self, range: Range<u64>) {
        debug_assert!(range.end <= self.unsent, "unsent data can't be lost");
        self.retransmits.insert(range);
    }

    pub(super) fn retransmit_all_for_0rtt(&mut self) {
        debug_assert_eq!(self.offset, self.unacked_len as u64);
        self.unsent = 0;
    }

    /// First stream offset unwritten by the application, i.e. the offset that the next write will
    /// begin at
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether all sent data has been acknowledged
    pub(super) fn is_fully_acked(&self) -> bool {
        self.unacked_len == 0
    }

    /// Whether there's data to send
    ///
    /// There may be sent unacknowledged data even when this is false.
    pub(super) fn has_unsent_data(&self) -> bool {
        self.unsent != self.offset || !self.retransmits.is_empty()
    }

    /// Bytes still retained from application writes, including acknowledged data
    pub(super) fn buffered(&self) -> u64 {
        (self.unacked_len + self.front_trimmed) as u64
    }
}

/// Number of segments that a buffer keeps memory for
const RETAINED_SEGMENTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragment_with_length() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world!";
        buf.write(MSG.into());
        // 0 byte offset => 19 bytes left => 13 byte data isn't enough
        // with 8 bytes reserved for length 11 payload bytes will fit
        assert_eq!(buf.poll_transmit(19), (0..11, true));
        assert_eq!(
            buf.poll_transmit(MSG.len() + 16 - 11),
            (11..MSG.len() as u64, true)
        );
        assert_eq!(
            buf.poll_transmit(58),
            (MSG.len() as u64..MSG.len() as u64, true)
        );
    }

    #[test]
    fn fragment_without_length() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world with some extra data!";
        buf.write(MSG.into());
        // 0 byte offset => 19 bytes left => can be filled by 34 bytes payload
        assert_eq!(buf.poll_transmit(19), (0..19, false));
        assert_eq!(
            buf.poll_transmit(MSG.len() - 19 + 1),
            (19..MSG.len() as u64, false)
        );
        assert_eq!(
            buf.poll_transmit(58),
            (MSG.len() as u64..MSG.len() as u64, true)
        );
    }

    #[test]
    fn reserves_encoded_offset() {
        let mut buf = SendBuffer::new();

        // Pretend we have more than 1 GB of data in the buffer
        let chunk: Bytes = Bytes::from_static(&[0; 1024 * 1024]);
        for _ in 0..1025 {
            buf.write(chunk.clone());
        }

        const SIZE1: u64 = 64;
        const SIZE2: u64 = 16 * 1024;
        const SIZE3: u64 = 1024 * 1024 * 1024;

        // Offset 0 requires no space
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        buf.retransmit(0..16);
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        let mut transmitted = 16u64;

        // Offset 16 requires 1 byte
        assert_eq!(
            buf.poll_transmit((SIZE1 - transmitted + 1) as usize),
            (transmitted..SIZE1, false)
        );
        buf.retransmit(transmitted..SIZE1);
        assert_eq!(
            buf.poll_transmit((SIZE1 - transmitted + 1) as usize),
            (transmitted..SIZE1, false)
        );
        transmitted = SIZE1;

        // Offset 64 requires 2 bytes
        assert_eq!(
            buf.poll_transmit((SIZE2 - transmitted + 2) as usize),
            (transmitted..SIZE2, false)
        );
        buf.retransmit(transmitted..SIZE2);
        assert_eq!(
            buf.poll_transmit((SIZE2 - transmitted + 2) as usize),
            (transmitted..SIZE2, false)
        );
        transmitted = SIZE2;

        // Offset 16384 requires requires 4 bytes
        assert_eq!(
            buf.poll_transmit((SIZE3 - transmitted + 4) as usize),
            (transmitted..SIZE3, false)
        );
        buf.retransmit(transmitted..SIZE3);
        assert_eq!(
            buf.poll_transmit((SIZE3 - transmitted + 4) as usize),
            (transmitted..SIZE3, false)
        );
        transmitted = SIZE3;

        // Offset 1GB requires 8 bytes
        assert_eq!(
            buf.poll_transmit(chunk.len() + 8),
            (transmitted..transmitted + chunk.len() as u64, false)
        );
        buf.retransmit(transmitted..transmitted + chunk.len() as u64);
        assert_eq!(
            buf.poll_transmit(chunk.len() + 8),
            (transmitted..transmitted + chunk.len() as u64, false)
        );
    }

    #[test]
    fn multiple_segments() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world!";
        const MSG_LEN: u64 = MSG.len() as u64;

        const SEG1: &[u8] = b"He";
        buf.write(SEG1.into());
        const SEG2: &[u8] = b"llo,";
        buf.write(SEG2.into());
        const SEG3: &[u8] = b" w";
        buf.write(SEG3.into());
        const SEG4: &[u8] = b"o";
        buf.write(SEG4.into());
        const SEG5: &[u8] = b"rld!";
        buf.write(SEG5.into());

        assert_eq!(aggregate_unacked(&buf), MSG);

        assert_eq!(buf.poll_transmit(16), (0..8, true));
        assert_eq!(buf.get(0..5), SEG1);
        assert_eq!(buf.get(2..8), SEG2);
        assert_eq!(buf.get(6..8), SEG3);

        assert_eq!(buf.poll_transmit(16), (8..MSG_LEN, true));
        assert_eq!(buf.get(8..MSG_LEN), SEG4);
        assert_eq!(buf.get(9..MSG_LEN), SEG5);

        assert_eq!(buf.poll_transmit(42), (MSG_LEN..MSG_LEN, true));

        // Now drain the segments
        buf.ack(0..1);
        assert_eq!(aggregate_unacked(&buf), &MSG[1..]);
        buf.ack(0..3);
        assert_eq!(aggregate_unacked(&buf), &MSG[3..]);
        buf.ack(3..5);
        assert_eq!(aggregate_unacked(&buf), &MSG[5..]);
        buf.ack(7..9);
        assert_eq!(aggregate_unacked(&buf), &MSG[5..]);
        buf.ack(4..7);
        assert_eq!(aggregate_unacked(&buf), &MSG[9..]);
        buf.ack(0..MSG_LEN);
        assert_eq!(aggregate_unacked(&buf), &[] as &[u8]);
    }

    #[test]
    fn retransmit() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world with extra data!";
        buf.write(MSG.into());
        // Transmit two frames
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        assert_eq!(buf.poll_transmit(16), (16..23, true));
        // Lose the first, but not the second
        buf.retransmit(0..16);
        // Ensure we only retransmit the lost frame, then continue sending fresh data
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        assert_eq!(buf.poll_transmit(16), (23..MSG.len() as u64, true));
        // Lose the second frame
        buf.retransmit(16..23);
        assert_eq!(buf.poll_transmit(16), (16..23, true));
    }

    #[test]
    fn ack() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world!";
        buf.write(MSG.into());
        assert_eq!(buf.poll_transmit(16), (0..8, true));
        buf.ack(0..8);
        assert_eq!(aggregate_unacked(&buf), &MSG[8..]);
    }

    #[test]
    fn reordered_ack() {
        let mut buf = SendBuffer::new();
        const MSG: &[u8] = b"Hello, world with extra data!";
        buf.write(MSG.into());
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        assert_eq!(buf.poll_transmit(16), (16..23, true));
        buf.ack(16..23);
        assert_eq!(aggregate_unacked(&buf), MSG);
        buf.ack(0..16);
        assert_eq!(aggregate_unacked(&buf), &MSG[23..]);
        assert!(buf.acks.is_empty());
    }

    #[test]
    fn ack_in_order_keeps_no_ranges() {
        let mut buf = SendBuffer::new();
        buf.write(Bytes::from_static(&[1; 20]));
        buf.write(Bytes::from_static(&[2; 20]));
        assert_eq!(buf.poll_transmit(100), (0..40, true));
        for start in (0..40).step_by(10) {
            buf.ack(start..start + 10);
            assert!(buf.acks.is_empty());
            assert_eq!(buf.unacked_len as u64, 30 - start);
            // Twice is as good as once
            buf.ack(start..start + 10);
            assert_eq!(buf.unacked_len as u64, 30 - start);
        }
        assert!(buf.is_fully_acked());
        assert_eq!(buf.buffered(), 0);
        buf.ack(40..40);
        buf.ack(0..40);
        assert!(buf.is_fully_acked());
        assert_eq!(buf.offset(), 40);
    }

    #[test]
    fn ack_absorbs_what_overlaps() {
        let mut buf = SendBuffer::new();
        buf.write(Bytes::from_static(&[1; 50]));
        assert_eq!(buf.poll_transmit(100), (0..50, true));
        buf.ack(10..20);
        buf.ack(30..40);
        buf.ack(15..18);
        assert_eq!(buf.acks.len(), 2);
        assert_eq!(buf.unacked_len, 50);
        // Overlaps the first range, and touches nothing behind it
        buf.ack(0..15);
        assert_eq!(buf.unacked_len, 30);
        assert_eq!(buf.acks.len(), 1);
        // Contains the second range
        buf.ack(0..45);
        assert_eq!(buf.unacked_len, 5);
        assert!(buf.acks.is_empty());
        buf.ack(45..50);
        assert!(buf.is_fully_acked());
    }

    #[test]
    fn acks_in_any_order() {
        const LEN: u64 = 6;
        // All orders of six ranges, some of them acknowledged twice
        let mut orders = vec![vec![]];
        for i in 0..LEN {
            orders = orders
                .into_iter()
                .flat_map(|order: Vec<u64>| {
                    (0..=order.len()).map(move |at| {
                        let mut order = order.clone();
                        order.insert(at, i);
                        order
                    })
                })
                .collect();
        }
        assert_eq!(orders.len(), 720);
        for order in orders {
            let mut buf = SendBuffer::new();
            for segment in [5, 1, 11, 13] {
                buf.write(vec![0; segment].into());
            }
            assert_eq!(buf.poll_transmit(100), (0..30, true));
            let mut acked = [false; LEN as usize];
            for &i in &order {
                buf.ack(i * 5..i * 5 + 5);
                buf.ack(i * 5 + 1..i * 5 + 4);
                acked[i as usize] = true;
                let prefix = acked.iter().take_while(|&&acked| acked).count() as u64;
                assert_eq!(buf.unacked_len as u64, 30 - prefix * 5, "{order:?}");
                assert_eq!(aggregate_unacked(&buf).len(), buf.unacked_len);
            }
            assert!(buf.is_fully_acked() && buf.acks.is_empty());
        }
    }

    #[test]
    fn lost_data_behind_acknowledged_data() {
        let mut buf = SendBuffer::new();
        buf.write(Bytes::from_static(b"0123456789abcdefghij"));
        assert_eq!(buf.poll_transmit(16), (0..16, false));
        assert_eq!(buf.poll_transmit(16), (16..20, true));
        buf.ack(16..19);
        buf.retransmit(0..16);
        assert!(buf.has_unsent_data());
        let (range, _) = buf.poll_transmit(16);
        assert_eq!(range, 0..16);
        assert_eq!(buf.get(range), b"0123456789abcdef");
        buf.ack(0..16);
        assert_eq!(aggregate_unacked(&buf), b"j");
        assert!(!buf.has_unsent_data());
        buf.ack(19..20);
        assert!(buf.is_fully_acked());
    }

    #[test]
    fn memory_for_segments_is_bounded() {
        let mut buf = SendBuffer::new();
        for _ in 0..1000 {
            buf.write(Bytes::from_static(b"x"));
        }
        buf.poll_transmit(2000);
        buf.ack(0..1000);
        assert!(buf.unacked_segments.capacity() <= RETAINED_SEGMENTS);
    }

    fn aggregate_unacked(buf: &SendBuffer) -> Vec<u8> {
        let mut result = Vec::new();
        for segment in buf.unacked_segments.iter() {
            result.extend_from_slice(&segment[..]);
        }
        result
    }
}
