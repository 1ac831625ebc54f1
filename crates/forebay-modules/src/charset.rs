//! `charset`, `charset_map`, `source_charset`, `override_charset`, `charset_types`
//! (nginx: ngx_http_charset_module).

use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_core::config::value::{Setting, once};
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_server::config::HttpTables;
use forebay_server::config::Scope;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::config::parts::Parts;
use forebay_server::module::ConfigHooks;
use forebay_server::module::assembly::InEffectAt;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Head, HeaderFilter, Module};
use forebay_server::request::Request;
use forebay_server::response::{BodyFilter, FilterError};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `charset`.
    "charset" => charset: Charset = Charset::Off;
    /// `source_charset`.
    "source_charset" => source: Charset = Charset::Off;
    /// `override_charset`: whether upstream responses that name their charset are converted too.
    "override_charset" => override_charset: bool = false;
    /// `charset_types`.
    "charset_types" => types: MimeTypes = MimeTypes::of(DEFAULT_TYPES);
}

/// `charset`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    http_directives: &[("charset_map", map)],
    config: ConfigHooks { check_settings: Some(check), finish: Some(finish), ..ConfigHooks::NONE },
    header_filters: &[
        HeaderFilter::new(enabled, filter).included(),
        HeaderFilter::new(by_upstream, filter_upstream).included().with_head(Head::File),
    ],
    ..Module::NONE
};

const DEFAULT_TYPES: &[&str] = &[
    "text/html",
    "text/xml",
    "text/plain",
    "text/vnd.wap.wml",
    "application/javascript",
    "application/rss+xml",
];

const UTF_8: &[u8] = b"utf-8";

/// Value of `charset` or `source_charset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charset {
    /// No charset.
    Off,
    /// Charset with this name.
    Name(Vec<u8>),
    /// Charset whose name is the value of a variable.
    Value(Template),
}

impl Setting<forebay_server::config::HttpContext> for Charset {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let Some(w) = d.args.first() else { return Ok(Charset::Off) };
        Ok(match w.text.as_slice() {
            b"off" => Charset::Off,
            [b'$', ..] => Charset::Value(cx.template(d, w)?),
            name => Charset::Name(name.to_vec()),
        })
    }
}

impl Charset {
    fn name(&self, req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
        match self {
            Charset::Off => Ok(None),
            Charset::Name(n) => Ok(Some(n.clone())),
            // Unlike nginx, which drops the connection if the variable is empty. Here the charset has no name
            // then.
            Charset::Value(t) => t.value(req).map(Some),
        }
    }
}

/// Tables of one `charset_map`.
#[derive(Debug)]
pub struct Map {
    left: Vec<u8>,
    right: Vec<u8>,
    /// Table from left to right, and table from right to left.
    tables: [Arc<Table>; 2],
}

/// Conversion from one charset to another.
#[derive(Debug)]
pub enum Table {
    /// Maps each byte to a byte.
    Bytes(Box<[u8; 256]>),
    /// Maps each byte to its character in UTF-8.
    ToUtf8(Vec<Vec<u8>>),
    /// Maps code points above U+007F to bytes.
    FromUtf8(HashMap<u32, u8>),
}

/// All maps of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Maps(Vec<Arc<Map>>);

impl Maps {
    /// Finds the table from one charset to another.
    fn find(&self, from: &[u8], to: &[u8]) -> Option<&Arc<Table>> {
        let is = |a: &[u8], b: &[u8]| a.eq_ignore_ascii_case(b);
        self.0.iter().find_map(|m| {
            match (is(&m.left, from) && is(&m.right, to), is(&m.right, from) && is(&m.left, to)) {
                (true, _) => Some(&m.tables[0]),
                (_, true) => Some(&m.tables[1]),
                _ => None,
            }
        })
    }

