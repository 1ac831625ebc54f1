//! `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: `Set-Cookie` of an upstream as the client shall
//! see it (nginx: ngx_http_proxy_module; RFC 6265, section 4.1).

use crate::modules::proxy::{as_pattern, check_off};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_core::config::value::Setting;
use forebay_core::pattern::Pattern;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_server::config::Scope;
use forebay_server::request::Request;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `proxy_cookie_domain`.
    "proxy_cookie_domain" => domain: Domains = Domains(Rewrites::default());
    /// `proxy_cookie_path`.
    "proxy_cookie_path" => path: Paths = Paths(Rewrites::default());
    /// `proxy_cookie_flags`.
    "proxy_cookie_flags" => flags: CookieFlags = CookieFlags::default();
}

/// Text or pattern that a value is compared with.
#[derive(Clone, Debug)]
enum Like {
    Text(Template),
    Pattern(Pattern),
}

impl Like {
    /// Returns `true` for the name of a cookie that is meant.
    fn is_name(&self, req: &mut Request, name: &[u8]) -> Result<bool, VarError> {
        match self {
            Like::Text(t) => Ok(t.value(req)?.eq_ignore_ascii_case(name)),
            Like::Pattern(p) => Ok(p.exec(req, name)?),
        }
    }
}

/// Values and their replacements. Empty for `off`.
#[derive(Clone, Debug, Default)]
pub struct Rewrites(Arc<Vec<(Like, Template)>>);

/// `proxy_cookie_domain`.
#[derive(Clone, Debug)]
pub struct Domains(Rewrites);

/// `proxy_cookie_path`.
#[derive(Clone, Debug)]
pub struct Paths(Rewrites);

/// Reads a value, or a pattern after `~` or `~*`.
fn like(d: &Directive, w: &Word, caseless: bool, cx: &mut Scope<'_>) -> Result<Like, Error> {
    match as_pattern(&w.text, caseless) {
        Some((p, caseless)) => Ok(Like::Pattern(cx.pattern(d, p, caseless)?)),
        None => Ok(Like::Text(cx.template(d, w)?)),
    }
}

fn rewrites(
    previous: Option<Rewrites>,
    d: &Directive,
    caseless: bool,
    cx: &mut Scope<'_>,
) -> Result<Rewrites, Error> {
    check_off(previous.as_ref().map(|p| p.0.as_ref()), d, cx)?;
    let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
    match d.args.as_slice() {
        [from, to, ..] => all.push(rewrite_of(d, from, to, caseless, cx)?),
        [w] if w.text != b"off" => {
            return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
        }
        // `off`.
        _ => {}
    }
    Ok(Rewrites(Arc::new(all)))
}

fn rewrite_of(
    d: &Directive,
    from: &Word,
    to: &Word,
    caseless: bool,
    cx: &mut Scope<'_>,
) -> Result<(Like, Template), Error> {
    let to = cx.template(d, to)?;
    Ok((like(d, from, caseless, cx)?, to))
}

/// Returns a domain without the dot that it may begin with, which has no meaning.
fn undotted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b".").unwrap_or(text)
}

impl Setting<forebay_server::config::HttpContext> for Domains {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        rewrites(previous.map(|p| p.0), d, true, cx).map(Domains)
    }
}

impl Setting<forebay_server::config::HttpContext> for Paths {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        rewrites(previous.map(|p| p.0), d, false, cx).map(Paths)
    }
}

/// `proxy_cookie_flags`: cookies, and changes of their flags. Empty for `off`.
#[derive(Clone, Debug, Default)]
pub struct CookieFlags(Arc<Vec<(Like, Vec<Template>)>>);

impl Setting<forebay_server::config::HttpContext> for CookieFlags {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        check_off(previous.as_ref().map(|p| p.0.as_ref()), d, cx)?;
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let Some((cookie, words)) = d.args.split_first() else { return Ok(CookieFlags::default()) };
        if words.is_empty() && cookie.text == b"off" {
            return Ok(CookieFlags::default());
        }
        if words.is_empty() {
            return Err(cx.error_at(d, cookie, format!("invalid parameter \"{}\"", cookie.as_str())));
        }
        // The words may have variables, so words that are no flags are ignored when they are used, as in nginx.
        let flags: Vec<_> = words.iter().map(|w| cx.template(d, w)).collect::<Result<_, _>>()?;
        all.push((like(d, cookie, true, cx)?, flags));
        Ok(CookieFlags(Arc::new(all)))
    }
}

