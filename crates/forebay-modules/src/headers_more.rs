//! `more_set_headers`, `more_clear_headers`, `more_set_input_headers`, `more_clear_input_headers` (the third-party module
//! headers-more, by its documentation).

use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_core::vars::{Template, VarError};
use forebay_http::field::{self, Name};
use forebay_server::config::Scope;
use forebay_server::module::{Directives, HeaderFilter, Module, Phase, PhaseHook, SettingsOf, Step, Verdict};
use forebay_server::request::Request;
use forebay_server::response::Response;
use std::sync::Arc;

/// `headers_more`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Rewrite, |s| !SETTINGS.of(s).input.is_empty(), change_request)],
    header_filters: &[HeaderFilter::new(|s| !SETTINGS.of(s).output.is_empty(), filter)],
    ..Module::NONE
};

/// Directives of one level, in the order of the file. `settings!` cannot make them: directives that set fields and
/// directives that clear fields share a list, and a level adds to the list of the level around it.
#[derive(Clone, Debug, Default)]
pub struct Written {
    output: Arc<Vec<Rule>>,
    input: Arc<Vec<Rule>>,
}

/// Directives in effect.
pub type Settings = Written;

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

impl Directives for Written {
    type Settings = Settings;
    const DIRECTIVES: &'static [&'static str] =
        &["more_clear_headers", "more_clear_input_headers", "more_set_headers", "more_set_input_headers"];

    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let (list, side, clears) = match d.name.text.as_slice() {
            b"more_set_headers" => (&mut self.output, Side::Output, false),
            b"more_clear_headers" => (&mut self.output, Side::Output, true),
            b"more_set_input_headers" => (&mut self.input, Side::Input, false),
            b"more_clear_input_headers" => (&mut self.input, Side::Input, true),
            _ => return Ok(false),
        };
        Arc::make_mut(list).push(Rule::read(d, side, clears, cx)?);
        Ok(true)
    }

    /// Puts the directives of the level around this one in front of its own.
    fn inherit(&mut self, outer: &Written) {
        for (own, outer) in [(&mut self.output, &outer.output), (&mut self.input, &outer.input)] {
            if own.is_empty() {
                *own = outer.clone();
            } else if !outer.is_empty() {
                *own = Arc::new(outer.iter().chain(own.iter()).cloned().collect());
            }
        }
    }

    fn resolve(&self) -> Settings {
        self.clone()
    }
}

/// Message whose fields a directive changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Output,
    Input,
}

/// Treatment of the lines that a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Replace,
    /// `-a`.
    Append,
    /// `-r`.
    OnlyIfPresent,
}

/// One directive.
#[derive(Clone, Debug)]
struct Rule {
    /// Statuses for which the directive counts; empty for all.
    statuses: Vec<u16>,
    /// Types for which the directive counts, without parameters; empty for all.
    types: Vec<Vec<u8>>,
    mode: Mode,
    fields: Vec<Field>,
}

/// Field that a directive changes.
#[derive(Clone, Debug)]
struct Field {
    names: Names,
    /// `None` clears.
    value: Option<Template>,
}

/// One name, or the beginning of names.
#[derive(Clone, Debug)]
struct Names {
    text: Vec<u8>,
    /// `true` if `*` followed.
    prefix: bool,
}

impl Names {
    fn include(&self, name: &[u8]) -> bool {
        match self.prefix {
            true => name.get(..self.text.len()).is_some_and(|start| start.eq_ignore_ascii_case(&self.text)),
            false => name.eq_ignore_ascii_case(&self.text),
        }
    }
}

fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

impl Rule {
    fn read(d: &Directive, side: Side, clears: bool, cx: &mut Scope<'_>) -> Result<Rule, Error> {
        let mut rule =
            Rule { statuses: Vec::new(), types: Vec::new(), mode: Mode::Replace, fields: Vec::new() };
        let mut words = d.args.iter();
        while let Some(w) = words.next() {
            match w.text.as_slice() {
                b"-t" => {
                    let list = operand(d, w, words.next(), cx)?;
                    rule.types.extend(parts(&list.text).map(<[u8]>::to_ascii_lowercase));
                }
                b"-s" if side == Side::Output => {
                    let list = operand(d, w, words.next(), cx)?;
                    for text in parts(&list.text) {
                        let status = forebay_conf::units::number(text).filter(|n| (100..=999).contains(n));
                        let status = status.and_then(|n| u16::try_from(n).ok());
                        rule.statuses.push(status.ok_or_else(|| {
                            let text = String::from_utf8_lossy(text);
                            cx.error_at(d, list, format!("invalid status \"{text}\""))
                        })?);
                    }
                }
                b"-a" if side == Side::Output && !clears => rule.mode = Mode::Append,
                b"-r" if side == Side::Input && !clears => rule.mode = Mode::OnlyIfPresent,
                [b'-', ..] => {
                    return Err(cx.error_at(d, w, format!("invalid option \"{}\"", w.as_str())));
                }
                _ => rule.fields.push(Field::read(d, w, side, clears, cx)?),
            }
        }
        if rule.fields.is_empty() {
            return Err(cx.directive_error(d, "no header"));
        }
        Ok(rule)
    }

