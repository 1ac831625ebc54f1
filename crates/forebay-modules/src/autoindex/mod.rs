//! `autoindex` (nginx: ngx_http_autoindex_module).

mod directory;
mod page;

pub(super) use directory::visit;

use crate::charset;
use directory::{Listed, Listing, Type};
use forebay_conf::error::Level;
use forebay_core::keyword;
use forebay_http::request::Method;
use forebay_http::uri::escape_html;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::modules::static_file;
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use rustix::io::Errno;
use std::io::Write;

forebay_server::module_settings! {
    /// `autoindex`.
    "autoindex" => enabled: bool = false;
    /// `autoindex_format`.
    "autoindex_format" => format: Format = Format::Html;
    /// `autoindex_localtime`: whether the HTML listing shows local times.
    "autoindex_localtime" => localtime: bool = false;
    /// `autoindex_exact_size`: whether the HTML listing shows sizes in bytes.
    "autoindex_exact_size" => exact_size: bool = true;
}

/// `autoindex`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Content, |s| SETTINGS.of(s).enabled, answer)],
    ..Module::NONE
};

keyword! {
    /// Form of a listing.
    pub enum Format { Html = "html", Json = "json", Jsonp = "jsonp", Page = "page", Xml = "xml", }
}

impl Format {
    fn media_type(self, callback: Option<&[u8]>) -> &'static [u8] {
        match self {
            Format::Html | Format::Page => b"text/html",
            Format::Xml => b"text/xml",
            Format::Jsonp if callback.is_some() => b"application/javascript",
            Format::Json | Format::Jsonp => b"application/json",
        }
    }
}

/// Columns that a name takes in the HTML listing; longer ones are cut.
const NAME_WIDTH: usize = 50;
/// Columns left of a name that was cut; `..>` takes the rest.
const NAME_CUT: usize = NAME_WIDTH - 3;

/// Answers a path that ends in a slash.
fn answer(req: &mut Request) -> Step<'_> {
    if req.uri.path.last() != Some(&b'/') || !matches!(req.method, Method::Get | Method::Head) {
        return Verdict::Declined.into();
    }
    Step::later(async { run(req).await.into() })
}

/// Answers with an index file, or with a listing of the directory.
async fn run(req: &mut Request) -> Outcome {
    if let Some(out) = static_file::index(req).await {
        return out;
    }
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    match list(req, s).await {
        Ok(()) => Outcome::Done,
        Err(refused) => refused,
    }
}

async fn list(req: &mut Request, s: &Settings) -> Result<(), Outcome> {
    let callback = match s.format {
        Format::Jsonp => callback_of(req)?,
        _ => None,
    };
    let entries = read_directory(req, Listing::read).await?;
    respond(req, s, &entries, callback.as_deref());
    Ok(())
}

/// Returns the function that a JSONP response calls.
fn callback_of(req: &mut Request) -> Result<Option<Vec<u8>>, Outcome> {
    match callback(&req.uri.args) {
        Ok(name) => Ok(name.map(<[u8]>::to_vec)),
        Err(name) => {
            let text = format!("client sent invalid callback name: \"{}\"", String::from_utf8_lossy(name));
            req.log(Level::Info, &text);
            Err(Outcome::Status(400))
        }
    }
}

/// Reads the directory of the request's path on the blocking pool, with `read`.
///
/// # Errors
/// The response to a failure, which has been logged.
pub(super) async fn read_directory<T: Send + 'static>(
    req: &mut Request,
    read: fn(&[u8]) -> Result<T, Errno>,
) -> Result<T, Outcome> {
    let mut path = Vec::new();
    static_file::map_path(req, &mut path).map_err(|_| Outcome::Status(500))?;
    while path.len() > 1 && path.last() == Some(&b'/') {
        path.pop();
    }
    let dir = path.clone();
    match tokio::task::spawn_blocking(move || read(&dir)).await {
        Ok(found) => found.map_err(|e| failed(req, &path, e)),
        Err(_) => Err(Outcome::Status(500)),
    }
}

/// Logs that a directory cannot be read and returns the status.
fn failed(req: &mut Request, path: &[u8], e: Errno) -> Outcome {
    let (status, level) = match e {
        Errno::ACCESS => (403, Level::Error),
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => (404, Level::Error),
        _ => (500, Level::Crit),
    };
    let text = String::from_utf8_lossy(path).into_owned();
    req.log(level, &format!("opendir() \"{text}\" failed {}", forebay_sys::errno::errno_text(e)));
    Outcome::Status(status)
}