/// A change of a flag: its name in lower case, and the attribute that is added, or `None` where it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change(&'static [u8], Option<&'static [u8]>);

/// Words of `proxy_cookie_flags`.
const CHANGES: &[(&[u8], Change)] = &[
    (b"secure", Change(b"secure", Some(b"Secure"))),
    (b"nosecure", Change(b"secure", None)),
    (b"httponly", Change(b"httponly", Some(b"HttpOnly"))),
    (b"nohttponly", Change(b"httponly", None)),
    (b"samesite=strict", Change(b"samesite", Some(b"SameSite=Strict"))),
    (b"samesite=lax", Change(b"samesite", Some(b"SameSite=Lax"))),
    (b"samesite=none", Change(b"samesite", Some(b"SameSite=None"))),
    (b"nosamesite", Change(b"samesite", None)),
];

impl Change {
    fn of(word: &[u8]) -> Option<Change> {
        CHANGES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, change)| *change)
    }

    /// Changes the flag. A flag that is there already stays as the upstream wrote it, except for `SameSite`, which has a
    /// value.
    fn apply(self, attributes: &mut Vec<Attribute>) {
        let Change(name, wanted) = self;
        let is_it = |(n, _): &Attribute| n.eq_ignore_ascii_case(name);
        let Some(wanted) = wanted else { return attributes.retain(|a| !is_it(a)) };
        match attributes.iter_mut().find(|a| is_it(a)) {
            Some(attribute) if name == b"samesite" => *attribute = (wanted.to_vec(), None),
            Some(_) => {}
            None => attributes.push((wanted.to_vec(), None)),
        }
    }
}

/// Name and value of an attribute.
type Attribute = (Vec<u8>, Option<Vec<u8>>);

/// Splits what follows the cookie's pair at its semicolons. Empty attributes stay, as in nginx.
fn attributes(rest: &[u8]) -> Vec<Attribute> {
    let parts = rest.split(|b| *b == b';').map(<[u8]>::trim_ascii);
    parts
        .map(|a| match memchr::memchr(b'=', a) {
            Some(at) => (a[..at].trim_ascii_end().to_vec(), Some(a[at + 1..].trim_ascii_start().to_vec())),
            None => (a.to_vec(), None),
        })
        .collect()
}

/// Returns `true` if a location changes cookies.
pub fn enabled(s: &Settings) -> bool {
    !s.domain.0.0.is_empty() || !s.path.0.0.is_empty() || !s.flags.0.is_empty()
}

/// Returns the value of `Set-Cookie` for the client, or `None` if it stays as it is.
///
/// # Errors
/// If a variable cannot be evaluated.
pub fn rewrite(req: &mut Request, s: &Settings, value: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
    let mut halves = value.splitn(2, |b| *b == b';');
    let pair = halves.next().unwrap_or_default().trim_ascii();
    // A name without a value is no cookie (RFC 6265, section 5.2): it stays as it is, as in nginx.
    let Some(end_of_name) = memchr::memchr(b'=', pair) else { return Ok(None) };
    let mut attributes = halves.next().map(attributes).unwrap_or_default();
    let mut changed = false;
    for (name, value) in &mut attributes {
        let Some(old) = value else { continue };
        if let Some(new) = attribute(req, s, name, old)? {
            // The new value may hold further attributes: `proxy_cookie_path / "/; Secure"` is a common way to add a flag.
            *old = new;
            changed = true;
        }
    }
    let name = pair.get(..end_of_name).unwrap_or_default().trim_ascii();
    for change in flags(req, &s.flags, name)? {
        change.apply(&mut attributes);
        changed = true;
    }
    Ok(changed.then(|| joined(pair, attributes)))
}

/// Returns the new value of an attribute, if it changes.
fn attribute(req: &mut Request, s: &Settings, name: &[u8], old: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
    if name.eq_ignore_ascii_case(b"domain") {
        domain(req, &s.domain, old)
    } else if name.eq_ignore_ascii_case(b"path") {
        path(req, &s.path, old)
    } else {
        Ok(None)
    }
}

/// Returns a cookie with its attributes.
fn joined(pair: &[u8], attributes: Vec<Attribute>) -> Vec<u8> {
    let mut out = pair.to_vec();
    for (name, value) in attributes {
        out.extend_from_slice(b"; ");
        out.extend_from_slice(&name);
        if let Some(v) = value {
            out.push(b'=');
            out.extend_from_slice(&v);
        }
    }
    out
}

