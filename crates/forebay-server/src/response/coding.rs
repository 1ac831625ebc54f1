//! Content codings: the codings that a client accepts (`Accept-Encoding`; RFC 9110, section 12.5.3), and the coding of a response. Hot
//! path.

use bytes::Bytes;
use std::sync::Arc;

/// A content coding. The order is the order of preference where the client has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `zstd` (RFC 8878).
    Zstd,
    /// `br` (RFC 7932).
    Br,
    /// `gzip` (RFC 1952).
    Gzip,
}

impl Coding {
    /// All of them, in order of preference.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

    /// Returns the token in `Content-Encoding`.
    pub fn name(self) -> &'static [u8] {
        match self {
            Coding::Zstd => b"zstd",
            Coding::Br => b"br",
            Coding::Gzip => b"gzip",
        }
    }

    /// Returns the suffix of precompressed files.
    pub fn suffix(self) -> &'static [u8] {
        match self {
            Coding::Zstd => b".zst",
            Coding::Br => b".br",
            Coding::Gzip => b".gz",
        }
    }
}

/// Parameters of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormKey {
    /// Coding of the form.
    pub coding: Coding,
    /// Level of the coding.
    pub level: u8,
    /// Window as a power of two; zstd chooses its own.
    pub window: u8,
}

/// A compressed form.
#[derive(Debug)]
pub struct Form {
    /// Parameters of its compression.
    pub key: FormKey,
    /// Encoded content.
    pub bytes: Bytes,
}

/// Coding of a response.
#[derive(Debug, Default)]
pub struct Coded {
    /// The coding, if a filter has chosen one.
    pub coding: Option<Coding>,
    /// Lengths before and after compression, if the form was ready.
    pub lengths: Option<(u64, u64)>,
    /// The form that is the body.
    pub form: Option<Arc<Form>>,
}

/// Some of the codings, in the order of [`Coding::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(pub [bool; 3]);

impl Set {
    /// Makes a set of one coding.
    pub fn of(c: Coding) -> Set {
        let mut set = Set::default();
        set.0[c as usize] = true;
        set
    }

    /// Returns `true` if a coding is in the set.
    pub fn has(self, c: Coding) -> bool {
        self.0[c as usize]
    }

    /// Removes a coding.
    pub fn remove(&mut self, c: Coding) {
        self.0[c as usize] = false;
    }
}

/// Codings that a client accepts, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranked([Option<Coding>; 3]);

impl Ranked {
    /// Makes a list of one coding.
    pub fn of(c: Coding) -> Ranked {
        Ranked([Some(c), None, None])
    }

    /// Returns the codings, best first.
    pub fn iter(self) -> impl Iterator<Item = Coding> {
        self.0.into_iter().flatten()
    }

    /// Returns the best coding of a set.
    pub fn first_of(self, set: Set) -> Option<Coding> {
        self.iter().find(|c| set.has(*c))
    }
}

/// Parses a weight, in thousandths. A malformed one counts as 0, "not acceptable".
fn weight(text: &[u8]) -> u16 {
    match text {
        [b'1'] | [b'1', b'.'] => 1000,
        [b'1', b'.', zeros @ ..] if zeros.len() <= 3 && zeros.iter().all(|b| *b == b'0') => 1000,
        [b'0'] => 0,
        [b'0', b'.', digits @ ..] if digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) => {
            let mut n = 0;
            for i in 0..3 {
                n = n * 10 + u16::from(digits.get(i).map_or(0, |b| b - b'0'));
            }
            n
        }
        _ => 0,
    }
}

/// Splits an element of the list into name and weight.
fn element(text: &[u8]) -> (&[u8], u16) {
    let mut pieces = text.split(|b| *b == b';');
    let name = pieces.next().unwrap_or_default().trim_ascii();
    let q = pieces.find_map(|p| match p.trim_ascii() {
        [b'q' | b'Q', b'=', q @ ..] => Some(weight(q)),
        _ => None,
    });
    (name, q.unwrap_or(1000))
}

/// Names in `Accept-Encoding`, and places of their weights.
const NAMES: [(&[u8], usize); 6] = [
    (b"zstd", Coding::Zstd as usize),
    (b"br", Coding::Br as usize),
    (b"gzip", Coding::Gzip as usize),
    // Recipients take this name for gzip (RFC 9110, section 8.4.1.3).
    (b"x-gzip", Coding::Gzip as usize),
    (b"identity", 3),
    (b"*", 4),
];

/// Returns the codings of `on` that the client accepts, by weight; equal weights are in the order of [`Coding::ALL`].
/// `*` means gzip only, which a client that accepts "anything" most likely knows. Codings with less weight than
/// `identity` are left out. Of two elements with one name the first counts.
pub fn rank(accept: &[u8], on: Set) -> Ranked {
    // The weights of the codings in their order, then of `identity` and of `*`.
    let mut weights: [Option<u16>; 5] = [None; 5];
    for e in accept.split(|b| *b == b',') {
        let (name, q) = element(e);
        if let Some((_, place)) = NAMES.iter().find(|(n, _)| name.eq_ignore_ascii_case(n)) {
            weights[*place].get_or_insert(q);
        }
    }
    let [.., identity, any] = weights;
    // `*` gives a weight to gzip only if the client has not named gzip itself (RFC 9110, section 12.5.3).
    let gzip = &mut weights[Coding::Gzip as usize];
    *gzip = gzip.or(any);
    // A weight of 0 means "not acceptable", so the least weight that counts is 1.
    let least = identity.unwrap_or(0).max(1);
    let mut out = Ranked::default();
    for place in &mut out.0 {
        let best = Coding::ALL
            .into_iter()
            .filter(|c| on.has(*c))
            .filter_map(|c| Some((c, weights[c as usize].filter(|q| *q >= least)?)))
            // `max_by_key` takes the last of equal elements, so the order is reversed.
            .rev()
            .max_by_key(|(_, q)| *q);
        let Some((c, _)) = best else { break };
        weights[c as usize] = None;
        *place = Some(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(accept: &str, on: [bool; 3]) -> String {
        let names: Vec<_> = rank(accept.as_bytes(), Set(on))
            .iter()
            .map(|c| String::from_utf8_lossy(c.name()).into_owned())
            .collect();
        names.join(" ")
    }

    #[test]
    fn weights_decide_and_then_the_order() {
        let all = [true; 3];
        for (accept, expected) in [
            ("gzip, deflate, br, zstd", "zstd br gzip"),
            ("gzip;q=1.0, br;q=0.9, zstd;q=0.5", "gzip br zstd"),
            ("br;q=0.5 , gzip ; q=0.5", "br gzip"),
            ("GZIP", "gzip"),
            ("x-gzip", "gzip"),
            ("*", "gzip"),
            ("*;q=0", ""),
            ("br, *;q=0", "br"),
            ("gzip;q=0, *", ""),
            ("identity;q=0", ""),
            ("identity;q=0, gzip;q=0.001", "gzip"),
            ("gzip;q=0.5, identity", ""),
            ("gzip, identity", "gzip"),
            ("gzip;q=2, br;q=, zstd;q=1.001", ""),
            ("gzip;q=0.0005", ""),
            ("gzip;q=0, gzip", ""),
            ("", ""),
            (",,;;q=1,", ""),
            ("brotli, gzipped", ""),
        ] {
            assert_eq!(names(accept, all), expected, "{accept}");
        }
        assert_eq!(names("gzip, br, zstd", [false, true, true]), "br gzip");
        assert_eq!(names("br, zstd", [false, false, true]), "");
    }
}
