//! Field lines as slices of a shared buffer, with known names as small integers (RFC 9110, section 5).
//! Hot path.

mod classes;

pub use classes::Classes;
use std::borrow::Cow;

/// A slice of the buffer that a head lives in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Slice {
    /// Returns the bytes of the slice in its buffer.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }
    /// Returns `true` if it has no bytes.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A field that cannot be written: its name or value has CR, LF or NUL, which would make other fields of it (RFC 9110,
/// section 5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsafe {
    /// Its name.
    pub name: Vec<u8>,
}

/// Refuses CR, LF and NUL in a text that is about to be written into a head. `name` is the name of its field.
///
/// # Errors
/// [`Unsafe`].
#[inline]
pub fn check(name: &[u8], text: &[u8]) -> Result<(), Unsafe> {
    if splits_a_head(text) { Err(Unsafe { name: name.to_vec() }) } else { Ok(()) }
}

/// Returns a text as the value of one field line. A line break with blanks behind it is an old fold of lines (RFC 9112, section
/// 5.2) and becomes one blank, so that no part of the text can become another field. `name` is the name of its field.
///
/// # Errors
/// [`Unsafe`] for any other CR or LF, and for NUL.
#[inline]
pub fn one_line<'t>(name: &[u8], text: &'t [u8]) -> Result<Cow<'t, [u8]>, Unsafe> {
    if !splits_a_head(text) {
        return Ok(Cow::Borrowed(text));
    }
    let line = unfold(text);
    check(name, &line)?;
    // A value neither begins nor ends with blanks (RFC 9110, section 5.5).
    Ok(Cow::Owned(line.trim_ascii().to_vec()))
}

/// Replaces each fold of lines in a text, which is a line break with its blanks before and behind it, by one blank. Other line
/// breaks stay.
pub fn unfold(text: &[u8]) -> Vec<u8> {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((b, after)) = rest.split_first() {
        let behind = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n"));
        match behind.filter(|r| r.first().is_some_and(is_blank)) {
            Some(behind) => {
                while out.last().is_some_and(is_blank) {
                    out.pop();
                }
                out.push(b' ');
                rest = behind.get(behind.iter().take_while(|b| is_blank(b)).count()..).unwrap_or_default();
            }
            None => {
                out.push(*b);
                rest = after;
            }
        }
    }
    out
}

/// Returns `true` if there is CR, LF or NUL in a text.
///
/// Values are short: a search that begins with finding out what the processor can do takes some 150 instructions for one,
/// this 30.
#[inline]
fn splits_a_head(text: &[u8]) -> bool {
    fn any<const N: usize>(bytes: &[u8; N]) -> bool {
        bytes.iter().fold(false, |found, b| found | (*b == b'\r') | (*b == b'\n') | (*b == 0))
    }
    // The last piece overlaps the one before it, so that no loop over single bytes is left.
    match (text.last_chunk::<16>(), text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(last), ..) => text.as_chunks::<16>().0.iter().any(any) || any(last),
        (None, Some(first), Some(last)) => any(first) || any(last),
        _ => text.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)),
    }
}

