//! Tests of eight bytes at a time. Hot path.

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGH: u64 = ONES << 7;
const LOW: u64 = !HIGH;

/// Returns the high bit of each byte that is zero; exact, unlike cheaper forms, which also mark bytes behind one.
#[inline]
const fn zeros(x: u64) -> u64 {
    !(((x & LOW) + LOW) | x | LOW)
}

/// Returns the high bit of each byte that equals `b`.
#[inline]
const fn equal(x: u64, b: u8) -> u64 {
    zeros(x ^ (ONES * b as u64))
}

/// Returns the number of bytes at the beginning of a request target, in steps of eight, that are part of the path and need no
/// normalization: no white space, control character, `%`, `#` or `?`, and no slash with a slash or a dot after it. `after_slash`:
/// the byte before the text is a slash.
#[inline]
pub(crate) fn plain_path(text: &[u8], after_slash: bool) -> usize {
    let mut before = if after_slash { 0x80 } else { 0 };
    let (words, _) = text.as_chunks::<8>();
    for (i, w) in words.iter().enumerate() {
        let x = u64::from_le_bytes(*w);
        let slash = equal(x, b'/');
        // The words are little endian: the shift moves a mark to the byte behind. `before` brings the mark of the
        // last word's end.
        let odd = (slash | equal(x, b'.')) & (slash << 8 | before);
        // Bytes up to the blank: adding what is missing from 0x21 to the high bit leaves that bit as it is.
        let low = !(((x & LOW) + ONES * (0x80 - 0x21)) | x) & HIGH;
        let noted = equal(x, b'%') | equal(x, b'#') | equal(x, b'?') | equal(x, 0x7f);
        if odd | low | noted != 0 {
            return i * 8;
        }
        before = slash >> 56;
    }
    words.len() * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts byte by byte.
    fn expected(text: &[u8], mut after_slash: bool) -> usize {
        for (i, b) in text.iter().enumerate() {
            let noted = *b <= b' ' || matches!(b, 0x7f | b'%' | b'#' | b'?');
            if noted || after_slash && matches!(b, b'/' | b'.') {
                return i / 8 * 8;
            }
            after_slash = *b == b'/';
        }
        text.len() / 8 * 8
    }

    #[test]
    fn runs_end_where_a_byte_has_a_meaning() {
        for len in [0, 1, 7, 8, 9, 16, 23, 24] {
            for at in 0..len {
                for b in 0..=255 {
                    for with in [b'x', b'/', b'.', 0x80, 0xff] {
                        let mut text = vec![b'a'; len];
                        text[at] = b;
                        if let Some(next) = text.get_mut(at + 1) {
                            *next = with;
                        }
                        for after_slash in [false, true] {
                            let wanted = expected(&text, after_slash);
                            assert_eq!(plain_path(&text, after_slash), wanted, "{text:?} {after_slash}");
                        }
                    }
                }
            }
        }
    }
}
