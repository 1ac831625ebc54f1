//! `sub_filter` and related directives (nginx: ngx_http_sub_module): replacement of text in responses.

use crate::compress;
use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::request::Method;
use forebay_server::config::Scope;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::Request;
use forebay_server::response::{BodyFilter, FilterError};
use std::sync::Arc;

forebay_server::module_settings! {
    /// `sub_filter`.
    "sub_filter" => pairs: Pairs = Pairs::default();
    /// `sub_filter_types`.
    "sub_filter_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
    /// `sub_filter_once`.
    "sub_filter_once" => once: bool = true;
    /// `sub_filter_last_modified`.
    "sub_filter_last_modified" => last_modified: bool = false;
}

/// `sub`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    header_filters: &[HeaderFilter::new(enabled, filter).included()],
    ..Module::NONE
};

/// Search texts and their replacements, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    list: Arc<Vec<(Template, Template)>>,
    /// Finder of the texts, made with the configuration if none of them has variables.
    fixed: Option<AhoCorasick>,
}

impl Setting<forebay_server::config::HttpContext> for Pairs {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let [text, by] = d.args.as_slice() else { return Err(cx.error(d, "invalid number of arguments")) };
        if text.text.is_empty() {
            return Err(cx.error(d, "empty search pattern"));
        }
        let pair = (cx.template(d, text)?, cx.template(d, by)?);
        let mut list = Arc::unwrap_or_clone(previous.unwrap_or_default().list);
        list.push(pair);
        let texts: Option<Vec<&[u8]>> = list.iter().map(|(text, _)| text.as_const()).collect();
        let fixed = match texts.map(|t| finder(&t)) {
            Some(None) => return Err(cx.error(d, "search patterns are too large")),
            found => found.flatten(),
        };
        Ok(Pairs { list: Arc::new(list), fixed })
    }
}

/// Builds a finder of texts that ignores case. It reports the leftmost match; of several texts at one place, the first in
/// the list.
fn finder<T: AsRef<[u8]>>(texts: &[T]) -> Option<AhoCorasick> {
    AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).ascii_case_insensitive(true).build(texts).ok()
}

/// Returns `true` if a location replaces text.
fn enabled(s: &LocationSettings) -> bool {
    !SETTINGS.of(s).pairs.list.is_empty()
}

/// A text and its replacement.
type Replacement = (Vec<u8>, Vec<u8>);

/// Evaluates the texts of a location and their replacements.
fn replacements(req: &mut Request, s: &Settings) -> Result<Vec<Replacement>, VarError> {
    let mut texts = Vec::new();
    for (text, by) in s.pairs.list.iter() {
        let text = text.value(req)?;
        // An empty text would match everywhere.
        if !text.is_empty() {
            texts.push((text, by.value(req)?));
        }
    }
    Ok(texts)
}

/// Prepares a response for replacements in its body.
///
/// # Errors
/// If a variable cannot be evaluated.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let r = &req.resp;
    let kind = compress::media_type(&r.content_type);
    let bodiless = r.content_length == Some(0) || matches!(r.status, 204 | 304);
    if bodiless || !s.types.contains(kind) {
        return Ok(());
    }
    let texts = replacements(req, s)?;
    if texts.is_empty() {
        return Ok(());
    }
    // A finder has tables of its own, so texts without variables get theirs once and not for each response.
    let found = s.pairs.fixed.clone().or_else(|| {
        let only: Vec<&[u8]> = texts.iter().map(|(text, _)| text.as_slice()).collect();
        finder(&only)
    });
    let Some(finder) = found else {
        req.log(Level::Error, "search patterns of \"sub_filter\" are too large");
        return Ok(());
    };
    // The bytes change with the texts, which the original validator does not know.
    compress::weaken_etag(req);
    req.resp.content_length = None;
    req.resp.forbid_ranges();
    if !s.last_modified {
        req.resp.clear_validators();
    }
    // HEAD gets the head of the response to GET, but there is no body to replace text in.
    if req.method != Method::Head {
        req.resp.filters.body.push(Box::new(Replace::new(finder, texts, s.once)));
    }
    Ok(())
}

/// Body filter that replaces texts.
struct Replace {
    /// Finder of the texts left to replace; `None` if there are none.
    finder: Option<AhoCorasick>,
    /// Texts and their replacements, in the order of the finder's patterns.
    texts: Vec<(Vec<u8>, Vec<u8>)>,
    once: bool,
    /// End of the last piece, which may be the start of a text that continues in the next piece.
    held: Vec<u8>,
    longest: usize,
}

impl Replace {
    fn new(finder: AhoCorasick, texts: Vec<(Vec<u8>, Vec<u8>)>, once: bool) -> Replace {
        let longest = texts.iter().map(|(t, _)| t.len()).max().unwrap_or(0);
        Replace { finder: Some(finder), texts, once, held: Vec::new(), longest }
    }