    /// Checks that a location's charsets can be converted.
    ///
    /// # Errors
    /// `no "charset_map" between the charsets "a" and "b"`.
    pub fn check(&self, s: &LocationSettings) -> Result<(), String> {
        let s = SETTINGS.of(s);
        match (&s.source, &s.charset) {
            (Charset::Name(from), Charset::Name(to))
                if !from.eq_ignore_ascii_case(to) && self.find(from, to).is_none() =>
            {
                Err(no_map(from, to))
            }
            _ => Ok(()),
        }
    }
}

fn no_map(from: &[u8], to: &[u8]) -> String {
    let (from, to) = (String::from_utf8_lossy(from), String::from_utf8_lossy(to));
    format!("no \"charset_map\" between the charsets \"{from}\" and \"{to}\"")
}

/// Checks the charsets of a `charset_map`.
fn check_pair(left: &Word, right: &Word, cx: &Scope<'_>) -> Result<(), String> {
    if left.text.eq_ignore_ascii_case(UTF_8) {
        return Err("\"charset_map\" with \"utf-8\" charset should be given in the second column".into());
    }
    let both = format!("\"{}\" and \"{}\"", left.as_str(), right.as_str());
    if left.text.eq_ignore_ascii_case(&right.text) {
        return Err(format!("\"charset_map\" between the same charsets {both}"));
    }
    let known = cx.tables.parts.get::<Maps>();
    if known.is_some_and(|known| known.find(&left.text, &right.text).is_some()) {
        return Err(format!("duplicate \"charset_map\" between {both}"));
    }
    Ok(())
}

/// Checks that the charsets of a level can be converted.
fn check(level: &InEffectAt<'_>) -> Result<(), String> {
    if level.is_http {
        return Ok(());
    }
    match level.tables.parts.get::<Maps>() {
        Some(maps) => maps.check(level.settings),
        None => Maps::default().check(level.settings),
    }
}

/// Hands the maps on to the configuration.
fn finish(tables: &mut HttpTables, http: &mut Parts) {
    *http.get_mut::<Maps>() = tables.parts.take();
}

/// Reads a `charset_map` block.
///
/// # Errors
/// In nginx's words.
fn map(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let [left, right] = d.args.as_slice() else { return Err(cx.error(d, "invalid number of arguments")) };
    check_pair(left, right, cx).map_err(|text| cx.error(d, text))?;
    let utf8 = right.text.eq_ignore_ascii_case(UTF_8);
    let rows = d.block.iter().flatten();
    let tables = if utf8 { utf8_tables(rows, cx)? } else { byte_tables(rows, cx)? };
    cx.tables.parts.get_mut::<Maps>().0.push(Arc::new(Map {
        left: left.text.clone(),
        right: right.text.clone(),
        tables: tables.map(Arc::new),
    }));
    Ok(())
}

fn row<'d>(r: &'d Directive, cx: &Scope<'_>) -> Result<(u8, &'d Word), Error> {
    let [value] = r.args.as_slice() else { return Err(cx.error(r, "invalid parameters number")) };
    Ok((byte(r, &r.name, cx)?, value))
}

fn invalid(r: &Directive, w: &Word, cx: &Scope<'_>) -> Error {
    cx.error_at(r, w, format!("invalid value \"{}\"", w.as_str()))
}

/// Reads a byte in hexadecimal.
fn byte(r: &Directive, w: &Word, cx: &Scope<'_>) -> Result<u8, Error> {
    match hex(&w.text).as_deref() {
        Some([b]) => Ok(*b),
        _ => Err(invalid(r, w, cx)),
    }
}

/// Reads bytes in hexadecimal. With an odd number of digits, the first digit is a byte of its own.
fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: &u8| char::from(*b).to_digit(16).map(|d| d as u8);
    let (first, rest) = text.split_at(text.len() % 2);
    let mut out = Vec::new();
    if let Some(d) = first.first() {
        out.push(digit(d)?);
    }
    for pair in rest.chunks_exact(2) {
        out.push(digit(&pair[0])? << 4 | digit(&pair[1])?);
    }
    (!out.is_empty()).then_some(out)
}

