//! Packet numbers on the wire (RFC 9000, section 17.1 and appendix A).

/// Returns how many bytes of a packet number have to be sent so that the peer finds the rest. `largest_acked` is the largest
/// packet number that it acknowledged in this packet number space.
#[inline]
pub const fn len_for(number: u64, largest_acked: Option<u64>) -> usize {
    let unacked = match largest_acked {
        Some(acked) => number.saturating_sub(acked),
        None => number.saturating_add(1),
    };
    // Twice the distance has to fit into the bytes that are sent.
    match unacked {
        0..=0x7f => 1,
        0x80..=0x7fff => 2,
        0x8000..=0x7f_ffff => 3,
        _ => 4,
    }
}

/// Appends the low `len` bytes of a packet number, 1 to 4.
#[inline]
pub fn push(out: &mut Vec<u8>, number: u64, len: usize) {
    let bytes = (number as u32).to_be_bytes();
    out.extend_from_slice(bytes.get(4usize.saturating_sub(len)..).unwrap_or(&bytes));
}

/// Returns the whole packet number of which `len` bytes arrived. `expected` is one more than the largest number that was
/// received in this packet number space.
#[inline]
pub const fn expand(truncated: u32, len: usize, expected: u64) -> u64 {
    let window = 1u64 << (8 * len as u64);
    let half = window / 2;
    let candidate = expected & !(window - 1) | truncated as u64;
    if candidate + half <= expected && candidate + window < 1 << 62 {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000, appendix A.2.
    #[test]
    fn samples_of_lengths() {
        assert_eq!(len_for(0xac_5c02, Some(0xab_e8b3)), 2);
        assert_eq!(len_for(0xac_e8fe, Some(0xab_e8b3)), 3);
        let mut out = Vec::new();
        push(&mut out, 0xac_5c02, 2);
        push(&mut out, 0xac_e8fe, 3);
        assert_eq!(out, [0x5c, 0x02, 0xac, 0xe8, 0xfe]);
    }

    /// RFC 9000, appendix A.3.
    #[test]
    fn sample_of_an_expansion() {
        assert_eq!(expand(0x9b32, 2, 0xa82f_30ea + 1), 0xa82f_9b32);
    }

    #[test]
    fn the_peer_finds_the_number() {
        for distance in [1, 2, 100, 127, 128, 129, 30_000, 0x7fff, 0x8000, 0x7f_ffff, 0x80_0000, 0x7fff_ffff]
        {
            for acked in [None, Some(0), Some(255), Some(0x1234_5678), Some((1 << 62) - 0x8000_0001)] {
                let number = acked.map_or(distance - 1, |acked| acked + distance);
                let len = len_for(number, acked);
                let truncated = (number & ((1u64 << (8 * len)) - 1)) as u32;
                // The peer received at least what it acknowledged, at most the packet before, or a few later ones.
                for expected in [acked.map_or(0, |acked| acked + 1), number, number + 1, number + 100] {
                    assert_eq!(expand(truncated, len, expected), number, "{number:x} {len} {expected:x}");
                }
            }
        }
    }

    #[test]
    fn expansion_has_no_overflow() {
        for len in 1..=4 {
            for truncated in [0, 1, u32::MAX >> (8 * (4 - len))] {
                for expected in [0, 1, 255, (1 << 62) - 1, 1 << 62] {
                    assert!(expand(truncated, len, expected) <= (1 << 62) + u64::from(u32::MAX));
                }
            }
        }
    }
}
