//! `add_header`, `add_trailer`, `expires` (nginx: ngx_http_headers_module).

use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::config::value::{Setting, once};
use forebay_core::keyword;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::field;
use forebay_http::request::Method;
use forebay_server::config::Scope;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Directives, HeaderFilter, Module, RequestHook, SettingsOf};
use forebay_server::request::Request;
use std::sync::Arc;

forebay_core::settings! {
    /// `add_header`.
    "add_header" => add_header: Lines = Lines::default();
    /// `add_header_inherit`.
    "add_header_inherit" => add_header_inherit: Inherit = Inherit::On;
    /// `add_trailer`.
    "add_trailer" => add_trailer: Lines = Lines::default();
    /// `add_trailer_inherit`.
    "add_trailer_inherit" => add_trailer_inherit: Inherit = Inherit::On;
    /// `expires`.
    "expires" => expires: Expires = Expires::Off;
}

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

impl Directives for Written {
    type Settings = Settings;
    const DIRECTIVES: &'static [&'static str] = Written::DIRECTIVES;

    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        Written::set(self, d, cx)
    }

    fn inherit(&mut self, outer: &Written) {
        if self.merges_lines(outer) {
            self.merge_lines(outer);
        }
        Written::inherit(self, outer);
    }

    fn resolve(&self) -> Settings {
        Written::resolve(self)
    }
}

/// `headers`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    header_filters: &[HeaderFilter::new(enabled, filter)],
    trailers: Some(RequestHook { enabled, hook: trailers }),
    ..Module::NONE
};

keyword! {
    /// Inheritance of lines from the level above: if this level has none, never, or in addition to its own.
    pub enum Inherit { On = "on", Off = "off", Merge = "merge", }
}

impl Written {
    /// Returns `true` if [`Written::merge_lines`] changes anything.
    pub fn merges_lines(&self, parent: &Written) -> bool {
        let mode = |own: Option<Inherit>, above: Option<Inherit>| own.or(above).unwrap_or(Inherit::On);
        let changes = |mode: Inherit, own: &Option<Lines>| match mode {
            Inherit::On => false,
            Inherit::Off => true,
            Inherit::Merge => own.is_some(),
        };
        changes(mode(self.add_header_inherit, parent.add_header_inherit), &self.add_header)
            || changes(mode(self.add_trailer_inherit, parent.add_trailer_inherit), &self.add_trailer)
    }

    /// Adds or drops the lines of the level above, depending on `add_header_inherit` and `add_trailer_inherit`.
    /// Must run before [`Written::inherit`]; otherwise inherited lines would count as the level's own.
    pub fn merge_lines(&mut self, parent: &Written) {
        let mode = |own: Option<Inherit>, above: Option<Inherit>| own.or(above).unwrap_or(Inherit::On);
        let headers = mode(self.add_header_inherit, parent.add_header_inherit);
        merge(&mut self.add_header, &parent.add_header, headers);
        let trailers = mode(self.add_trailer_inherit, parent.add_trailer_inherit);
        merge(&mut self.add_trailer, &parent.add_trailer, trailers);
    }
}

fn merge(own: &mut Option<Lines>, parent: &Option<Lines>, mode: Inherit) {
    match (mode, &own, parent) {
        (Inherit::On, ..) => {}
        // An empty list is a setting too, so the parent's list is not inherited.
        (Inherit::Off, ..) => *own = Some(own.take().unwrap_or_default()),
        (Inherit::Merge, Some(lines), Some(above)) => {
            *own = Some(Lines(Arc::new(lines.0.iter().chain(above.0.iter()).cloned().collect())));
        }
        (Inherit::Merge, ..) => {}
    }
}

/// One field line to add.
#[derive(Clone, Debug)]
pub struct Line {
    name: Vec<u8>,
    value: Template,
    always: bool,
}

/// All lines that a level adds.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Arc<Vec<Line>>);

impl Setting<forebay_server::config::HttpContext> for Lines {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut lines = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let (Some(name), Some(value)) = (d.args.first(), d.args.get(1)) else {
            return Ok(Lines(Arc::new(lines)));
        };
        let always = match d.args.get(2) {
            None => false,
            Some(w) if w.text == b"always" => true,
            Some(w) => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
        };
        lines.push(Line { name: name.text.clone(), value: cx.template(d, value)?.folded(), always });
        Ok(Lines(Arc::new(lines)))
    }
}

