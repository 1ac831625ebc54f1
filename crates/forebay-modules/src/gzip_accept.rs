//! Decision whether a client gets compressed responses (nginx: the `gzip_*` directives that `gzip`, `gzip_static`
//! and `gunzip` share).

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_core::keyword;
use forebay_core::pattern::Pattern;
use forebay_http::field::Name;
use forebay_http::request::Version;
use forebay_server::config::Scope;
use forebay_server::module::Module;
use forebay_server::module::levels::LocationSettings;
use forebay_server::request::Request;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `gzip_http_version`: oldest version that gets compressed responses.
    "gzip_http_version" => http_version: HttpVersion = HttpVersion::V11;
    /// `gzip_proxied`.
    "gzip_proxied" => proxied: Proxied = Proxied::default();
    /// `gzip_disable`.
    "gzip_disable" => disable: Disable = Disable::default();
    /// `gzip_vary`.
    "gzip_vary" => vary: bool = false;
}

/// `gzip_accept`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };

keyword! {
    /// A version of HTTP.
    pub enum HttpVersion { V10 = "1.0", V11 = "1.1", }
}

/// Conditions under which requests through a proxy get compressed responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Proxied {
    pub any: bool,
    pub expired: bool,
    pub no_cache: bool,
    pub no_store: bool,
    pub private: bool,
    pub no_last_modified: bool,
    pub no_etag: bool,
    pub auth: bool,
}

impl Setting<forebay_server::config::HttpContext> for Proxied {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut p = previous.unwrap_or_default();
        for w in &d.args {
            let word = w.text.to_ascii_lowercase();
            match p.slot(&word) {
                Some(slot) => *slot = true,
                None if word == b"off" => p = Proxied::default(),
                None => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        Ok(p)
    }
}

impl Proxied {
    /// Returns the field with a name.
    fn slot(&mut self, word: &[u8]) -> Option<&mut bool> {
        let slots: [(&[u8], &mut bool); 8] = [
            (b"expired", &mut self.expired),
            (b"no-cache", &mut self.no_cache),
            (b"no-store", &mut self.no_store),
            (b"private", &mut self.private),
            (b"no_last_modified", &mut self.no_last_modified),
            (b"no_etag", &mut self.no_etag),
            (b"auth", &mut self.auth),
            (b"any", &mut self.any),
        ];
        slots.into_iter().find(|(name, _)| *name == word).map(|(_, slot)| slot)
    }
}

/// Clients that get no compressed responses, by `User-Agent`.
#[derive(Clone, Debug, Default)]
pub struct Disable {
    patterns: Arc<Vec<Pattern>>,
    msie6: bool,
}

impl Setting<forebay_server::config::HttpContext> for Disable {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut s = previous.unwrap_or_default();
        let mut patterns = s.patterns.as_ref().clone();
        for w in &d.args {
            match w.text.as_slice() {
                b"msie6" => s.msie6 = true,
                // Accepted as in nginx, without effect.
                b"degradation" => {}
                text => patterns.push(cx.pattern(d, text, true)?),
            }
        }
        s.patterns = Arc::new(patterns);
        Ok(s)
    }
}

impl Proxied {
    /// Returns `true` if the decision is the same for all responses: `any` or `off`.
    pub fn is_plain(self) -> bool {
        self.any || self == Proxied::default()
    }

    /// Returns `true` if the response to a request with `Via`, which a proxy adds (RFC 9110, section 7.6.3), may be
    /// compressed.
    fn allows(self, req: &Request) -> bool {
        if self.is_plain() {
            return self.any;
        }
        let r = &req.resp;
        // Shared caches do not keep a response to a request with credentials (RFC 9111, section 3.5), so any
        // form will do.
        if self.auth && req.head.get(Name::Authorization).is_some() {
            return true;
        }
        // As in nginx, `Expires` alone decides where a response has it, and `Cache-Control` comes second.
        if let Some(expires) = r.fields.get(b"Expires") {
            let now = req.thread.clock.unix();
            return self.expired && forebay_http::date::parse(expires).is_some_and(|t| t < now);
        }
        let mut controls = r.fields.all(b"Cache-Control").peekable();
        if controls.peek().is_some() {
            let asked: [(bool, &[u8]); 3] =
                [(self.no_cache, b"no-cache"), (self.no_store, b"no-store"), (self.private, b"private")];
            return controls.any(|value| {
                asked
                    .iter()
                    .any(|(on, word)| *on && value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word)))
            });
        }
        let etag = r.etag().is_some();
        // As in nginx, only a field of an upstream or of `add_header` counts here, and the modification time of a file does not.
        let modified = r.fields.get(b"Last-Modified").is_some();
        !(self.no_last_modified && modified || self.no_etag && etag)
    }
}

