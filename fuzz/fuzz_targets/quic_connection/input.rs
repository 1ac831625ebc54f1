//! The input as a row of choices.

/// Rest of the input. Behind its end all choices are 0.
pub struct Input<'i> {
    rest: &'i [u8],
}

impl<'i> Input<'i> {
    pub fn new(rest: &'i [u8]) -> Input<'i> {
        Input { rest }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Returns `true` once in `n` times.
    pub fn seldom(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// Returns at most `n` bytes.
    pub fn bytes(&mut self, n: usize) -> &'i [u8] {
        let (bytes, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut all = [0; N];
        let bytes = self.bytes(N);
        all[..bytes.len()].copy_from_slice(bytes);
        all
    }

    /// Returns an integer that a frame may have: mostly small, else near `known` or near the ends of a size.
    pub fn value(&mut self, known: u64) -> u64 {
        let near = |n: u64, by: u8| n.wrapping_add(u64::from(by)).wrapping_sub(8) & forebay_quic::varint::MAX;
        match self.byte() % 8 {
            0..3 => u64::from(self.byte()),
            3 => u64::from(u16::from_be_bytes(self.array())),
            4 => known,
            5 => near(known, self.byte() % 16),
            6 => near(1 << (self.byte() % 63), self.byte() % 16),
            _ => near(forebay_quic::varint::MAX, self.byte() % 9),
        }
    }
}