/// Value of `expires`: the time for the field `Expires`, from which `Cache-Control` follows.
#[derive(Clone, Debug)]
pub enum Expires {
    /// No fields.
    Off,
    /// 1970, with `no-cache`.
    Epoch,
    /// The end of 2037.
    Max,
    /// Seconds from now, negative for the past.
    Access(i64),
    /// Seconds from the last modification.
    Modified(i64),
    /// The next time that the local clock shows this second of the day.
    Daily(i64),
    /// Value of a variable that holds one of the above. `true` if it follows `modified`.
    Value(Template, bool),
}

impl Expires {
    /// Returns the time of the directive, and whether `modified` is before it.
    fn words<'d>(d: &'d Directive, cx: &Scope<'_>) -> Result<(bool, &'d Word), Error> {
        match d.args.as_slice() {
            [m, time] if m.text == b"modified" => Ok((true, time)),
            [time] => Ok((false, time)),
            [_, _, ..] => Err(cx.directive_error(d, "invalid value")),
            [] => Err(cx.error(d, "no value")),
        }
    }

    /// Reads the words of the directive.
    fn read(words: &[&[u8]]) -> Result<Expires, &'static str> {
        match words {
            [b"epoch"] => Ok(Expires::Epoch),
            [b"max"] => Ok(Expires::Max),
            [b"off"] => Ok(Expires::Off),
            [[b'@', time @ ..]] => Expires::daily(time),
            [b"modified", [b'@', ..]] => Err("daily time cannot be used with \"modified\" parameter"),
            [word] => signed_seconds(word).map(Expires::Access),
            // As in nginx, `modified 0` counts from now. Otherwise the time would lie in the past, and the field would be no `max-age=0`.
            [b"modified", word] => signed_seconds(word).map(|n| match n {
                0 => Expires::Access(0),
                n => Expires::Modified(n),
            }),
            _ => Err("invalid value"),
        }
    }

    fn daily(time: &[u8]) -> Result<Expires, &'static str> {
        match seconds(time)? {
            n if n > 24 * 3600 => Err("daily time value must be less than 24 hours"),
            n => Ok(Expires::Daily(n)),
        }
    }
}

fn seconds(text: &[u8]) -> Result<i64, &'static str> {
    units::time_secs(text).and_then(|n| i64::try_from(n).ok()).ok_or("invalid value")
}

fn signed_seconds(word: &[u8]) -> Result<i64, &'static str> {
    match word {
        [b'+', text @ ..] => seconds(text),
        [b'-', text @ ..] => seconds(text).map(|n| -n),
        text => seconds(text),
    }
}

impl Setting<forebay_server::config::HttpContext> for Expires {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let (modified, word) = Expires::words(d, cx)?;
        // The value is known with the request only, so mistakes in it cannot be reported here.
        if word.text.contains(&b'$') {
            return Ok(Expires::Value(cx.template(d, word)?, modified));
        }
        let words: Vec<&[u8]> = d.args.iter().map(|w| w.text.as_slice()).collect();
        Expires::read(&words).map_err(|m| cx.directive_error(d, m))
    }
}

/// Returns `true` if a location adds fields or trailers.
fn enabled(s: &LocationSettings) -> bool {
    let h = SETTINGS.of(s);
    !h.add_header.0.is_empty() || !h.add_trailer.0.is_empty() || !matches!(h.expires, Expires::Off)
}

fn good_status(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308)
}

/// Adds fields to the response and announces trailers.
///
/// # Errors
/// If a variable cannot be evaluated.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    let h = SETTINGS.of(&http.location(req).settings);
    let good = good_status(req.resp.status);
    if good && !matches!(h.expires, Expires::Off) {
        set_expires(req, &h.expires)?;
    }
    for l in h.add_header.0.iter().filter(|l| good || l.always) {
        let value = l.value.value(req)?;
        add(req, &l.name, &value);
    }
    // Trailers follow a body, and responses to HEAD, 204 and 304 have none (RFC 9110, section 6.4.1).
    let has_body = !matches!(req.resp.status, 204 | 304) && req.method != Method::Head;
    if has_body && h.add_trailer.0.iter().any(|l| good || l.always) {
        req.resp.server_fields.trailers = true;
    }
    Ok(())
}

