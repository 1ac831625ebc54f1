//! Content in any order against a model.

use super::*;
use crate::stream::assembler::{Assembler, GAPS, TooManyGaps};

fn drain(of: &mut Assembler) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = of.read(usize::MAX) {
        assert!(!bytes.is_empty());
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn in_order_without_a_copy() {
    let mut of = Assembler::new();
    let datagram = Bytes::from(content(1000));
    of.insert(0, datagram.slice(..600)).expect("no gap");
    of.insert(600, datagram.slice(600..)).expect("no gap");
    assert_eq!((of.offset(), of.end(), of.is_readable(), of.has_gaps()), (0, 1000, true, false));
    let first = of.read(100).expect("bytes");
    assert_eq!((first.as_ptr(), first.len()), (datagram.as_ptr(), 100));
    assert_eq!(drain(&mut of), content(1000)[100..]);
    assert_eq!((of.offset(), of.read(1)), (1000, None));
}

#[test]
fn the_first_bytes_count() {
    let mut of = Assembler::new();
    for (offset, bytes) in [(2, "CD"), (6, "G"), (3, "xx"), (1, "yyyyyyy"), (0, "A"), (0, "zzzzzzzzzz")] {
        of.insert(offset, Bytes::from(bytes)).expect("few gaps");
    }
    assert_eq!(drain(&mut of), b"AyCDxyGyzz");
}

/// Takes bytes in any order, in pieces of up to `most` bytes that may overlap, and compares with a model.
fn check_random_pieces(random: &mut Random, len: usize, most: u64) {
    let all = Bytes::from(content(len));
    let mut seen = vec![false; len];
    let (mut of, mut read) = (Assembler::new(), Vec::new());
    while read.len() < len {
        let start = match random.below(3) {
            0 => of.end() as usize,
            _ => random.below(len as u64) as usize,
        };
        let end = (start + 1 + random.below(most) as usize).min(len);
        if start < end {
            match of.insert(start as u64, all.slice(start..end)) {
                Ok(()) => seen[start..end].fill(true),
                Err(TooManyGaps) => {
                    let (start, end) = (of.end() as usize, (of.end() as usize + 500).min(len));
                    of.insert(of.end(), all.slice(start..end)).expect("no new gap");
                    seen[start..end].fill(true);
                }
            }
        }
        if random.below(8) == 0 {
            assert_eq!(of.end() as usize, seen.iter().position(|seen| !seen).unwrap_or(len));
            let gaps = seen.windows(2).filter(|pair| pair == &[false, true]).count();
            assert_eq!(of.gaps() as usize, gaps);
            assert!(of.pieces() <= 2 * (gaps + 1 + len / 512) + 2, "{} pieces", of.pieces());
        }
        if random.below(4) == 0
            && let Some(bytes) = of.read(1 + random.below(2000) as usize)
        {
            read.extend_from_slice(&bytes);
        }
    }
    assert!(read == content(len));
    assert_eq!(of.pieces(), 0);
}

#[test]
fn random_pieces() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for most in [3, 40, 700, 1500] {
        for _ in 0..20 {
            let len = 1 + random.below(5000) as usize;
            check_random_pieces(&mut random, len, most);
        }
    }
}

#[test]
fn too_many_gaps() {
    let mut of = Assembler::new();
    let byte = Bytes::from_static(b"1");
    for n in 1..=u64::from(GAPS) {
        assert_eq!(of.insert(2 * n, byte.clone()), Ok(()));
    }
    let next = 2 * u64::from(GAPS) + 2;
    assert_eq!(of.insert(next, byte.clone()), Err(TooManyGaps));
    // What closes gaps is welcome.
    assert_eq!(of.insert(next - 1, byte.clone()), Ok(()));
    assert_eq!(of.insert(1, Bytes::from(vec![2; 2000])), Ok(()));
    assert_eq!(of.insert(next, byte.clone()), Ok(()));
    assert_eq!(of.insert(0, byte), Ok(()));
    assert!(!of.has_gaps());
    assert_eq!(drain(&mut of).len() as u64, next + 1);
}

/// A few bytes of each datagram must not keep all of them.
#[test]
fn short_pieces_are_copied() {
    let datagram = Bytes::from(vec![7; 1200]);
    for order in [false, true] {
        let mut of = Assembler::new();
        for n in 0..500 {
            let at = if order { n } else { 499 - n };
            of.insert(2 * at, datagram.slice(..2)).expect("few gaps");
        }
        assert!(of.pieces() <= 3, "{}", of.pieces());
        assert_eq!(drain(&mut of).len(), 1000);
        drop(of);
    }
    // The first piece of each assembler above is gone, so nothing refers to the datagram.
    assert!(datagram.is_unique());
}
