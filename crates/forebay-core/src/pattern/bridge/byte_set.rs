//! Sets of bytes.

use super::*;

/// A set of bytes.
#[derive(Clone, Default)]
pub(super) struct ByteSet([u128; 2]);

impl ByteSet {
    pub(super) fn of(bytes: &[u8]) -> ByteSet {
        let mut s = ByteSet::default();
        bytes.iter().for_each(|b| s.add(*b));
        s
    }

    /// The bytes that have a Unicode property as characters of Latin-1; `None`: there is no such property.
    pub(super) fn property(name: &[u8]) -> Option<ByteSet> {
        let name = std::str::from_utf8(name).ok()?;
        let loose: String = name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
        // PCRE2 has a few of its own (pcre2pattern, "Special properties for PCRE2").
        let class = match loose.to_ascii_lowercase().as_str() {
            "any" => r"[\x00-\u{10FFFF}]".to_owned(),
            "l&" | "lc" => r"[\p{Lu}\p{Ll}\p{Lt}]".to_owned(),
            "xan" => r"[\p{L}\p{N}]".to_owned(),
            "xwd" => r"[\p{L}\p{N}\p{Mn}\p{Pc}]".to_owned(),
            "xps" | "xsp" => r"[\p{Z}\x09-\x0d\x{85}]".to_owned(),
            "xuc" => r"[$@`\x{A0}-\x{FF}]".to_owned(),
            simple if simple.bytes().all(|b| b.is_ascii_alphanumeric()) => format!(r"\p{{{simple}}}"),
            _ => return None,
        };
        let hir = regex_syntax::Parser::new().parse(&class).ok()?;
        let mut set = ByteSet::default();
        match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                for range in class.ranges() {
                    let (low, high) = (u32::from(range.start()), u32::from(range.end()).min(255));
                    (low..=high).filter_map(|b| u8::try_from(b).ok()).for_each(|b| set.add(b));
                }
            }
            HirKind::Class(Class::Bytes(class)) => {
                class.ranges().iter().for_each(|range| set.add_range(range.start(), range.end()));
            }
            // A property of one character.
            HirKind::Literal(l) => {
                let c = std::str::from_utf8(&l.0).ok()?.chars().next()?;
                u8::try_from(u32::from(c)).into_iter().for_each(|b| set.add(b));
            }
            _ => return None,
        }
        Some(set)
    }

    pub(super) fn where_(test: impl Fn(u8) -> bool) -> ByteSet {
        let mut s = ByteSet::default();
        (0..=u8::MAX).filter(|b| test(*b)).for_each(|b| s.add(b));
        s
    }

    pub(super) fn add(&mut self, b: u8) {
        self.0[usize::from(b >> 7)] |= 1 << (b & 127);
    }

    pub(super) fn add_range(&mut self, low: u8, high: u8) {
        (low..=high).for_each(|b| self.add(b));
    }

    pub(super) fn has(&self, b: u8) -> bool {
        self.0[usize::from(b >> 7)] >> (b & 127) & 1 == 1
    }

    pub(super) fn join(&mut self, other: &ByteSet, negated: bool) {
        (0..=u8::MAX).filter(|b| other.has(*b) != negated).for_each(|b| self.add(b));
    }

    /// Returns the set of `\d` or a similar escape, and whether its complement is meant.
    pub(super) fn of_escape(c: u8) -> Option<(ByteSet, bool)> {
        let set = match c.to_ascii_lowercase() {
            b'd' => ByteSet::where_(|b| b.is_ascii_digit()),
            b'w' => ByteSet::where_(|b| b.is_ascii_alphanumeric() || b == b'_'),
            b's' => ByteSet::of(b" \t\n\x0b\x0c\r"),
            b'h' => ByteSet::of(b" \t\xa0"),
            b'v' => ByteSet::of(b"\n\x0b\x0c\r\x85"),
            _ => return None,
        };
        Some((set, c.is_ascii_uppercase()))
    }

    pub(super) fn posix(name: &[u8]) -> Option<ByteSet> {
        Some(match name {
            b"alpha" => ByteSet::where_(|b| b.is_ascii_alphabetic()),
            b"lower" => ByteSet::where_(|b| b.is_ascii_lowercase()),
            b"upper" => ByteSet::where_(|b| b.is_ascii_uppercase()),
            b"alnum" => ByteSet::where_(|b| b.is_ascii_alphanumeric()),
            b"ascii" => ByteSet::where_(|b| b.is_ascii()),
            b"blank" => ByteSet::of(b" \t"),
            b"cntrl" => ByteSet::where_(|b| b.is_ascii_control()),
            b"digit" => ByteSet::where_(|b| b.is_ascii_digit()),
            b"graph" => ByteSet::where_(|b| b.is_ascii_graphic()),
            b"print" => ByteSet::where_(|b| b.is_ascii_graphic() || b == b' '),
            b"punct" => ByteSet::where_(|b| b.is_ascii_punctuation()),
            b"space" => ByteSet::of(b" \t\n\x0b\x0c\r"),
            b"word" => ByteSet::where_(|b| b.is_ascii_alphanumeric() || b == b'_'),
            b"xdigit" => ByteSet::where_(|b| b.is_ascii_hexdigit()),
            _ => return None,
        })
    }

    /// As a class; an empty one matches nothing.
    pub(super) fn text(&self, negated: bool) -> String {
        let mut out = String::new();
        let mut at = 0u16;
        while at < 256 {
            let first = at;
            while at < 256 && self.has(at as u8) {
                at += 1;
            }
            if at > first {
                let last = at - 1;
                let _ = if first == last {
                    write!(out, "\\x{first:02X}")
                } else {
                    write!(out, "\\x{first:02X}-\\x{last:02X}")
                };
            }
            at += 1;
        }
        match (out.is_empty(), negated) {
            (true, true) => "[\\x00-\\xFF]".to_owned(),
            (true, false) => "[^\\x00-\\xFF]".to_owned(),
            (false, true) => format!("[^{out}]"),
            (false, false) => format!("[{out}]"),
        }
    }
}