macro_rules! names {
    ($($id:ident = $text:literal,)*) => {
        /// Field names that the server itself looks at; everything else is `Other`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Name { $($id,)* #[default] Other }

        impl Name {
            /// Number of known names.
            pub const COUNT: usize = Name::Other as usize;
            /// Lower-case text of each known name, in the order of the enum.
            pub const TEXT: [&'static str; Name::COUNT] = [$($text,)*];
            /// Known names, in order.
            pub const ALL: [Name; Name::COUNT] = [$(Name::$id,)*];
        }
    };
}

names! {
    Host = "host", Connection = "connection", UserAgent = "user-agent", Accept = "accept",
    AcceptEncoding = "accept-encoding", AcceptLanguage = "accept-language", Cookie = "cookie",
    Referer = "referer", ContentLength = "content-length", ContentType = "content-type",
    TransferEncoding = "transfer-encoding", Expect = "expect", Te = "te", Trailer = "trailer",
    Upgrade = "upgrade", KeepAlive = "keep-alive", ProxyConnection = "proxy-connection",
    Http2Settings = "http2-settings", Authorization = "authorization", Range = "range",
    IfRange = "if-range", IfMatch = "if-match", IfNoneMatch = "if-none-match",
    IfModifiedSince = "if-modified-since", IfUnmodifiedSince = "if-unmodified-since",
    XForwardedFor = "x-forwarded-for", XRealIp = "x-real-ip", Via = "via", Priority = "priority",
    Depth = "depth", Destination = "destination", Overwrite = "overwrite", Date = "date",
    Server = "server", LastModified = "last-modified", Etag = "etag", Location = "location",
    ContentRange = "content-range", ContentEncoding = "content-encoding", AcceptRanges = "accept-ranges",
    CacheControl = "cache-control", Expires = "expires", Vary = "vary", SetCookie = "set-cookie",
    WwwAuthenticate = "www-authenticate", RetryAfter = "retry-after", Link = "link",
    ProxyAuthorization = "proxy-authorization", Origin = "origin", Pragma = "pragma", Refresh = "refresh",
    ContentDisposition = "content-disposition", XAccelRedirect = "x-accel-redirect",
    XAccelExpires = "x-accel-expires", XAccelLimitRate = "x-accel-limit-rate",
    XAccelBuffering = "x-accel-buffering", XAccelCharset = "x-accel-charset",
}

/// Returns the slot of a name in `SLOTS`, from its length and its first, middle and last bytes without case.
const fn slot(len: usize, first: u8, middle: u8, last: u8) -> usize {
    // The bit that differs between the cases of a letter is set: both cases have one slot.
    let (first, middle, last) = (first as usize | 0x20, middle as usize | 0x20, last as usize | 0x20);
    (len * SLOT_LEN + first * SLOT_FIRST + last * SLOT_LAST + middle) & 0xff
}

// Found by search so that no two names share a slot; `SLOTS` does not compile otherwise.
const SLOT_LEN: usize = 3;
const SLOT_FIRST: usize = 13;
const SLOT_LAST: usize = 19;

/// Returns `true` if two texts are equal apart from the case of letters; `lower` is in lower case. Compares eight bytes at a
/// time, since names are looked up for each line of each head.
#[inline]
pub(crate) fn same(lower: &[u8], text: &[u8]) -> bool {
    const CASE: u64 = 0x2020_2020_2020_2020;
    // A byte of `text` differs from its lower case in the bit of 0x20 at most; control characters, which that
    // bit would make others of, have neither this bit nor the next.
    let equal = |a: u64, b: u64| a == b | CASE && (b | b >> 1) & CASE == CASE;
    let word = |s: &[u8]| s.first_chunk::<8>().map_or(0, |c| u64::from_le_bytes(*c));
    if lower.len() != text.len() {
        return false;
    }
    if text.len() < 8 {
        return match (halves(lower), halves(text)) {
            (Some(a), Some(b)) => equal(a, b),
            _ => lower.eq_ignore_ascii_case(text),
        };
    }
    let (mut a, mut b) = (lower, text);
    while a.len() > 8 && b.len() > 8 {
        if !equal(word(a), word(b)) {
            return false;
        }
        // The last word overlaps the one before it, so no loop over single bytes is left.
        let step = (a.len() - 8).min(8);
        (a, b) = (&a[step..], &b[step..]);
    }
    equal(word(a), word(b))
}

/// Returns the bytes of a text of four to seven bytes, as two halves that may overlap.
#[inline]
fn halves(text: &[u8]) -> Option<u64> {
    let (first, last) = (text.first_chunk::<4>()?, text.last_chunk::<4>()?);
    Some(u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last)))
}

/// Known name per slot, `Other` in empty ones.
static SLOTS: [Name; 256] = {
    let mut slots = [Name::Other; 256];
    let mut i = 0;
    while i < Name::COUNT {
        let text = Name::TEXT[i].as_bytes();
        let s = slot(text.len(), text[0], text[text.len() / 2], text[text.len() - 1]);
        assert!(matches!(slots[s], Name::Other), "two names share a slot");
        slots[s] = Name::ALL[i];
        i += 1;
    }
    slots
};

/// A known name as words, for comparing without regard to case: a text that differs in a bit of `mask` is another
/// name. A letter's mask leaves out the bit of its case.
struct Words {
    len: usize,
    text: [u64; WORDS],
    mask: [u64; WORDS],
}

/// Words of the longest known name.
const WORDS: usize = 3;

/// Known names by number; the last entry, for `Other`, matches no text.
static KNOWN: [Words; Name::COUNT + 1] = {
    const NONE: Words = Words { len: usize::MAX, text: [0; WORDS], mask: [0; WORDS] };
    let mut known = [NONE; Name::COUNT + 1];
    let mut i = 0;
    while i < Name::COUNT {
        let name = Name::TEXT[i].as_bytes();
        assert!(name.len() <= WORDS * 8, "a name is longer than its words");
        known[i].len = name.len();
        let mut at = 0;
        while at < name.len() {
            let mask = if name[at].is_ascii_lowercase() { 0xdf } else { 0xff };
            known[i].text[at / 8] |= (name[at] as u64) << (at % 8 * 8);
            known[i].mask[at / 8] |= mask << (at % 8 * 8);
            at += 1;
        }
        i += 1;
    }
    known
};

