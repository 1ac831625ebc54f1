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

    /// Returns the bytes that have a Unicode property as characters of Latin-1, `None` if there is no such property.
    pub(super) fn property(name: &[u8]) -> Option<ByteSet> {
        let hir = regex_syntax::Parser::new().parse(&property_class(name)?).ok()?;
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
        let (_, test) = POSIX.iter().find(|(known, _)| known.as_bytes() == name)?;
        Some(ByteSet::where_(|b| test(&b)))
    }

    /// Returns the set as a class. That of an empty set matches nothing.
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

/// Returns the class of a Unicode property in the syntax of `regex_syntax`.
fn property_class(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let loose: String = name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
    let name = loose.to_ascii_lowercase();
    if let Some((_, class)) = PROPERTIES.iter().find(|(known, _)| *known == name) {
        return Some((*class).to_owned());
    }
    let is_simple = name.bytes().all(|b| b.is_ascii_alphanumeric());
    is_simple.then(|| format!(r"\p{{{name}}}"))
}

/// Properties that only PCRE2 has, or under other names (pcre2pattern, "Special properties for PCRE2").
const PROPERTIES: [(&str, &str); 8] = [
    ("any", r"[\x00-\u{10FFFF}]"),
    ("l&", r"[\p{Lu}\p{Ll}\p{Lt}]"),
    ("lc", r"[\p{Lu}\p{Ll}\p{Lt}]"),
    ("xan", r"[\p{L}\p{N}]"),
    ("xwd", r"[\p{L}\p{N}\p{Mn}\p{Pc}]"),
    ("xps", r"[\p{Z}\x09-\x0d\x{85}]"),
    ("xsp", r"[\p{Z}\x09-\x0d\x{85}]"),
    ("xuc", r"[$@`\x{A0}-\x{FF}]"),
];

type Test = fn(&u8) -> bool;

/// POSIX classes.
const POSIX: [(&str, Test); 14] = [
    ("alpha", u8::is_ascii_alphabetic),
    ("lower", u8::is_ascii_lowercase),
    ("upper", u8::is_ascii_uppercase),
    ("alnum", u8::is_ascii_alphanumeric),
    ("ascii", u8::is_ascii),
    ("blank", |b| matches!(b, b' ' | b'\t')),
    ("cntrl", u8::is_ascii_control),
    ("digit", u8::is_ascii_digit),
    ("graph", u8::is_ascii_graphic),
    ("print", |b| b.is_ascii_graphic() || *b == b' '),
    ("punct", u8::is_ascii_punctuation),
    ("space", |b| matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')),
    ("word", |b| b.is_ascii_alphanumeric() || *b == b'_'),
    ("xdigit", u8::is_ascii_hexdigit),
];