    /// Returns the first position where a text may begin that is cut at the end of the input, or the input's length.
    fn open(&self, input: &[u8], from: usize) -> usize {
        let start = from.max(input.len().saturating_sub(self.longest.saturating_sub(1)));
        let begins = |i: &usize| {
            let rest = &input[*i..];
            self.texts.iter().any(|(text, _)| {
                // A text that fits into the rest would have been found, so only a longer one can be cut here.
                text.len() > rest.len()
                    && text[0].eq_ignore_ascii_case(&rest[0])
                    && text.iter().zip(rest).all(|(a, b)| a.eq_ignore_ascii_case(b))
            })
        };
        (start..input.len()).find(begins).unwrap_or(input.len())
    }

    /// Removes a text that has been replaced once.
    fn spend(&mut self, i: usize) {
        self.texts.remove(i);
        let only: Vec<&[u8]> = self.texts.iter().map(|(text, _)| text.as_slice()).collect();
        self.finder = if only.is_empty() { None } else { finder(&only) };
    }

    /// Replaces complete texts in `input`. Returns the number of bytes that are finished; the rest must be passed again
    /// before the next piece.
    fn replace(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> usize {
        let mut at = 0;
        // With the last piece nothing can follow, so the beginning of a text is plain text.
        let mut open = if last { input.len() } else { self.open(input, 0) };
        while let Some(f) = &self.finder {
            if open < at {
                open = self.open(input, at);
            }
            let found = f.find(Input::new(input).range(at..).anchored(Anchored::No));
            // A match after `open` has to wait: the text that may begin there comes first, and could overlap
            // it.
            let Some(m) = found.filter(|m| m.start() < open || last) else { break };
            out.extend_from_slice(&input[at..m.start()]);
            at = m.end();
            let i = m.pattern().as_usize();
            if let Some((_, by)) = self.texts.get(i) {
                out.extend_from_slice(by);
            }
            // Each text is replaced once, and the finder must not find the spent one in place of another that
            // overlaps it.
            if self.once {
                self.spend(i);
                open = if last { input.len() } else { self.open(input, at) };
            }
        }
        let end = if self.finder.is_none() { input.len() } else { open.max(at) };
        out.extend_from_slice(&input[at..end]);
        end
    }
}

impl BodyFilter for Replace {
    fn feed(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), FilterError> {
        // Most pieces end without the beginning of a text, so they are searched in place and not copied.
        if self.held.is_empty() {
            let done = self.replace(input, last, out);
            self.held.extend_from_slice(&input[done..]);
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(input);
        let done = self.replace(&all, last, out);
        all.drain(..done);
        self.held = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn replaced(pairs: &[(&str, &str)], once: bool, pieces: &[&[u8]]) -> String {
        let texts: Vec<(Vec<u8>, Vec<u8>)> = pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        let only: Vec<&[u8]> = texts.iter().map(|(text, _)| text.as_slice()).collect();
        let mut f = Replace::new(finder(&only).expect("built"), texts.clone(), once);
        let mut out = Vec::new();
        for (i, p) in pieces.iter().enumerate() {
            f.feed(p, i + 1 == pieces.len(), &mut out).expect("never broken");
        }
        String::from_utf8(out).expect("text")
    }

    type Case = (&'static [(&'static str, &'static str)], &'static str, &'static str, &'static str);

    const CASES: &[Case] = &[
        (&[("foo", "bar")], "xFOOfoofo", "xbarbarfo", "xbarfoofo"),
        (&[("ab", "1"), ("abc", "2")], "xabcabd", "x1c1d", "x1cabd"),
        (&[("abc", "2"), ("ab", "1")], "xabcabdabab", "x21d11", "x21dabab"),
        (&[("bcd", "1"), ("abc", "2")], "abcdbcd", "2d1", "2d1"),
        (&[("abcde", "1"), ("bc", "2")], "abcdabcde", "a2d1", "a2d1"),
        (&[("b", "1"), ("abcd", "2"), ("cde", "3")], "xbcdeabcdx", "x132x", "x132x"),
        (&[("ab", "1"), ("ab", "2")], "ababab", "111", "12ab"),
        (&[("aab", "+"), ("yyz", "-")], "yyzyyzaabaabyyz", "--++-", "-yyz+aabyyz"),
    ];

    #[test]
    fn however_the_text_is_cut() {
        for (pairs, text, all, once) in CASES {
            let text = text.as_bytes();
            for i in 0..=text.len() {
                for j in i..=text.len() {
                    let pieces = [&text[..i], &text[i..j], &text[j..], b""];
                    assert_eq!(replaced(pairs, false, &pieces), *all, "{pieces:?}");
                    assert_eq!(replaced(pairs, true, &pieces), *once, "{pieces:?}");
                }
            }
        }
    }

    #[test]
    fn only_what_may_be_a_beginning_is_held_back() {
        let mut f = Replace::new(finder(&["za"]).expect("built"), vec![(b"za".into(), b"ZA".into())], true);
        let mut out = Vec::new();
        f.feed(b"xyz", false, &mut out).expect("fed");
        assert_eq!(out, b"xy");
        f.feed(b"!", false, &mut out).expect("fed");
        assert_eq!(out, b"xyz!");
    }

    #[test]
    fn an_empty_text_is_refused() {
        assert_eq!(testing::error("sub_filter \"\" x;").as_deref(), Some("empty search pattern"));
    }
}