/// Makes a table that keeps ASCII and maps all other bytes to `?`.
fn plain_bytes() -> Box<[u8; 256]> {
    Box::new(std::array::from_fn(|i| if i < 128 { i as u8 } else { b'?' }))
}

fn byte_tables<'d>(rows: impl Iterator<Item = &'d Directive>, cx: &Scope<'_>) -> Result<[Table; 2], Error> {
    let (mut there, mut back) = (plain_bytes(), plain_bytes());
    for r in rows {
        let (from, value) = row(r, cx)?;
        let to = byte(r, value, cx)?;
        there[usize::from(from)] = to;
        // One map serves both directions: for responses in either charset of the pair.
        back[usize::from(to)] = from;
    }
    Ok([Table::Bytes(there), Table::Bytes(back)])
}

fn utf8_tables<'d>(rows: impl Iterator<Item = &'d Directive>, cx: &Scope<'_>) -> Result<[Table; 2], Error> {
    let mut there: Vec<Vec<u8>> = plain_bytes().iter().map(|b| vec![*b]).collect();
    let mut back = HashMap::new();
    for r in rows {
        let (from, value) = row(r, cx)?;
        let bytes = hex(&value.text).filter(|b| value.text.len() % 2 == 0 && b.len() <= 3);
        let bytes = bytes.ok_or_else(|| invalid(r, value, cx))?;
        let Some(DecodedCharacter::Character(c, n)) = decode(&bytes) else {
            return Err(invalid(r, value, cx));
        };
        // ASCII is the same in all charsets here, and never looked up in the map.
        if n != bytes.len() || c < 0x80 {
            return Err(invalid(r, value, cx));
        }
        back.insert(c, from);
        if let Some(t) = there.get_mut(usize::from(from)) {
            *t = bytes;
        }
    }
    Ok([Table::ToUtf8(there), Table::FromUtf8(back)])
}

/// Result of [`decode`]. The last field is its length in bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodedCharacter {
    /// A code point.
    Character(u32, usize),
    /// A sequence that is not UTF-8.
    Invalid(usize),
}

/// Decodes one character of UTF-8 as nginx does. Any byte above 0x7F is taken for a continuation, and surrogates are
/// accepted. An invalid sequence includes the byte that makes it invalid. Returns `None` if more bytes are needed.
pub fn decode(text: &[u8]) -> Option<DecodedCharacter> {
    let first = *text.first()?;
    let (len, bits, least) = match first {
        0..=0x7f => return Some(DecodedCharacter::Character(u32::from(first), 1)),
        // 0xc0 and 0xc1 could only begin overlong forms of ASCII, which are invalid (RFC 3629, section 3).
        0xc2..=0xdf => (2, first & 0x1f, 0x80),
        0xe0..=0xef => (3, first & 0x0f, 0x800),
        0xf0..=0xf7 => (4, first & 0x07, 0x1_0000),
        _ => return Some(DecodedCharacter::Invalid(1)),
    };
    let mut c = u32::from(bits);
    for (i, b) in text.get(1..len)?.iter().enumerate() {
        if *b < 0x80 {
            return Some(DecodedCharacter::Invalid(i + 2));
        }
        c = c << 6 | u32::from(b & 0x3f);
    }
    Some(if (least..=0x10_ffff).contains(&c) {
        DecodedCharacter::Character(c, len)
    } else {
        DecodedCharacter::Invalid(len)
    })
}

/// Body filter that converts from one charset to another.
struct Recode {
    table: Arc<Table>,
    /// Start of a character that was cut at the end of the last piece.
    pending: Vec<u8>,
}