fn domain(req: &mut Request, all: &Domains, old: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
    let bare = undotted(old);
    let dot: &[u8] = if old.len() > bare.len() { b"." } else { b"" };
    // Browsers ignore the first dot of a domain (RFC 6265, section 5.2.3), so it does not count here.
    let fits = |from: &[u8]| undotted(from).eq_ignore_ascii_case(bare);
    all.0.replace(req, old, fits, |_, to| [dot, undotted(to)].concat())
}

fn path(req: &mut Request, all: &Paths, old: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
    let fits = |from: &[u8]| old.starts_with(from);
    all.0.replace(req, old, fits, |from, to| [to, old.get(from.len()..).unwrap_or_default()].concat())
}

impl Rewrites {
    /// Returns what replaces a value. For a row with a text, `fits` says whether the row applies, and `new` makes the new
    /// value of both texts. A pattern sees the whole value, and replaces all of it.
    fn replace(
        &self,
        req: &mut Request,
        old: &[u8],
        fits: impl Fn(&[u8]) -> bool,
        new: impl Fn(&[u8], &[u8]) -> Vec<u8>,
    ) -> Result<Option<Vec<u8>>, VarError> {
        for (from, to) in self.0.iter() {
            match from {
                Like::Pattern(p) => {
                    if p.exec(req, old)? {
                        return to.value(req).map(Some);
                    }
                }
                Like::Text(t) => {
                    let from = t.value(req)?;
                    if fits(&from) {
                        return Ok(Some(new(&from, &to.value(req)?)));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Returns the changes for a cookie, which the first row that applies to it has.
fn flags(req: &mut Request, all: &CookieFlags, name: &[u8]) -> Result<Vec<Change>, VarError> {
    for (cookie, flags) in all.0.iter() {
        if cookie.is_name(req, name)? {
            let changes = flags.iter().map(|f| f.value(req).map(|word| Change::of(&word)));
            return Ok(changes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, request};

    fn changed(conf: &str, cookie: &str) -> String {
        let mut req = request(&format!("server {{ server_name s; {conf} }}"), "d=.x.y&nl=a%0ab");
        let http = req.http();
        let s = SETTINGS.of(&http.location(&req).settings);
        assert!(enabled(s));
        let new = rewrite(&mut req, s, cookie.as_bytes()).expect("no circle");
        new.map_or("as it was".into(), |v| String::from_utf8_lossy(&v).into_owned())
    }

    #[test]
    fn cookies_are_rewritten() {
        let c = "proxy_cookie_domain a.b $arg_d; proxy_cookie_domain ~^(\\w+)\\.com$ $1.org;";
        assert_eq!(changed(c, "v=1;Domain=.A.b;Secure"), "v=1; Domain=.x.y; Secure");
        assert_eq!(changed(c, "v=1; domain=foo.COM"), "v=1; domain=foo.org");
        assert_eq!(changed(c, "v=1;domain=other"), "as it was");
        let c = "proxy_cookie_path /a/ /; proxy_cookie_flags v secure nohttponly samesite=lax;";
        assert_eq!(changed(c, "v=1;HttpOnly; Path=/a/b"), "v=1; Path=/b; Secure; SameSite=Lax");
        assert_eq!(changed(c, "w=1;HttpOnly; Path=/A/b"), "as it was");
    }

    #[test]
    fn a_replacement_may_hold_further_attributes() {
        let c = r#"proxy_cookie_path / "/; HTTPOnly; Secure"; proxy_cookie_domain a.b "c.d; SameSite=Lax";"#;
        assert_eq!(
            changed(c, "v=1; Path=/; Domain=a.b"),
            "v=1; Path=/; HTTPOnly; Secure; Domain=c.d; SameSite=Lax"
        );
        assert_eq!(changed(c, "v; Path=/"), "as it was");
    }

    #[test]
    fn flags_that_are_there_keep_their_form() {
        let c = "proxy_cookie_flags v secure httponly samesite=strict;";
        assert_eq!(
            changed(c, "v=1; SECURE; httponly=1; samesite=lax;"),
            "v=1; SECURE; httponly=1; SameSite=Strict; "
        );
    }

    #[test]
    fn mistakes_are_refused() {
        assert!(error("proxy_cookie_path a;").is_some_and(|m| m.contains("invalid parameter")));
        let twice = error("proxy_cookie_path a b; proxy_cookie_path off;");
        assert!(twice.is_some_and(|m| m.contains("is duplicate")));
    }
}
