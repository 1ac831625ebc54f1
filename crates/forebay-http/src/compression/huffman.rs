//! The Huffman code of HPACK (RFC 7541, section 5.2 and appendix B). Hot path.
//!
//! The code is canonical: within a length, codes count up in the order of the symbols. So the lengths
//! determine it, and the tables are computed from them when the program is compiled.

/// Bits of the code of each byte; the last one is the end of the string, which may not be sent.
static LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

const MAX_BITS: usize = 30;

/// Codes and the order of the symbols by length and value.
struct Tables {
    codes: [u32; 257],
    sorted: [u16; 257],
    /// First code of each length, left-aligned in 32 bits, and the place of its symbol in `sorted`.
    first: [u32; MAX_BITS + 2],
    place: [u16; MAX_BITS + 2],
    /// By the next eight bits: symbol and length of codes up to eight bits; length 0 for longer ones.
    short: [(u8, u8); 256],
}

/// One or two symbols whose codes are complete in the next bits.
#[derive(Clone, Copy)]
struct Pair {
    symbols: [u8; 2],
    /// Number of symbols; 0: the first one's code is longer.
    count: u8,
    /// Bits of both together.
    bits: u8,
}

/// Bits by which [`PAIRS`] is read. Two letters or digits fit most often.
const PAIR_BITS: usize = 12;

static T: Tables = tables();
static PAIRS: [Pair; 1 << PAIR_BITS] = pairs();

const fn pairs() -> [Pair; 1 << PAIR_BITS] {
    let t = tables();
    let mut pairs = [Pair { symbols: [0; 2], count: 0, bits: 0 }; 1 << PAIR_BITS];
    let mut n = 0;
    while n < pairs.len() {
        let (symbol, bits) = t.short[n >> (PAIR_BITS - 8)];
        if bits > 0 {
            pairs[n] = Pair { symbols: [symbol, 0], count: 1, bits };
            // The bits behind it, from the top of a byte, with zeros below.
            let rest = (n << bits) & ((1 << PAIR_BITS) - 1);
            let (second, more) = t.short[rest >> (PAIR_BITS - 8)];
            if more > 0 && (bits + more) as usize <= PAIR_BITS {
                pairs[n] = Pair { symbols: [symbol, second], count: 2, bits: bits + more };
            }
        }
        n += 1;
    }
    pairs
}

const fn tables() -> Tables {
    let mut t = Tables {
        codes: [0; 257],
        sorted: [0; 257],
        first: [0; MAX_BITS + 2],
        place: [0; MAX_BITS + 2],
        short: [(0, 0); 256],
    };
    let mut code: u64 = 0;
    let mut n = 0;
    let mut bits = 1;
    while bits <= MAX_BITS {
        t.first[bits] = (code << (32 - bits)) as u32;
        t.place[bits] = n as u16;
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == bits {
                t.codes[symbol] = code as u32;
                t.sorted[n] = symbol as u16;
                n += 1;
                if bits <= 8 {
                    let mut i = 0;
                    while i < 1 << (8 - bits) {
                        t.short[((code as usize) << (8 - bits)) + i] = (symbol as u8, bits as u8);
                        i += 1;
                    }
                }
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        bits += 1;
    }
    t.first[MAX_BITS + 1] = u32::MAX;
    t.place[MAX_BITS + 1] = 257;
    t
}

/// The text is not Huffman code: it holds the end-of-string symbol, or its padding is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Appends the decoded text. A text of n bytes decodes to at most 8n/5 bytes.
///
/// # Errors
/// The end-of-string symbol, padding of more than seven bits or of other bits than ones.
pub fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    // Gathered here, so that the vector needs a check of its room only once for 64 bytes.
    let mut text = [0u8; 64];
    let mut len = 0;
    // The next `have` bits, the first one at the top. Bits below them may be set, too: they are read again.
    let mut acc: u64 = 0;
    let mut have: u32 = 0;
    loop {
        if have < 32 && !input.is_empty() {
            // Only whole bytes are counted; bits of the next one may get into `acc` too early, with the value that
            // they have later.
            let bytes = input.len().min(((63 - have) / 8) as usize);
            acc |= leading(input) >> have;
            have += 8 * bytes as u32;
            input = input.get(bytes..).unwrap_or_default();
        }
        let pair = PAIRS[(acc >> (64 - PAIR_BITS)) as usize];
        // The last place of `text` is for a single one, behind which it is emptied.
        if pair.count > 0 && u32::from(pair.bits) <= have && len + 2 < text.len() {
            text[len] = pair.symbols[0];
            text[len + 1] = pair.symbols[1];
            len += usize::from(pair.count);
            acc <<= pair.bits;
            have -= u32::from(pair.bits);
            continue;
        }
        let (mut symbol, bits) = T.short[(acc >> 56) as usize];
        let mut bits = u32::from(bits);
        if bits == 0 {
            let nth;
            (nth, bits) = long((acc >> 32) as u32);
            if bits > have {
                break;
            }
            symbol = match T.sorted.get(nth) {
                Some(&s) if s < 256 => s as u8,
                _ => return Err(Invalid),
            };
        }
        if bits > have {
            break;
        }
        acc <<= bits;
        have -= bits;
        text[len % 64] = symbol;
        len += 1;
        if len == text.len() {
            out.extend_from_slice(&text);
            len = 0;
        }
    }
    out.extend_from_slice(text.get(..len).unwrap_or_default());
    // What is left is the beginning of the end-of-string symbol, all ones.
    let ones = if have == 0 { 0 } else { u64::MAX << (64 - have) };
    if have > 7 || acc != ones { Err(Invalid) } else { Ok(()) }
}