    fn is_for(&self, status: u16, kind: &[u8]) -> bool {
        (self.statuses.is_empty() || self.statuses.contains(&status))
            && (self.types.is_empty() || {
                let kind = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
                self.types.iter().any(|t| t.eq_ignore_ascii_case(kind))
            })
    }
}

fn parts(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty())
}

fn operand<'d>(d: &Directive, w: &Word, list: Option<&'d Word>, cx: &Scope<'_>) -> Result<&'d Word, Error> {
    list.ok_or_else(|| cx.error_at(d, w, format!("option \"{}\" has no value", w.as_str())))
}

impl Field {
    fn read(d: &Directive, w: &Word, side: Side, clears: bool, cx: &mut Scope<'_>) -> Result<Field, Error> {
        let colon = w.text.iter().position(|b| *b == b':').unwrap_or(w.text.len());
        let (name, value) = w.text.split_at(colon);
        let name = name.trim_ascii();
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        // As in the original module, the value of a field that is to be cleared is ignored.
        let value = if clears { b"".as_slice() } else { value };
        let start = name.strip_suffix(b"*").filter(|_| clears);
        let names = Names { text: start.unwrap_or(name).to_vec(), prefix: start.is_some() };
        if !(is_token(&names.text) || names.prefix && names.text.is_empty()) || names.text.contains(&b'*') {
            return Err(cx.error_at(d, w, format!("invalid header name in \"{}\"", w.as_str())));
        }
        // If a directive changed a field that frames the body, the sender and the reader of the message would
        // disagree about its end.
        let frames = is_framing(name);
        let hop = [&b"Connection"[..], b"Keep-Alive"].iter().any(|n| n.eq_ignore_ascii_case(name));
        let shown = String::from_utf8_lossy(name);
        if frames && (side == Side::Input || !value.is_empty()) {
            return Err(cx.error_at(d, w, format!("\"{shown}\" frames the body and cannot be changed")));
        }
        // The server decides about the connection to the client, so such a field of a directive would
        // contradict what it does.
        let is_idle = side == Side::Output && hop;
        if is_idle {
            cx.warn(d, format!("\"{shown}\" is about the connection and stays as it is"));
        }
        let value = match value {
            b"" => None,
            _ if is_idle => None,
            value => Some(cx.template(d, &Word { text: value.to_vec(), ..w.clone() })?.folded()),
        };
        Ok(Field { names, value })
    }
}

fn is_framing(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"Content-Length") || name.eq_ignore_ascii_case(b"Transfer-Encoding")
}

/// Changes the fields of the response.
///
/// # Errors
/// If a variable cannot be evaluated.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    for rule in SETTINGS.of(&http.location(req).settings).output.iter() {
        if !rule.is_for(req.resp.status, &req.resp.content_type) {
            continue;
        }
        for field in &rule.fields {
            let value = match &field.value {
                Some(t) => t.value(req)?,
                None => Vec::new(),
            };
            if value.is_empty() {
                // An empty value adds nothing with `-a`, and the lines that the response has must stay.
                if rule.mode != Mode::Append {
                    clear(&mut req.resp, &field.names);
                }
            } else {
                set(&mut req.resp, &field.names, &value, rule.mode);
            }
        }
    }
    Ok(())
}

/// Removes fields, those included that the server makes itself.
fn clear(r: &mut Response, names: &Names) {
    r.fields.remove_named(|name| names.include(name));
    let hit = |name: &str| names.include(name.as_bytes());
    // These fields are written with the head only, so a flag tells that they are not wanted.
    r.server_fields.server &= !hit("Server");
    r.server_fields.date &= !hit("Date");
    r.server_fields.vary &= !hit("Vary");
    if hit("Accept-Ranges") {
        r.forbid_ranges();
    }
    if hit("Content-Type") {
        r.content_type.clear();
        r.charset.clear();
    }
    // A wildcard means fields of the application, so it leaves the length alone. A body whose length is
    // cleared by name is sent in chunks.
    if hit("Content-Length") && !names.prefix {
        r.content_length = None;
    }
    if hit("Last-Modified") {
        r.validators.last_modified = None;
    }
    if hit("ETag") {
        r.validators.etag.clear();
    }
    if hit("Location") {
        r.location.clear();
    }
}