/// Returns the `callback` argument.
///
/// # Errors
/// The argument, if it has characters that a function name cannot have: it could inject a script.
fn callback(args: &[u8]) -> Result<Option<&[u8]>, &[u8]> {
    let value = args.split(|b| *b == b'&').find_map(|a| {
        let (name, value) = a.split_at_checked(9)?;
        name.eq_ignore_ascii_case(b"callback=").then_some(value)
    });
    match value {
        None | Some(b"") => Ok(None),
        Some(v) if v.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')) => {
            Ok(Some(v))
        }
        Some(v) => Err(v),
    }
}

fn respond(req: &mut Request, s: &Settings, entries: &Listing, callback: Option<&[u8]>) {
    req.resp.status = 200;
    req.resp.content_type = s.format.media_type(callback).to_vec();
    let is_utf8 = matches!(s.format, Format::Xml | Format::Page);
    req.resp.charset = if is_utf8 { b"utf-8".to_vec() } else { Vec::new() };
    // As in nginx, this is the current offset, even if another one applied when the file was changed.
    let offset = if s.localtime { i64::from(req.thread.clock.offset(req.thread.clock.unix())) } else { 0 };
    let mut out = Vec::with_capacity(1024 + entries.len() * 200);
    match s.format {
        Format::Html => {
            // Names are cut by characters only where the browser reads them as UTF-8. The header filter that
            // sets the charset has not run yet.
            let utf8 = charset::planned(req).is_some_and(|c| c.eq_ignore_ascii_case(b"utf-8"));
            html(&req.uri.path, entries, s.exact_size, utf8, offset, &mut out);
        }
        Format::Page => {
            let look = page::Look { path: &req.uri.path, args: &req.uri.args, exact: s.exact_size, offset };
            page::page(&look, entries, &mut out);
        }
        Format::Xml => xml(entries, &mut out),
        Format::Json | Format::Jsonp => json(entries, callback, &mut out),
    }
    req.resp.set_body(out);
    // nginx sends the head before it makes the listing, so its responses have no length, either.
    req.resp.content_length = None;
}

