//! DER (X.690), as much of it as keys, certificates and OCSP need.

/// A run of elements, of which each call takes the first.
#[derive(Clone, Copy, Debug)]
pub struct Der<'a>(pub &'a [u8]);

/// `BOOLEAN`.
pub const BOOLEAN: u8 = 1;
/// `INTEGER`.
pub const INTEGER: u8 = 2;
/// `BIT STRING`.
pub const BITS: u8 = 3;
/// `OCTET STRING`.
pub const OCTETS: u8 = 4;
/// `OBJECT IDENTIFIER`.
pub const OID: u8 = 6;
/// `ENUMERATED`.
pub const ENUMERATED: u8 = 10;
/// `GeneralizedTime`.
pub const TIME: u8 = 0x18;
/// `SEQUENCE`.
pub const SEQUENCE: u8 = 0x30;

/// `SET`.
pub const SET: u8 = 0x31;

/// Returns the tag of `[n] EXPLICIT`, or of a constructed `[n] IMPLICIT`.
pub const fn context(n: u8) -> u8 {
    0xa0 | n
}

impl<'a> Der<'a> {
    /// Reads tag and contents of the next element; tags are one byte, lengths definite.
    #[allow(clippy::should_implement_trait, reason = "an element that is not sound is not the end")]
    pub fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            // Indefinite lengths are not part of DER, and neither certificates nor keys have long tags or
            // contents of gigabytes.
            if bytes.is_empty() || bytes.len() > 4 || tag & 0x1f == 0x1f {
                return None;
            }
            (bytes.iter().fold(0usize, |n, b| n << 8 | usize::from(*b)), rest)
        };
        let (contents, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// Contents of the next element, which has to have this tag.
    pub fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(t, _)| *t == tag).map(|(_, contents)| contents)
    }

    /// Returns the next element, which has to have this tag, with its header.
    pub fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        let all = self.0;
        self.expect(tag)?;
        all.get(..all.len() - self.0.len())
    }

    /// Contents of the next element if it has this tag; otherwise it stays.
    pub fn optional(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&tag) { self.expect(tag) } else { None }
    }

    /// Reads a small number that is not negative.
    pub fn number(&mut self) -> Option<u32> {
        let bytes = self.expect(INTEGER)?;
        (bytes.len() <= 4).then(|| bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }

    /// Reads a time as RFC 5280 (section 4.1.2.5.2) has it, `YYYYMMDDHHMMSSZ`; seconds since 1970.
    pub fn time(&mut self) -> Option<i64> {
        // RFC 5280 allows only UTC, without fractions of seconds, so there is one form to read.
        let text = self.expect(TIME)?.strip_suffix(b"Z")?;
        let [century, year, month, day, hour, minute, second] = pairs_of_digits(text)?;
        let year = i16::from(century) * 100 + i16::from(year);
        let date = jiff::civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
        Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
    }

    /// Returns `true` if there is no further element.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads 14 digits as numbers of two digits.
fn pairs_of_digits(text: &[u8]) -> Option<[i8; 7]> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    let pairs: [[u8; 2]; 7] = pairs.try_into().ok()?;
    Some(pairs.map(|[tens, ones]| ((tens - b'0') * 10 + (ones - b'0')) as i8))
}

/// Makes an element of the joined contents.
pub fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let len: usize = contents.iter().map(|c| c.len()).sum();
    let mut out = vec![tag];
    if len < 0x80 {
        out.push(len as u8);
    } else {
        // DER wants the shortest form of a length: one byte below 128, and no leading zeros above.
        let bytes = (len as u32).to_be_bytes();
        let skip = bytes.iter().take_while(|b| **b == 0).count();
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend(bytes.iter().skip(skip));
    }
    for c in contents {
        out.extend_from_slice(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        for n in [0, 1, 127, 128, 255, 256, 70_000] {
            let bytes = vec![7; n];
            let all = element(OCTETS, &[&bytes, b""]);
            let mut d = Der(&all);
            assert_eq!(d.whole(OCTETS), Some(all.as_slice()));
            assert!(d.is_empty());
            assert_eq!(Der(&all).expect(OCTETS), Some(bytes.as_slice()), "{n}");
            assert_eq!(Der(all.get(..all.len() - 1).unwrap()).next(), None);
        }
    }

    #[test]
    fn times() {
        let time = |t: &[u8]| Der(&element(TIME, &[t])).time();
        assert_eq!(time(b"19700101000000Z"), Some(0));
        assert_eq!(time(b"20240229120001Z"), Some(1_709_208_001));
        for bad in [b"20230229120001Z".as_slice(), b"20240229120001", b"2024022912000Z", b"20241329120001Z"] {
            assert_eq!(time(bad), None);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for bad in [
            &[0x30][..],
            &[0x30, 1],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x85, 0, 0, 0, 0, 0],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0],
        ] {
            assert_eq!(Der(bad).next(), None);
        }
    }
}