impl BodyFilter for Recode {
    fn feed(&mut self, input: &[u8], _last: bool, out: &mut Vec<u8>) -> Result<(), FilterError> {
        match self.table.as_ref() {
            Table::Bytes(t) => out.extend(input.iter().map(|b| t[usize::from(*b)])),
            Table::ToUtf8(t) => {
                for b in input {
                    out.extend_from_slice(t.get(usize::from(*b)).map_or(b"?", Vec::as_slice));
                }
            }
            // Most pieces begin with a whole character, and are converted without a copy.
            Table::FromUtf8(t) if self.pending.is_empty() => from_utf8(t, input, &mut self.pending, out),
            Table::FromUtf8(t) => {
                let mut text = std::mem::take(&mut self.pending);
                text.extend_from_slice(input);
                from_utf8(t, &text, &mut self.pending, out);
            }
        }
        Ok(())
    }
}

fn from_utf8(t: &HashMap<u32, u8>, text: &[u8], pending: &mut Vec<u8>, out: &mut Vec<u8>) {
    let mut rest = text;
    while !rest.is_empty() {
        let used = match decode(rest) {
            None => return pending.extend_from_slice(rest),
            Some(DecodedCharacter::Invalid(n)) => {
                out.push(b'?');
                n
            }
            Some(DecodedCharacter::Character(c, n)) => {
                push_character(t, c, out);
                n
            }
        };
        rest = rest.get(used..).unwrap_or_default();
    }
}

/// Appends a character in the charset of a table, or a reference to it if the charset lacks it.
fn push_character(t: &HashMap<u32, u8>, c: u32, out: &mut Vec<u8>) {
    match (u8::try_from(c), t.get(&c)) {
        (Ok(b @ 0..=0x7f), _) => out.push(b),
        (_, Some(b)) => out.push(*b),
        // In HTML and XML, a reference shows the character all the same.
        _ => drop(write!(out, "&#{c};")),
    }
}

/// Charset that a response gets, and the table if its body has to be converted.
struct CharsetPlan {
    name: Vec<u8>,
    table: Option<Arc<Table>>,
}

/// Returns `true` if a location sets `charset`.
fn enabled(s: &LocationSettings) -> bool {
    SETTINGS.of(s).charset != Charset::Off
}

/// Returns the charset that the response is to have. `None` leaves the response as it is.
fn target(req: &mut Request, s: &Settings) -> Result<Option<Vec<u8>>, VarError> {
    let r = &req.resp;
    let forced = &r.override_charset;
    if forced.is_empty() && s.charset == Charset::Off {
        return Ok(None);
    }
    if r.content_type.is_empty() || !s.types.contains(&r.content_type) {
        return Ok(None);
    }
    if !forced.is_empty() {
        return Ok(Some(forced.to_vec()).filter(|forced| forced != b"off"));
    }
    if !r.charset.is_empty() && !s.override_charset {
        return Ok(None);
    }
    s.charset.name(req)
}

fn plan(req: &mut Request) -> Result<Option<CharsetPlan>, VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let Some(to) = target(req, s)? else { return Ok(None) };
    // A charset that the response names itself comes before `source_charset`, which is about responses that
    // name none.
    let own = !req.resp.charset.is_empty();
    let from = if own { Some(req.resp.charset.clone()) } else { s.source.name(req)? };
    let Some(from) = from.filter(|f| !f.eq_ignore_ascii_case(&to)) else {
        return Ok(Some(CharsetPlan { name: to, table: None }));
    };
    // The bytes of a coded body are not text, so converting them would destroy it.
    if req.resp.fields.get(b"Content-Encoding").is_some() {
        return Ok(None);
    }
    let table = http.parts.get::<Maps>().and_then(|maps| maps.find(&from, &to)).cloned();
    // An upstream may name any charset, but a pair of charsets in the configuration that has no map is a mistake worth a line in the log.
    if table.is_none() && !own {
        req.log(Level::Error, &format!("{} while sending response to client", no_map(&from, &to)));
    }
    Ok(table.map(|table| CharsetPlan { name: to, table: Some(table) }))
}

/// Returns the charset that the response is going to name, before the header filter has run.
pub fn planned(req: &mut Request) -> Option<Vec<u8>> {
    let http = req.http();
    if !enabled(&http.location(req).settings) {
        return None;
    }
    plan(req).ok().flatten().map(|p| p.name)
}

