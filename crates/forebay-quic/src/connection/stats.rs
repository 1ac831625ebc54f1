//! Counts of a connection.

/// Counts since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets that came and could be opened.
    pub received_packets: u64,
    /// Packets sent that count as lost.
    pub lost_packets: u64,
    /// Frames received, without PADDING.
    pub received_frames: u64,
    /// STREAM frames among them.
    pub received_stream_frames: u64,
    /// STREAM frames sent.
    pub sent_stream_frames: u64,
}

/// What a connection keeps, for bounds of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Frames of packets under way.
    pub items: usize,
    /// Packets under way.
    pub packets: usize,
    /// Events that nobody has taken.
    pub events: usize,
    /// Bytes of streams that the peer has not acknowledged.
    pub content: u64,
}