fn html(uri: &[u8], entries: &Listing, exact: bool, utf8: bool, offset: i64, out: &mut Vec<u8>) {
    let mut title = Vec::new();
    escape_html(uri, &mut title);
    for piece in [
        b"<html>\r\n<head><title>Index of ".as_slice(),
        &title,
        b"</title></head>\r\n<body>\r\n<h1>Index of ",
        &title,
    ] {
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    let mut dates = Dates::default();
    for e in entries.iter() {
        html_line(&e, exact, utf8, dates.at(e.mtime.saturating_add(offset)), out);
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
}

/// Dates of lines, one after the other. Files of one directory often have the date in common, and only their times are computed then.
#[derive(Default)]
struct Dates {
    /// Days since 1970 of the text.
    day: Option<i64>,
    /// ` 06-Nov-1994 08:49 `.
    text: [u8; 19],
}

impl Dates {
    const DAY: i64 = 86_400;

    /// Returns the text for a time in seconds since 1970.
    fn at(&mut self, unix: i64) -> &[u8; 19] {
        let (day, of_day) = (unix.div_euclid(Dates::DAY), unix.rem_euclid(Dates::DAY));
        if self.day == Some(day) {
            // The listing shows whole minutes.
            let digit = |n: i64| b'0' + (n % 10) as u8;
            let (hour, minute) = (of_day / 3_600, of_day / 60 % 60);
            let time = [digit(hour / 10), digit(hour), b':', digit(minute / 10), digit(minute)];
            self.text[13..18].copy_from_slice(&time);
            return &self.text;
        }
        // Times that no date has become the nearest one that has.
        self.day = Some(day).filter(|_| (0..=forebay_http::date::LAST).contains(&unix));
        // The parts of an HTTP date are at fixed places, and the listing shows four of them in another order.
        let date = forebay_http::date::imf(unix);
        self.text = *b" ..-...-.... ..:.. ";
        for (to, part) in [(1..3, 5..7), (4..7, 8..11), (8..12, 12..16), (13..18, 17..22)] {
            self.text[to].copy_from_slice(&date[part]);
        }
        &self.text
    }
}

/// Appends the text of a link, cut or filled to its width, and the end of the link.
fn push_label(e: &Listed<'_>, slash: &[u8], utf8: bool, out: &mut Vec<u8>) {
    let width = if utf8 { chars(e.name) } else { e.name.len() };
    if width > NAME_WIDTH {
        let end = if utf8 { offset_of_char(e.name, NAME_CUT) } else { NAME_CUT };
        escape_html(e.name.get(..end).unwrap_or(e.name), out);
        out.extend_from_slice(b"..&gt;</a>");
        return;
    }
    // A name that fills the column leaves no room for the slash.
    let slash = if width < NAME_WIDTH { slash } else { b"" };
    escape_html(e.name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"</a>");
    out.resize(out.len() + NAME_WIDTH - width - slash.len(), b' ');
}

fn html_line(e: &Listed<'_>, exact: bool, utf8: bool, date: &[u8], out: &mut Vec<u8>) {
    let slash: &[u8] = if e.kind == Type::Directory { b"/" } else { b"" };
    out.extend_from_slice(b"<a href=\"");
    escape_name(e.name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"\">");
    push_label(e, slash, utf8, out);
    out.extend_from_slice(date);
    match (exact, e.kind) {
        (true, Type::Directory) => push_right(b"-", 19, out),
        (true, _) => push_right(itoa::Buffer::new().format(e.size).as_bytes(), 19, out),
        (false, Type::Directory) => push_right(b"-", 7, out),
        (false, _) => short_size(e.size, out),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a size in seven columns, rounded to a unit if it has more than four digits.
fn short_size(size: u64, out: &mut Vec<u8>) {
    const UNITS: [(u64, u64, u8); 3] =
        [(1 << 30, (1 << 30) - 1, b'G'), (1 << 20, (1 << 20) - 1, b'M'), (1 << 10, 9999, b'K')];
    let mut digits = itoa::Buffer::new();
    match UNITS.iter().find(|(_, above, _)| size > *above) {
        Some((unit, _, letter)) => {
            let rounded = size / unit + u64::from(size % unit > unit / 2 - 1);
            push_right(digits.format(rounded).as_bytes(), 6, out);
            out.push(*letter);
        }
        None => push_right(digits.format(size).as_bytes(), 7, out),
    }
}

/// Appends a text at the right of a column.
fn push_right(text: &[u8], width: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + width.saturating_sub(text.len()), b' ');
    out.extend_from_slice(text);
}

/// Escapes a name as one segment of a URI.
fn escape_name(name: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    const PLAIN: [bool; 256] = {
        let mut plain = [false; 256];
        let mut b = 0;
        while b < 256 {
            plain[b] = (b as u8).is_ascii_alphanumeric() || matches!(b as u8, b'-' | b'.' | b'_' | b'~');
            b += 1;
        }
        plain
    };
    let is_plain = |b: &u8| PLAIN[usize::from(*b)];
    // Most names need no escape.
    if name.iter().all(is_plain) {
        return out.extend_from_slice(name);
    }
    for run in name.chunk_by(|a, b| is_plain(a) && is_plain(b)) {
        match run {
            [b] if !is_plain(b) => {
                out.extend_from_slice(&[b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
            }
            plain => out.extend_from_slice(plain),
        }
    }
}

/// Returns the number of characters of a UTF-8 text, or its length in bytes if it is not UTF-8.
fn chars(name: &[u8]) -> usize {
    ends_of_chars(name).map_or(name.len(), |ends| ends.len())
}

/// Returns the offset after the n-th character.
fn offset_of_char(name: &[u8], n: usize) -> usize {
    ends_of_chars(name).map_or(n, |ends| ends.get(n.wrapping_sub(1)).copied().unwrap_or(name.len()))
}

/// Returns the offset after each character. Returns `None` if the text is not UTF-8 by the lax rules of
/// [`charset::decode`].
fn ends_of_chars(name: &[u8]) -> Option<Vec<usize>> {
    let (mut ends, mut at) = (Vec::new(), 0);
    while at < name.len() {
        match charset::decode(name.get(at..)?)? {
            charset::DecodedCharacter::Character(_, n) => at += n,
            charset::DecodedCharacter::Invalid(_) => return None,
        }
        ends.push(at);
    }
    Some(ends)
}

fn xml(entries: &Listing, out: &mut Vec<u8>) {
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for e in entries.iter() {
        let (tag, size) = match e.kind {
            Type::Directory => ("directory", String::new()),
            Type::File => ("file", format!(" size=\"{}\"", e.size)),
            Type::Other => ("other", String::new()),
        };
        let date = forebay_http::date::iso8601(e.mtime, 0);
        let date = String::from_utf8_lossy(date.get(..19).unwrap_or_default()).into_owned();
        let _ = write!(out, "<{tag} mtime=\"{date}Z\"{size}>");
        escape_html(e.name, out);
        let _ = write!(out, "</{tag}>\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
}

fn json(entries: &Listing, callback: Option<&[u8]>, out: &mut Vec<u8>) {
    if let Some(c) = callback {
        out.extend_from_slice(b"/* callback */\r\n");
        out.extend_from_slice(c);
        out.push(b'(');
    }
    out.push(b'[');
    for (i, e) in entries.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"\r\n".as_slice() } else { b",\r\n" });
        json_entry(&e, out);
    }
    out.extend_from_slice(b"\r\n]");
    if callback.is_some() {
        out.extend_from_slice(b");");
    }
}

fn json_entry(e: &Listed<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{ \"name\":\"");
    escape_json(e.name, out);
    let (kind, size) = match e.kind {
        Type::Directory => ("directory", String::new()),
        Type::File => ("file", format!(", \"size\":{}", e.size)),
        Type::Other => ("other", String::new()),
    };
    let date = forebay_http::date::imf(e.mtime);
    let date = String::from_utf8_lossy(&date);
    let _ = write!(out, "\", \"type\":\"{kind}\", \"mtime\":\"{date}\"{size} }}");
}

/// Characters of a JSON string that have a short escape: a backslash and the byte given here.
const JSON_ESCAPES: [(u8, u8); 7] =
    [(b'"', b'"'), (b'\\', b'\\'), (b'\n', b'n'), (b'\r', b'r'), (b'\t', b't'), (0x08, b'b'), (0x0c, b'f')];

/// Escapes text for a JSON string as nginx does.
fn escape_json(text: &[u8], out: &mut Vec<u8>) {
    for b in text {
        match (b, JSON_ESCAPES.iter().find(|(plain, _)| plain == b)) {
            (_, Some((_, short))) => out.extend_from_slice(&[b'\\', *short]),
            // RFC 8259, section 7: control characters have to be escaped, any other byte stays as it is in
            // the file system.
            (0..=0x1f, None) => drop(write!(out, "\\u{b:04X}")),
            (_, None) => out.push(*b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, kind: Type, size: u64, exact: bool, utf8: bool) -> String {
        let mut out = Vec::new();
        html_line(
            &Listed { name: name.as_bytes(), kind, size, mtime: 1_600_000_000 },
            exact,
            utf8,
            Dates::default().at(1_600_000_000),
            &mut out,
        );
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn lines_have_columns() {
        let file = format!("<a href=\"a\">a</a>{} 13-Sep-2020 12:26                   7\r\n", " ".repeat(49));
        assert_eq!(line("a", Type::File, 7, true, false), file);
        let dir = format!("<a href=\"d/\">d/</a>{} 13-Sep-2020 12:26       -\r\n", " ".repeat(48));
        assert_eq!(line("d", Type::Directory, 7, false, false), dir);
    }

    #[test]
    fn dates_are_the_parts_of_http_dates() {
        let mut dates = Dates::default();
        let day = 86_400;
        let last = forebay_http::date::LAST;
        for unix in [
            0,
            1,
            59,
            60,
            day - 1,
            day,
            -1,
            -day,
            5,
            951_782_399,
            951_782_400,
            last,
            last + 1,
            last - 60,
            i64::MAX,
            i64::MIN,
            3,
        ] {
            let date = String::from_utf8(forebay_http::date::imf(unix).to_vec()).expect("text");
            let expected = format!(" {}-{}-{} {} ", &date[5..7], &date[8..11], &date[12..16], &date[17..22]);
            assert_eq!(String::from_utf8_lossy(dates.at(unix)), expected, "{unix}");
        }
    }

    #[test]
    fn long_names_are_cut_by_characters_where_the_charset_is_known() {
        let name = "é".repeat(50);
        assert!(line(&name, Type::File, 0, true, false).contains("..&gt;</a> 13"));
        assert!(line(&name, Type::File, 0, true, true).contains(&format!(">{name}</a> 13")));
        let long = "é".repeat(51);
        assert!(
            line(&long, Type::File, 0, true, true).contains(&format!(">{}..&gt;</a> 13", "é".repeat(47)))
        );
    }

    #[test]
    fn sizes_are_rounded() {
        let short = |n| {
            let mut out = Vec::new();
            short_size(n, &mut out);
            String::from_utf8(out).unwrap().trim().to_string()
        };
        let cases = [
            (0, "0"),
            (9999, "9999"),
            (10000, "10K"),
            (1_048_575, "1024K"),
            (1_048_576, "1M"),
            (1_572_863, "1M"),
        ];
        for (n, text) in
            cases.into_iter().chain([(1_572_864, "2M"), ((1 << 30) - 1, "1024M"), (1 << 30, "1G")])
        {
            assert_eq!(short(n), text);
        }
    }

    #[test]
    fn callbacks_are_names() {
        assert_eq!(callback(b"x=1&callback=foo"), Ok(Some(b"foo".as_slice())));
        assert_eq!(callback(b"callback="), Ok(None));
        assert_eq!(callback(b"x"), Ok(None));
        assert_eq!(callback(b"callback=a(b)"), Err(b"a(b)".as_slice()));
    }

    #[test]
    fn json_is_escaped() {
        let mut out = Vec::new();
        escape_json(b"a\"\\\n\x01\xff", &mut out);
        assert_eq!(out, b"a\\\"\\\\\\n\\u0001\xff");
    }
}
