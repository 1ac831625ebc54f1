//! Beginnings and ends that a text must have so that a pattern can match. Most patterns of locations do not match most requests
//! (`\.(css|js)$`, `^/api/`). A look at a few bytes then saves a run of the engine. Hot path.

use regex_syntax::hir::literal::{ExtractKind, Extractor};
use regex_syntax::hir::{Hir, HirKind, Look};

/// Alternatives that are compared; a pattern with more is left to its engine.
const MOST: usize = 48;

/// Bytes that every match must have. Texts that pass may still not match.
#[derive(Debug)]
pub(super) struct Needs {
    /// One of these at the beginning of the text; none: anything.
    prefixes: Vec<Box<[u8]>>,
    /// One of these at its end; none: anything.
    suffixes: Vec<Box<[u8]>>,
    /// Last bytes of the suffixes, a bit for each.
    last: [u64; 4],
    caseless: bool,
}

impl Needs {
    /// Finds them in a pattern in the syntax of the `regex` crate. Returns `None` if there are none.
    pub(super) fn of(pattern: &str, caseless: bool) -> Option<Needs> {
        let hir = regex_syntax::ParserBuilder::new()
            .utf8(false)
            .unicode(false)
            .case_insensitive(caseless)
            .build()
            .parse(pattern)
            .ok()?;
        let properties = hir.properties();
        let list = |anchored: bool, kind| if anchored { literals(&hir, kind, caseless) } else { Vec::new() };
        let prefixes = list(properties.look_set_prefix().contains(Look::Start), ExtractKind::Prefix);
        let suffixes = list(properties.look_set_suffix().contains(Look::End), ExtractKind::Suffix);
        let mut last = [0; 4];
        for b in suffixes.iter().filter_map(|s| s.last()) {
            for b in [*b, if caseless { b.to_ascii_uppercase() } else { *b }] {
                last[usize::from(b >> 6)] |= 1 << (b & 63);
            }
        }
        (!prefixes.is_empty() || !suffixes.is_empty()).then_some(Needs { prefixes, suffixes, last, caseless })
    }

    /// Returns `true` if a text has the bytes that a match needs.
    #[inline]
    pub(super) fn met_by(&self, text: &[u8]) -> bool {
        let same = |a: &[u8], b: &[u8]| if self.caseless { a.eq_ignore_ascii_case(b) } else { a == b };
        if !self.prefixes.is_empty()
            && !self.prefixes.iter().any(|p| text.get(..p.len()).is_some_and(|t| same(t, p)))
        {
            return false;
        }
        if self.suffixes.is_empty() {
            return true;
        }
        let Some(last) = text.last() else { return false };
        self.last[usize::from(last >> 6)] & 1 << (last & 63) != 0
            && self.suffixes.iter().any(|s| {
                text.len().checked_sub(s.len()).and_then(|at| text.get(at..)).is_some_and(|t| same(t, s))
            })
    }
}

/// Returns the texts of which each match begins or ends with one. Empty if they are many or unknown.
fn literals(hir: &Hir, kind: ExtractKind, caseless: bool) -> Vec<Box<[u8]>> {
    let seq = Extractor::new().kind(kind).extract(hir);
    let mut list: Vec<Box<[u8]>> = Vec::new();
    for l in seq.literals().unwrap_or_default() {
        let text = if caseless { l.as_bytes().to_ascii_lowercase() } else { l.as_bytes().to_vec() };
        if text.is_empty() {
            return Vec::new();
        }
        if !list.iter().any(|seen| **seen == *text) {
            list.push(text.into());
        }
    }
    if list.len() > MOST { Vec::new() } else { list }
}

/// Most texts of one pattern that are searched for.
const MOST_REQUIRED: usize = 64;

/// Returns texts of which each match of a pattern contains one, in lower case: letters count as equal to their other case. `None` if none
/// of at least two bytes is known.
pub(super) fn required(pattern: &str) -> Option<Vec<Vec<u8>>> {
    // Letters stay letters, as the caller ignores their case.
    let hir = regex_syntax::ParserBuilder::new().utf8(false).unicode(false).build().parse(pattern).ok()?;
    let mut texts = required_by(&hir)?;
    texts.iter_mut().for_each(|text| text.make_ascii_lowercase());
    Some(texts)
}