/// Returns `true` if only an upstream can ask for a charset here.
fn by_upstream(s: &LocationSettings) -> bool {
    !enabled(s)
}

/// Sets the charset in locations where only an upstream can ask for one (`X-Accel-Charset`).
///
/// # Errors
/// As [`filter`].
fn filter_upstream(req: &mut Request) -> Result<(), VarError> {
    if req.resp.override_charset.is_empty() { Ok(()) } else { filter(req) }
}

/// Sets the charset of the response and converts its body if necessary. A header filter.
///
/// # Errors
/// If a variable cannot be evaluated.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let Some(CharsetPlan { name, table }) = plan(req)? else { return Ok(()) };
    let r = &mut req.resp;
    // Old browsers used the charset of a redirect for the next page as well.
    if !matches!(r.status, 301 | 302) {
        r.charset = name;
    }
    let Some(table) = table else { return Ok(()) };
    if !matches!(*table, Table::Bytes(_)) {
        r.content_length = None;
        r.forbid_ranges();
    }
    r.filters.body.push(Box::new(Recode { table, pending: Vec::new() }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recode(table: Table, pieces: &[&[u8]]) -> Vec<u8> {
        let mut f = Recode { table: Arc::new(table), pending: Vec::new() };
        let mut out = Vec::new();
        for (i, p) in pieces.iter().enumerate() {
            f.feed(p, i + 1 == pieces.len(), &mut out).expect("never broken");
        }
        out
    }

    fn cyrillic() -> Table {
        Table::FromUtf8(HashMap::from([(0x430, 0xc1), (0x44f, 0xd1), (0x20ac, 0xff)]))
    }

    #[test]
    fn characters_without_a_byte_become_references() {
        assert_eq!(recode(cyrillic(), &["aа€é😀".as_bytes()]), b"a\xc1\xff&#233;&#128512;");
    }

    #[test]
    fn characters_may_be_cut_between_pieces() {
        let text = "aа€é😀z".as_bytes();
        let whole = recode(cyrillic(), &[text]);
        for i in 0..text.len() {
            for j in i..text.len() {
                assert_eq!(recode(cyrillic(), &[&text[..i], &text[i..j], &text[j..]]), whole);
            }
        }
    }

    #[test]
    fn wrong_sequences_become_question_marks_as_in_nginx() {
        let cases: [(&[u8], &[u8]); 12] = [
            (b"\xf8B", b"?B"),
            (b"\xe2\x82zB", b"?B"),
            (b"\xe2BCD", b"?CD"),
            (b"\xc0\x80B", b"??B"),
            (b"\xc0zB", b"?zB"),
            (b"\xed\xbf\xbf", b"&#57343;"),
            (b"\xf0\x80\x80\x80B", b"?B"),
            (b"\xf4\x90\x80\x80B", b"?B"),
            (b"\xc3\xc3B", b"&#195;B"),
            (b"\xe2\x82\xc3\xa9B", b"&#8323;?B"),
            (b"A\xe2z", b"A"),
            (b"A\xc2", b"A"),
        ];
        for (input, output) in cases {
            assert_eq!(recode(cyrillic(), &[input]), output, "{input:x?}");
        }
    }

    #[test]
    fn bytes_become_utf_8() {
        let mut t: Vec<Vec<u8>> = plain_bytes().iter().map(|b| vec![*b]).collect();
        t[0xc1] = "а".into();
        assert_eq!(recode(Table::ToUtf8(t), &[b"a\xc1\xc2"]), "aа?".as_bytes());
    }

    #[test]
    fn hexadecimal_is_read() {
        assert_eq!(hex(b"c1"), Some(vec![0xc1]));
        assert_eq!(hex(b"D0B0"), Some(vec![0xd0, 0xb0]));
        assert_eq!((hex(b"G0"), hex(b"")), (None, None));
    }
}