fn set(r: &mut Response, names: &Names, value: &[u8], mode: Mode) {
    let name = names.text.as_slice();
    let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
    // As documented, `-a` replaces a field that a response can have only once.
    let single = ["Server", "Date", "Content-Type", "Last-Modified", "ETag", "Location"].into_iter().any(is);
    if mode == Mode::Replace || single {
        clear(r, names);
    }
    if is("Content-Type") {
        r.set_content_type(value);
    } else {
        // `Location` too is sent as it is written.
        r.fields.push(name, value);
    }
}

/// Changes the fields of the request. The status of a refusal is 400 for a host that is none, 500 for a value that cannot be sent.
fn change_request(req: &mut Request) -> Step<'_> {
    change_fields(req).err().map_or(Verdict::Declined, Verdict::Status).into()
}

fn change_fields(req: &mut Request) -> Result<(), u16> {
    let http = req.http();
    for rule in SETTINGS.of(&http.location(req).settings).input.iter() {
        // A request has no status, and directives for requests have no `-s`.
        if !rule.is_for(0, req.head.get(Name::ContentType).unwrap_or_default()) {
            continue;
        }
        for field in &rule.fields {
            change_field(req, field, rule.mode)?;
        }
    }
    Ok(())
}

fn change_field(req: &mut Request, field: &Field, mode: Mode) -> Result<(), u16> {
    let names = &field.names;
    if mode == Mode::OnlyIfPresent && req.head.all(&names.text).next().is_none() {
        return Ok(());
    }
    let value = match &field.value {
        Some(t) => t.value(req).map_err(|VarError(m)| {
            if !m.is_empty() {
                req.log(Level::Error, &m);
            }
            500_u16
        })?,
        None => Vec::new(),
    };
    // Variables may hold bytes of the client, and a line break in them would begin a field of its own for the
    // upstream.
    let Ok(value) = field::one_line(&names.text, &value) else {
        let name = String::from_utf8_lossy(&names.text).into_owned();
        req.log(Level::Error, &format!("\"{name}\" of the request has a line break or NUL in its value"));
        return Err(500);
    };
    if names.include(b"Host") && req.head.replace_host(&value).is_err() {
        req.log(Level::Info, "more_set_input_headers made an invalid host");
        return Err(400);
    }
    // A wildcard leaves the fields that frame the body.
    req.head.remove_fields(|name| names.include(name) && !is_framing(name));
    if !value.is_empty() {
        // The part of the body that came with the head is in the same buffer, and moves as the head grows.
        let grown = req.head.insert_field(&names.text, &value);
        req.body.shift(grown);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_server::response::Validators;

    fn names(text: &str, prefix: bool) -> Names {
        Names { text: text.as_bytes().to_vec(), prefix }
    }

    #[test]
    fn a_wildcard_stands_for_the_rest_of_a_name() {
        assert!(names("X-Hidden-", true).include(b"x-hidden-one"));
        assert!(names("X-Hidden-", true).include(b"X-Hidden-"));
        assert!(!names("X-Hidden-", true).include(b"X-Hid"));
        assert!(!names("X-Hidden", false).include(b"X-Hidden-One"));
    }

    #[test]
    fn rules_are_for_their_statuses_and_types() {
        let rule = Rule {
            statuses: vec![404, 500],
            types: vec![b"text/html".to_vec()],
            mode: Mode::Replace,
            fields: vec![],
        };
        assert!(rule.is_for(404, b"Text/HTML; charset=utf-8"));
        assert!(!rule.is_for(200, b"text/html"));
        assert!(!rule.is_for(500, b"text/htmlx"));
    }

    #[test]
    fn clearing_reaches_the_fields_of_the_server() {
        let validators = Validators { etag: b"\"a\"".to_vec(), last_modified: Some(1) };
        let mut r = Response { validators, ..Response::default() };
        r.content_length = Some(3);
        r.fields.push(b"X-A", b"b");
        clear(&mut r, &names("", true));
        assert!(
            !r.server_fields.server
                && !r.server_fields.date
                && r.validators.etag.is_empty()
                && r.fields.is_empty()
        );
        assert_eq!((r.validators.last_modified, r.content_length), (None, Some(3)));
    }
}