/// Returns texts of which each match contains one.
fn required_by(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Literal(text) => (text.0.len() > 1).then(|| vec![text.0.to_vec()]),
        HirKind::Capture(group) => required_by(&group.sub),
        HirKind::Repetition(r) if r.min > 0 => required_by(&r.sub),
        // The parts of a sequence are all there: the longest texts are the rarest.
        HirKind::Concat(parts) => parts
            .iter()
            .filter_map(required_by)
            .max_by_key(|texts| (texts.iter().map(Vec::len).min(), std::cmp::Reverse(texts.len()))),
        HirKind::Alternation(ways) => {
            let texts: Vec<Vec<u8>> = ways.iter().map(required_by).collect::<Option<Vec<_>>>()?.concat();
            (texts.len() <= MOST_REQUIRED).then_some(texts)
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) | HirKind::Repetition(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_texts() {
        let of = |pattern: &str| {
            required(pattern).map(|texts| {
                texts.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect::<Vec<_>>()
            })
        };
        for (pattern, want) in [
            (r"^/App17/([0-9]+)$", Some(vec!["/app17/"])),
            (r"\.(css|js)$", Some(vec!["css", "js"])),
            (r"bot|crawler|x", None),
            (r"bot|(crawl(er)?|spider)s", Some(vec!["bot", "crawl", "spider"])),
            (r"(abc)?d", None),
            (r"(abc)+[0-9]de", Some(vec!["abc"])),
            (r"ab.*cdef", Some(vec!["cdef"])),
            (r"[ab]", None),
            (r"", None),
            (r"(?i)word", None),
        ] {
            assert_eq!(of(pattern), want.map(|w| w.into_iter().map(str::to_owned).collect()), "{pattern}");
        }
    }

    #[test]
    fn no_match_is_lost() {
        let patterns = [
            r"\.(css|js)$",
            r"^/api/(?P<v>v[0-9])/(.*)$",
            r"^/old/(.*)$",
            r"\.(?:gif|jpe?g|png|woff2?)$",
            r"^/$",
            r"\.php$",
            r"^/(a|b)/.*\.html$",
            r"^/~(\w+)",
            r"/x$",
            r"(^/a|b$)",
            r"^/a|^/b",
            r"a$|b$",
            r"^(?:/a)?b",
            r"x*$",
            r"^$",
            r"",
            r"(?i)^/Mixed\.TXT$",
            r"^/a(?i:b)c$",
            r"[^/]$",
            r"^[^x]",
            r"\.(a|b)+$",
            r"^/(?s:.)$",
            r"^/a{2,3}$",
            r"(?m)^/a$",
        ];
        let pieces: [&[u8]; 26] = [
            b"/",
            b"a",
            b"A",
            b"b",
            b"B",
            b"x",
            b".",
            b"css",
            b"JS",
            b"js",
            b"/api/",
            b"v1",
            b"/old/",
            b"jpeg",
            b"jpg",
            b"woff2",
            b"php",
            b"/Mixed.TXT",
            b"/mixed.txt",
            b"html",
            b"~",
            b"\n",
            b"\xff",
            b"",
            b"c",
            b"/a",
        ];
        let (mut passed, mut refused) = (0, 0);
        for pattern in patterns {
            for caseless in [false, true] {
                let re = regex::bytes::RegexBuilder::new(pattern)
                    .case_insensitive(caseless)
                    .unicode(false)
                    .build()
                    .expect("a pattern");
                let Some(needs) = Needs::of(pattern, caseless) else { continue };
                for a in pieces {
                    for b in pieces {
                        for c in pieces {
                            for d in [&b""[..], b"/", b"js", b"a", b"x.PHP"] {
                                let text = [a, b, c, d].concat();
                                let met = needs.met_by(&text);
                                assert!(met || !re.is_match(&text), "{pattern} {caseless} {text:?}");
                                passed += usize::from(met);
                                refused += usize::from(!met);
                            }
                        }
                    }
                }
            }
        }
        assert!(refused > 10 * passed, "{refused} {passed}: it is of use");
    }

    #[test]
    fn usual_locations_are_told_apart_by_their_bytes() {
        let needs = |pattern, caseless| Needs::of(pattern, caseless).expect("needs");
        let static_files = needs(r"\.(jpg|jpeg|gif|png|ico|css|js|svg|woff2?|ttf)$", true);
        assert!(
            static_files.met_by(b"/a/b.JPG")
                && static_files.met_by(b"/x.woff")
                && static_files.met_by(b"/x.woff2")
        );
        assert!(
            !static_files.met_by(b"/a/b.html") && !static_files.met_by(b"/js") && !static_files.met_by(b"")
        );
        let api = needs(r"^/api/(?P<v>v[0-9])/(.*)$", false);
        assert!(api.met_by(b"/api/v1/x") && !api.met_by(b"/app/") && !api.met_by(b"/API/v1/x"));
        for pattern in [r"a.*b", r"\.php($|/)", r"^(.*)$", r"[a-z]$x*"] {
            assert!(
                Needs::of(pattern, false).is_none_or(|n| n.met_by(b"/a.php/b") && n.met_by(b"q")),
                "{pattern}"
            );
        }
    }
}