/// Returns `true` if the response may be compressed with gzip. Reads `Accept-Encoding` by nginx's rules, not those of
/// RFC 9110.
pub fn accepted(req: &Request, s: &LocationSettings) -> bool {
    req.head.get(Name::AcceptEncoding).is_some_and(names_gzip) && allowed(req, s)
}

/// Returns `true` if the configuration allows gzip for this client, apart from `Accept-Encoding`.
pub fn allowed(req: &Request, s: &LocationSettings) -> bool {
    let s = SETTINGS.of(s);
    let oldest = if s.http_version == HttpVersion::V10 { Version::Http10 } else { Version::Http11 };
    if req.head.version < oldest || (req.head.get(Name::Via).is_some() && !s.proxied.allows(req)) {
        return false;
    }
    if s.disable.patterns.is_empty() && !s.disable.msie6 {
        return true;
    }
    let Some(agent) = req.head.get(Name::UserAgent) else { return true };
    // An uncompressed answer suits every client, so a pattern that exceeds its limits counts as a match.
    let named = |p: &Pattern| p.is_match(agent).unwrap_or(true);
    !(s.disable.msie6 && old_msie(agent) || s.disable.patterns.iter().any(named))
}

/// Returns `true` if the client is MSIE 4 to 6, which cannot handle gzip. MSIE 6 with service pack 2 (`SV1`) can.
fn old_msie(agent: &[u8]) -> bool {
    let Some(at) = memchr::memmem::find(agent, b"MSIE ") else { return false };
    let Some([version, b'.']) = agent.get(at + 5..at + 7) else { return false };
    if memchr::memmem::find(agent, b"Opera").is_some() {
        return false;
    }
    match version {
        b'4' | b'5' => true,
        b'6' => memchr::memmem::find(agent, b"SV1").is_none(),
        _ => false,
    }
}

/// Returns `true` if `Accept-Encoding` has `gzip` with a weight above zero. The first element with this name decides.
fn names_gzip(accept: &[u8]) -> bool {
    let mut at = 0;
    while let Some(rest) = accept.get(at..)
        && let Some(found) = rest.windows(4).position(|w| w.eq_ignore_ascii_case(b"gzip"))
    {
        let start = at + found;
        at = start + 4;
        // The word may be the end of another name, such as `x-gzip`.
        if start > 0 && !matches!(accept.get(start - 1), Some(b',' | b' ')) {
            continue;
        }
        let tail = accept.get(at..).unwrap_or_default();
        let tail = trim_spaces(tail);
        return match tail.first() {
            None | Some(b',') => true,
            Some(b';') => weighs(trim_spaces(&tail[1..])),
            Some(_) => false,
        };
    }
    false
}

fn trim_spaces(text: &[u8]) -> &[u8] {
    let n = text.iter().take_while(|b| **b == b' ').count();
    text.get(n..).unwrap_or_default()
}

/// Returns `true` if the text after `gzip;` is a weight above zero.
fn weighs(text: &[u8]) -> bool {
    let weight = match text {
        [] => return true,
        [b'q' | b'Q', b'=', rest @ ..] => rest,
        _ => return false,
    };
    let end = weight.iter().position(|b| matches!(b, b',' | b' ')).unwrap_or(weight.len());
    is_positive(weight.get(..end).unwrap_or_default())
}

/// Returns `true` if a weight (RFC 9110, section 12.4.2) is valid and above zero.
fn is_positive(weight: &[u8]) -> bool {
    match weight {
        [b'1'] => true,
        [b'1', b'.', digits @ ..] => digits.len() <= 3 && digits.iter().all(|b| *b == b'0'),
        [b'0', b'.', digits @ ..] => {
            digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) && digits.iter().any(|b| *b != b'0')
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_is_read_as_nginx_does() {
        for yes in [
            "gzip",
            "GZIP",
            "deflate, gzip",
            "gzip;q=0.001",
            "gzip;q=1.",
            "gzip;",
            "x gzip",
            "gzip, gzip;q=0",
            "foo/gzip, gzip",
        ] {
            assert!(names_gzip(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "*",
            "x-gzip",
            "gzipx",
            "gzip;q=0",
            "gzip;q=0.",
            "gzip;q=1.001",
            "gzip;q=2",
            "gzip;q=.5",
            "gzip\t",
            "gzip deflate",
        ] {
            assert!(!names_gzip(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn old_browsers_are_known() {
        assert!(old_msie(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows)"));
        assert!(!old_msie(b"Mozilla/4.0 (compatible; MSIE 6.0; Windows; SV1)"));
        assert!(!old_msie(b"Mozilla/4.0 (compatible; MSIE 7.0)"));
        assert!(!old_msie(b"MSIE "));
    }
}