/// Returns the first eight bytes from the top, zeros behind a shorter text.
#[inline]
fn leading(text: &[u8]) -> u64 {
    if let Some(word) = text.first_chunk() {
        return u64::from_be_bytes(*word);
    }
    let below = |n: usize| 64 - 8 * n as u32;
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        // Two halves that overlap.
        let last = u64::from(u32::from_be_bytes(*last)) << below(text.len());
        return u64::from(u32::from_be_bytes(*first)) << 32 | last;
    }
    text.iter().zip(1..).fold(0, |word, (b, n)| word | u64::from(*b) << below(n))
}

/// Returns the place in `sorted` and length of a code of more than eight bits that `top` begins with.
#[cold]
fn long(top: u32) -> (usize, u32) {
    let mut bits = 9;
    while bits < MAX_BITS && top >= T.first[bits + 1] {
        bits += 1;
    }
    (((top - T.first[bits]) >> (32 - bits)) as usize + usize::from(T.place[bits]), bits as u32)
}

/// Returns the number of bytes that the text takes when encoded.
#[inline]
pub(crate) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|b| usize::from(LENGTHS[usize::from(*b)])).sum();
    bits.div_ceil(8)
}

/// Appends the encoded text.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let mut acc: u64 = 0;
    let mut have = 0;
    for &b in text {
        let bits = u32::from(LENGTHS[usize::from(b)]);
        acc = acc << bits | u64::from(T.codes[usize::from(b)]);
        have += bits;
        if have >= 32 {
            have -= 32;
            out.extend_from_slice(&((acc >> have) as u32).to_be_bytes());
        }
    }
    if have > 0 {
        // Padded with ones.
        let word = (acc << (32 - have)) as u32 | ((1u64 << (32 - have)) - 1) as u32;
        out.extend_from_slice(&word.to_be_bytes()[..have.div_ceil(8) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, appendix C.
    #[test]
    fn examples_of_the_rfc() {
        for (text, code) in [
            (
                &b"www.example.com"[..],
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
            ),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"302", &[0x64, 0x02]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ] {
            let mut out = Vec::new();
            encode(text, &mut out);
            assert_eq!(out, code);
            assert_eq!(encoded_len(text), code.len());
            let mut back = Vec::new();
            assert_eq!(decode(code, &mut back), Ok(()));
            assert_eq!(back, text);
        }
    }

    #[test]
    fn every_byte_and_pair_survives() {
        let mut out = Vec::new();
        let mut back = Vec::new();
        for a in 0..=255u8 {
            for b in [0, b'a', b'0', b'{', 10, 200, a] {
                out.clear();
                back.clear();
                let text = [a, b, b'x', a];
                encode(&text, &mut out);
                assert_eq!(decode(&out, &mut back), Ok(()));
                assert_eq!(back, text);
            }
        }
    }

    /// Wherever a code begins within a byte and however many bytes are left behind it.
    #[test]
    fn texts_of_all_lengths_survive() {
        let letters: Vec<u8> =
            (0..200u32).map(|i| b"ae0/Z~\\{\x02\xff"[(i * i + i / 7) as usize % 10]).collect();
        for start in 0..10 {
            for end in start..letters.len() {
                let text = letters.get(start..end).unwrap();
                let (mut code, mut back) = (Vec::new(), b"before".to_vec());
                encode(text, &mut code);
                assert_eq!(decode(&code, &mut back), Ok(()));
                assert_eq!(back, [b"before", text].concat());
            }
        }
    }

    #[test]
    fn bad_endings_are_refused() {
        let mut out = Vec::new();
        // Eight bits of padding, zeros as padding, the end-of-string symbol.
        for bad in [&[0xff][..], &[0x00], &[0x1f, 0xff], &[0xff, 0xff, 0xff, 0xff], &[0x18]] {
            out.clear();
            assert_eq!(decode(bad, &mut out), Err(Invalid), "{bad:x?}");
        }
        assert_eq!(decode(&[], &mut out), Ok(()));
        // 'a' is 00011 and three ones.
        assert_eq!(decode(&[0x1f], &mut out), Ok(()));
    }
}
