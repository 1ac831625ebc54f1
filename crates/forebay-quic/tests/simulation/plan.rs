//! What applications do, as a function of the seed: both sides know what the other one sends.

use crate::random::{Random, mixed};
use forebay_quic::id::{Side, StreamId};

/// End of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Fin,
    /// Reset after so many bytes were written.
    Reset {
        at: u64,
        code: u64,
    },
}

/// One direction of a stream: what its sender and its reader do.
#[derive(Clone, Debug)]
pub struct Plan {
    pub len: u64,
    pub ending: Ending,
    pub priority: i32,
    /// Bytes of a call of the sender, and of the reader.
    pub write: usize,
    pub read: usize,
    /// Thousandths of all reads after which the reader pauses.
    pub pauses: u64,
    /// Bytes after which the reader wants no more, with an error code.
    pub stop: Option<(u64, u64)>,
    key: u64,
}

fn size(random: &mut Random, most: u64) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => 1 + random.below(40),
        2 => random.below(most),
        _ => random.below(most / 8),
    }
}

impl Plan {
    /// Returns the plan of the direction that `from` sends. `most`: bytes of a long stream.
    pub fn new(seed: u64, id: StreamId, from: Side, most: u64) -> Plan {
        let key = mixed(seed ^ mixed(id.0 * 2 + u64::from(from.is_server())));
        let mut random = Random::new(key);
        let len = size(&mut random, most);
        let ending = match random.below(8) {
            0 => Ending::Reset { at: random.below(len + 1), code: random.below(1 << 20) },
            _ => Ending::Fin,
        };
        let step = |random: &mut Random| match random.below(4) {
            0 => 1 + random.below(30),
            1 => 1 + random.below(1500),
            _ => 1 + random.below(100_000),
        };
        // Long streams in tiny steps cost time and show nothing more.
        let least = len / 500 + 1;
        let write = step(&mut random).max(least) as usize;
        let read = step(&mut random).max(least) as usize;
        Plan {
            len,
            ending,
            priority: random.below(3) as i32 - 1,
            write,
            read,
            // Some ten in all at most.
            pauses: if random.happens(150) { 10_000 / (len / read as u64 + 20) } else { 0 },
            stop: random.happens(100).then(|| (random.below(len + 1), random.below(1 << 20))),
            key,
        }
    }

    /// Returns the number of bytes that are written.
    pub fn target(&self) -> u64 {
        match self.ending {
            Ending::Fin => self.len,
            Ending::Reset { at, .. } => at,
        }
    }

    /// Returns content from an offset on.
    pub fn content(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 16);
        let mut word = offset / 8;
        while out.len() < len + (offset % 8) as usize {
            out.extend_from_slice(&mixed(self.key.wrapping_add(word)).to_ne_bytes());
            word += 1;
        }
        out.drain(..(offset % 8) as usize);
        out.truncate(len);
        out
    }
}

/// Returns the `n`th DATAGRAM of a side.
pub fn datagram(seed: u64, from: Side, n: u64) -> Vec<u8> {
    let key = mixed(seed ^ 0xda7a_u64 ^ u64::from(from.is_server()));
    let len = mixed(key.wrapping_add(n)) % 1000;
    let mut out = n.to_ne_bytes().to_vec();
    out.extend((0..len).map(|at| mixed(key ^ n.wrapping_mul(31) ^ (at / 8)) as u8));
    out
}