/// Makes the trailers. Runs after the body has been sent, when variables have their final values.
fn trailers(req: &mut Request) {
    let http = req.http();
    let good = good_status(req.resp.status);
    for l in SETTINGS.of(&http.location(req).settings).add_trailer.0.iter().filter(|l| good || l.always) {
        let Ok(value) = l.value.value(req) else { continue };
        match field::one_line(&l.name, &value) {
            Ok(line) if !line.is_empty() => req.resp.trailers.push(&l.name, &line),
            Ok(_) => {}
            Err(_) => {
                // Too late for an error response: leave this trailer out.
                let name = String::from_utf8_lossy(&l.name).into_owned();
                req.log(Level::Error, &format!("trailer \"{name}\" has a line break or NUL in its value"));
            }
        }
    }
}

impl Settings {
    /// Returns `true` if a field is added to a response of any status.
    pub fn always_adds(&self, name: &[u8]) -> bool {
        self.add_header.0.iter().any(|l| l.always && l.name.eq_ignore_ascii_case(name))
    }
}

/// Adds a field. An empty value adds none. A validator replaces the one of the response, also if the value is empty.
fn add(req: &mut Request, name: &[u8], value: &[u8]) {
    let r = &mut req.resp;
    if name.eq_ignore_ascii_case(b"ETag") {
        // A response must not have two validators of a kind.
        r.clear_etag();
    } else if name.eq_ignore_ascii_case(b"Last-Modified") {
        r.clear_last_modified();
    }
    if !value.is_empty() {
        r.fields.push(name, value);
    }
}

fn set_expires(req: &mut Request, e: &Expires) -> Result<(), VarError> {
    let Expires::Value(t, modified) = e else {
        push_expires(req, e);
        return Ok(());
    };
    let text = t.value(req)?;
    let words: &[&[u8]] = if *modified { &[b"modified", &text] } else { &[&text] };
    // A variable whose value is no time adds no fields. The response itself is still good.
    if let Ok(e) = Expires::read(words) {
        push_expires(req, &e);
    }
    Ok(())
}

fn push_expires(req: &mut Request, e: &Expires) {
    let now = req.thread.clock.unix();
    let (date, cache): (Vec<u8>, Vec<u8>) = match e {
        Expires::Off | Expires::Value(..) => return,
        Expires::Epoch => (b"Thu, 01 Jan 1970 00:00:01 GMT".to_vec(), b"no-cache".to_vec()),
        Expires::Max => (b"Thu, 31 Dec 2037 23:55:55 GMT".to_vec(), b"max-age=315360000".to_vec()),
        Expires::Access(n) => from_now(now + n, *n),
        Expires::Modified(n) => {
            let from = req.resp.modified().unwrap_or(now);
            from_now(from + n, from + n - now)
        }
        Expires::Daily(second) => {
            let offset = i64::from(req.thread.clock.offset(now));
            let of_day = (now + offset).rem_euclid(86400);
            // The age is from 1 to 86400: at the very second, the next time is a day away.
            let age = (second - of_day - 1).rem_euclid(86400) + 1;
            from_now(now + age, age)
        }
    };
    req.resp.fields.set(b"Expires", &date);
    req.resp.fields.set(b"Cache-Control", &cache);
}

/// Returns `Expires` and `Cache-Control` for a time and the seconds until then.
fn from_now(at: i64, age: i64) -> (Vec<u8>, Vec<u8>) {
    let cache = if age < 0 { b"no-cache".to_vec() } else { format!("max-age={age}").into_bytes() };
    (forebay_http::date::imf(at).to_vec(), cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(names: &[&str]) -> Option<Lines> {
        let line = |n: &&str| Line { name: n.as_bytes().to_vec(), value: Template::default(), always: false };
        Some(Lines(Arc::new(names.iter().map(line).collect())))
    }

    fn names(l: &Option<Lines>) -> Option<Vec<String>> {
        l.as_ref().map(|l| l.0.iter().map(|l| String::from_utf8_lossy(&l.name).into_owned()).collect())
    }

    #[test]
    fn lines_are_joined_or_dropped() {
        let parent = lines(&["P"]);
        let merged = |own: Option<Lines>, mode| {
            let mut own = own;
            merge(&mut own, &parent, mode);
            names(&own)
        };
        assert_eq!(merged(lines(&["O"]), Inherit::Merge), Some(vec!["O".into(), "P".into()]));
        assert_eq!(merged(lines(&["O"]), Inherit::On), Some(vec!["O".into()]));
        // `None` inherits afterwards; an empty list does not.
        assert_eq!(merged(None, Inherit::Merge), None);
        assert_eq!(merged(None, Inherit::Off), Some(vec![]));
    }
}