impl Name {
    /// Returns the known name that the first `len` bytes of `line` spell, or `Other`. As [`Name::of`], but with less to do
    /// where more bytes follow: names are looked up for each line of each head.
    #[inline]
    pub(crate) fn leading(line: &[u8], len: usize) -> Name {
        let Some(bytes) = line.first_chunk::<{ WORDS * 8 }>().filter(|_| (1..=WORDS * 8).contains(&len))
        else {
            return Name::of(line.get(..len).unwrap_or_default());
        };
        let id = SLOTS[slot(len, bytes[0], bytes[len / 2], bytes[len - 1])];
        let known = &KNOWN[id as usize];
        let mut differs = 0;
        for ((word, text), mask) in bytes.as_chunks::<8>().0.iter().zip(&known.text).zip(&known.mask) {
            // Bytes behind the name have a mask of 0.
            differs |= (u64::from_le_bytes(*word) ^ text) & mask;
        }
        if known.len == len && differs == 0 { id } else { Name::Other }
    }

    /// Returns the known name that `text` spells, without regard to case, or `Other`.
    #[inline]
    pub fn of(text: &[u8]) -> Name {
        let (Some(&first), Some(&middle), Some(&last)) =
            (text.first(), text.get(text.len() / 2), text.last())
        else {
            return Name::Other;
        };
        let candidate = SLOTS[slot(text.len(), first, middle, last)];
        match Name::TEXT.get(candidate as usize) {
            Some(known) if same(known.as_bytes(), text) => candidate,
            _ => Name::Other,
        }
    }

    /// Returns the lower-case text, empty for `Other`.
    pub fn as_str(self) -> &'static str {
        Name::TEXT.get(self as usize).copied().unwrap_or_default()
    }
}

/// One field line: name and value as slices of the head's buffer.
#[derive(Clone, Copy, Debug)]
pub struct FieldLine {
    /// Known name, or `Other`.
    pub id: Name,
    /// The name as the peer wrote it.
    pub name: Slice,
    /// The value without surrounding white space.
    pub value: Slice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_become_one_blank_and_other_line_breaks_are_refused() {
        for (text, line) in [
            ("a;\n\tb", "a; b"),
            ("a;\r\n  b", "a; b"),
            ("a; \t\n \n\t\r\n b", "a; b"),
            ("a  b\n  c", "a  b c"),
            ("\n a\n ", "a"),
            (" \r\n ", ""),
        ] {
            assert_eq!(one_line(b"X", text.as_bytes()).unwrap(), line.as_bytes(), "{text:?}");
        }
        assert!(matches!(one_line(b"X", b" a\tb "), Ok(Cow::Borrowed(b" a\tb "))));
        for bad in ["a\n", "a\nb", "a\r b", "a\r\r\n b", "a\n\n b", "a\r\nb\n c", "a\n b\0", "\r", "a\n \nb"]
        {
            assert_eq!(one_line(b"X", bad.as_bytes()), Err(Unsafe { name: b"X".to_vec() }), "{bad:?}");
        }
    }

    /// The name of a line, which must not depend on what follows it.
    fn name_of_line(name: &[u8]) -> Name {
        let found = Name::leading(name, name.len());
        for rest in [&b": value of the line, long enough for every name"[..], &[0xff; 24], &[0; 24]] {
            let line = [name, rest].concat();
            assert_eq!(Name::leading(&line, name.len()), found, "{}", line.escape_ascii());
        }
        found
    }

    #[test]
    fn bytes_that_split_a_head_are_found_everywhere() {
        for n in 0..70 {
            let clean = vec![b'a'; n];
            assert_eq!(check(b"x", &clean), Ok(()), "{n}");
            for (at, bad) in (0..n).flat_map(|at| [b'\r', b'\n', 0].map(|bad| (at, bad))) {
                let mut text = clean.clone();
                text[at] = bad;
                assert_eq!(check(b"x", &text), Err(Unsafe { name: b"x".to_vec() }), "{n} {at} {bad}");
            }
        }
        assert_eq!(check(b"x", b"\t \x0b\x0c\x0e\x7f\xff, and more of it"), Ok(()));
    }

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for name in Name::ALL {
            assert_eq!(name_of_line(name.as_str().as_bytes()), name);
            assert_eq!(name_of_line(name.as_str().to_ascii_uppercase().as_bytes()), name);
            assert_eq!(Name::of(name.as_str().as_bytes()), name);
            assert_eq!(Name::of(name.as_str().to_ascii_uppercase().as_bytes()), name);
        }
    }

    #[test]
    fn one_other_byte_makes_another_name() {
        for name in Name::ALL {
            let text = name.as_str().as_bytes();
            for at in 0..text.len() {
                for b in 0..=255 {
                    let mut changed = text.to_vec();
                    changed[at] = b;
                    let is = same(text, &changed);
                    assert_eq!(is, text.eq_ignore_ascii_case(&changed), "{}", changed.escape_ascii());
                    assert_eq!(name_of_line(&changed), Name::of(&changed), "{}", changed.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn other_names_are_other() {
        for text in ["", "x", "hos", "hosts", "hxst", "content_length", "if-rangf", "\u{48}o\u{0}t"] {
            assert_eq!(Name::of(text.as_bytes()), Name::Other, "{text}");
            assert_eq!(name_of_line(text.as_bytes()), Name::Other, "{text}");
        }
    }
}
