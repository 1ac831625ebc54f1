//! Comparison of two answers to one request, of what upstreams received for it, and of its lines in logs.

use crate::message::{Answer, Field, Received, field, text};
use std::collections::BTreeMap;
use std::io::Read;

/// Part of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// No whole response.
    Failure,
    /// Status of the response.
    Status,
    /// A field of the response, in lower case.
    Field(String),
    /// Content of the response.
    Body,
    /// Number of requests to upstreams.
    Upstreams,
    /// Method, target and version of a request to an upstream.
    UpstreamLine,
    /// A field, or a parameter, of a request to an upstream.
    UpstreamField(String),
    /// Content of a request to an upstream.
    UpstreamBody,
    /// Blocks of the configuration that the request went through.
    Blocks,
    /// A line of an access log.
    Log(String),
}

impl Part {
    /// Returns its name for people.
    pub fn text(&self) -> String {
        match self {
            Part::Failure => "response".into(),
            Part::Status => "status".into(),
            Part::Field(name) => format!("field {name}"),
            Part::Body => "body".into(),
            Part::Upstreams => "requests to upstreams".into(),
            Part::UpstreamLine => "request line to the upstream".into(),
            Part::UpstreamField(name) => format!("field {name} to the upstream"),
            Part::UpstreamBody => "body to the upstream".into(),
            Part::Blocks => "blocks of the configuration".into(),
            Part::Log(name) => format!("line of {name}"),
        }
    }
}

/// A difference: what the first and the second server have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Place of the difference.
    pub part: Part,
    /// In the first one; `None`: nothing.
    pub first: Option<String>,
    /// In the second one.
    pub second: Option<String>,
    /// Other differences of the same exchange, of which this one may follow.
    pub beside: Beside,
}

/// Differences of an exchange of which others follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The upstream was asked over HTTP/1.0 by the first one and over HTTP/1.1 by the second one: the framing of its response differs.
    pub newer_upstream: bool,
    /// The upstream was told another host, which its response may name.
    pub other_host: bool,
}

impl Beside {
    /// Finds them among the differences of an exchange.
    pub(crate) fn of<'d>(differences: impl Iterator<Item = &'d Difference>) -> Beside {
        let mut beside = Beside::default();
        for d in differences {
            beside.newer_upstream |= d.is_newer_upstream();
            beside.other_host |= d.part == Part::UpstreamField("http_host".into());
        }
        beside
    }
}

impl Difference {
    pub(crate) fn new(part: Part, first: Option<String>, second: Option<String>) -> Difference {
        Difference { part, first, second, beside: Beside::default() }
    }

    /// Tells whether it is a request to an upstream over HTTP/1.1 in place of HTTP/1.0.
    pub(crate) fn is_newer_upstream(&self) -> bool {
        let line =
            |text: &Option<String>, version: &str| text.as_ref()?.strip_suffix(version).map(str::to_owned);
        self.part == Part::UpstreamLine
            && line(&self.first, " HTTP/1.0").is_some_and(|old| line(&self.second, " HTTP/1.1") == Some(old))
    }
}

/// Makes texts of the second server comparable with those of the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Normal {
    /// Texts of the second server, with those of the first in their place.
    pub(crate) replaced: Vec<(String, String)>,
}

impl Normal {
    fn text(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for (from, to) in &self.replaced {
            if out.contains(from.as_str()) {
                out = out.replace(from.as_str(), to);
            }
        }
        out
    }

    fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        let holds = |(from, _): &(String, String)| memchr::memmem::find(&bytes, from.as_bytes()).is_some();
        if !self.replaced.iter().any(holds) {
            return bytes;
        }
        match String::from_utf8(bytes) {
            Ok(text) => self.text(&text).into_bytes(),
            Err(e) => e.into_bytes(),
        }
    }

    fn fields(&self, fields: Vec<Field>) -> Vec<Field> {
        fields.into_iter().map(|(n, v)| (n, self.text(&v))).collect()
    }

    /// Returns an answer of the second server with the texts of the first.
    pub(crate) fn answer(&self, answer: Answer) -> Answer {
        let fields = self.fields(answer.fields);
        Answer { fields, body: self.bytes(answer.body), ..answer }
    }

    /// Returns requests to upstreams of the second server with the texts of the first.
    pub(crate) fn received(&self, received: Vec<Received>) -> Vec<Received> {
        let normal = |r: Received| Received {
            line: self.text(&r.line),
            fields: self.fields(r.fields),
            body: self.bytes(r.body),
            protocol: r.protocol,
        };
        received.into_iter().map(normal).collect()
    }

    /// Returns a line of a log of the second server with the texts of the first.
    pub(crate) fn line(&self, line: &str) -> String {
        self.text(line)
    }
}

/// Compares two answers.
pub(crate) fn answers(a: &Answer, b: &Answer) -> Vec<Difference> {
    if a == b {
        return Vec::new();
    }
    let mut out = Vec::new();
    if a.failure != b.failure {
        out.push(Difference::new(Part::Failure, a.failure.clone(), b.failure.clone()));
        if a.status == 0 || b.status == 0 {
            let status = |x: &Answer| (x.status > 0).then(|| x.status.to_string());
            if status(a) != status(b) {
                out.push(Difference::new(Part::Status, status(a), status(b)));
            }
            return out;
        }
    }
    if a.status != b.status {
        out.push(Difference::new(Part::Status, Some(a.status.to_string()), Some(b.status.to_string())));
        // All else follows from it.
        return out;
    }
    let bodies = bodies(a, b);
    let same_bodies = bodies.is_none();
    for difference in fields(&a.fields, &b.fields, Part::Field) {
        let length = difference.part == Part::Field("content-length".into());
        let of_bodies = !same_bodies && difference.first.is_some() && difference.second.is_some();
        if !(length && (of_bodies || follows(a, b, same_bodies))) {
            out.push(difference);
        }
    }
    out.extend(bodies);
    out
}

/// Returns `true` if the lengths of two answers differ only by the server's name in a built-in page.
fn follows(a: &Answer, b: &Answer, same_bodies: bool) -> bool {
    let length = |x: &Answer| field(&x.fields, "content-length").and_then(|v| v.parse::<i64>().ok());
    let (Some(la), Some(lb)) = (length(a), length(b)) else { return false };
    if !a.body.is_empty() {
        return same_bodies;
    }
    let name = |x: &Answer| field(&x.fields, "server").map_or(0, str::len) as i64;
    lb - la == name(b) - name(a)
}

/// Returns content without the server's name at the end of a built-in page.
fn unnamed(body: &[u8]) -> Vec<u8> {
    const BEGIN: &[u8] = b"<hr><center>";
    let Some(at) = memchr::memmem::rfind(body, BEGIN) else { return body.to_vec() };
    let (head, tail) = body.split_at(at + BEGIN.len());
    let end = memchr::memmem::find(tail, b"</center>").unwrap_or(0);
    let name = tail.get(..end).unwrap_or_default();
    if !(name.starts_with(b"nginx") || name.starts_with(b"forebay")) {
        return body.to_vec();
    }
    [head, tail.get(end..).unwrap_or_default()].concat()
}

fn decoded(answer: &Answer) -> Vec<u8> {
    if field(&answer.fields, "content-encoding") == Some("gzip") {
        let mut out = Vec::new();
        let decoder = flate2::read::MultiGzDecoder::new(answer.body.as_slice());
        if decoder.take(crate::message::MOST_BODY as u64).read_to_end(&mut out).is_ok() {
            return out;
        }
    }
    answer.body.clone()
}

fn bodies(a: &Answer, b: &Answer) -> Option<Difference> {
    if a.body == b.body {
        return None;
    }
    let (x, y) = (unnamed(&decoded(a)), unnamed(&decoded(b)));
    if x == y || x.split(|c| *c == b'\n').eq(y.split(|c| *c == b'\n')) || same_parts(a, &x, b, &y) {
        return None;
    }
    Some(Difference::new(Part::Body, Some(excerpt(&x, &y)), Some(excerpt(&y, &x))))
}

/// Returns `true` if two multipart bodies differ by their boundary only.
fn same_parts(a: &Answer, x: &[u8], b: &Answer, y: &[u8]) -> bool {
    let boundary = |answer: &Answer| {
        let kind = field(&answer.fields, "content-type")?;
        kind.split_once("boundary=").map(|(_, b)| b.to_owned())
    };
    match (boundary(a), boundary(b)) {
        (Some(p), Some(q)) => text(x).replace(&p, "") == text(y).replace(&q, ""),
        _ => false,
    }
}

/// Returns the place at which a text begins to differ from another.
fn excerpt(of: &[u8], other: &[u8]) -> String {
    let at = of.iter().zip(other).take_while(|(a, b)| a == b).count();
    let from = at.saturating_sub(20);
    let shown = of.get(from..of.len().min(at + 60)).unwrap_or_default();
    format!("{} bytes, at {at}: {}", of.len(), text(shown).escape_debug())
}

/// Returns values by name, in their order.
fn by_name(fields: &[Field]) -> BTreeMap<String, Vec<&str>> {
    let mut map: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in fields {
        map.entry(name.to_ascii_lowercase()).or_default().push(value);
    }
    map
}

fn fields(a: &[Field], b: &[Field], part: fn(String) -> Part) -> Vec<Difference> {
    if a == b {
        return Vec::new();
    }
    let (a, b) = (by_name(a), by_name(b));
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let mut out = Vec::new();
    for name in names {
        let (x, y) = (a.get(name), b.get(name));
        let joined = |v: &Vec<&str>| v.join(" | ");
        if x != y && !alike(name, x, y) {
            out.push(Difference::new(part(name.clone()), x.map(joined), y.map(joined)));
        }
    }
    out
}

/// Returns `true` for values that mean the same, or differ by the moment or by a random text.
fn alike(name: &str, a: Option<&Vec<&str>>, b: Option<&Vec<&str>>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return false };
    let date = |v: &str| forebay_http::date::parse(v.as_bytes());
    let near = |(x, y): (&&str, &&str)| match (date(x), date(y)) {
        (Some(x), Some(y)) => x.abs_diff(y) <= 5,
        _ => {
            x == y
                || (name == "set-cookie" && cookies_alike(x, y))
                || (name == "content-type" && boundaries(x, y))
                // Names of fields. nginx has them from the static table of QPACK over HTTP/3.
                || (name == "vary" && x.eq_ignore_ascii_case(y))
        }
    };
    a.len() == b.len() && a.iter().zip(b).all(near)
}

fn boundaries(x: &str, y: &str) -> bool {
    let head = |v: &str| v.split_once("boundary=").map(|(h, _)| h.to_owned());
    head(x).is_some_and(|h| head(y) == Some(h))
}

/// Returns `true` for cookies that differ in an expiry of about the same time only, or by the random value of `userid`.
fn cookies_alike(x: &str, y: &str) -> bool {
    let parts = |v: &str| v.split("; ").map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (parts(x), parts(y));
    let date = |v: &str| {
        let text = v.to_ascii_lowercase();
        let text = text.strip_prefix("expires=")?.replace('-', " ");
        Some(text.split(' ').nth(1)?.to_owned())
    };
    let identifier =
        |v: &str| v.split_once('=').filter(|(_, value)| value.len() == 24).map(|(n, _)| n.to_owned());
    let same = |(p, q): (&String, &String)| {
        p == q
            || date(p).is_some_and(|d| date(q) == Some(d))
            || identifier(p).is_some_and(|i| identifier(q) == Some(i))
    };
    a.len() == b.len() && a.iter().zip(&b).all(same)
}

/// Compares what upstreams received for a request.
pub(crate) fn upstreams(a: &[Received], b: &[Received]) -> Vec<Difference> {
    if a == b {
        return Vec::new();
    }
    if a.len() != b.len() {
        let lines = |r: &[Received]| {
            let lines: Vec<String> = r.iter().map(|r| format!("{} {}", r.protocol, r.line)).collect();
            Some(format!("{}: {}", r.len(), lines.join(", ")))
        };
        return vec![Difference::new(Part::Upstreams, lines(a), lines(b))];
    }
    let order = |list: &[Received]| {
        let mut list: Vec<Received> = list.to_vec();
        // Requests of one client's request, as a mirror makes, may come in any order.
        list.sort_by(|x, y| x.line.cmp(&y.line));
        list
    };
    let mut out = Vec::new();
    for (x, y) in order(a).iter().zip(order(b)) {
        let line = |r: &Received| Some(format!("{} {}", r.protocol, r.line));
        if line(x) != line(&y) {
            out.push(Difference::new(Part::UpstreamLine, line(x), line(&y)));
        }
        if x.protocol != y.protocol {
            // Their fields have nothing in common.
            continue;
        }
        out.extend(fields(&x.fields, &y.fields, Part::UpstreamField));
        if x.body != y.body {
            let (p, q) = (excerpt(&x.body, &y.body), excerpt(&y.body, &x.body));
            out.push(Difference::new(Part::UpstreamBody, Some(p), Some(q)));
        }
    }
    out
}

/// Compares lines of a log. `lengths` are those of both bodies, and what a server may count beyond them. The lengths of bodies, which
/// differ with the server's name in a built-in page, count as equal, whatever stands around them.
pub(crate) fn lines(
    log: &str,
    a: &[String],
    b: &[String],
    lengths: ([[usize; 2]; 2], usize),
) -> Option<Difference> {
    let is_same = a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x == y || is_line(x, y, lengths));
    (!is_same).then(|| Difference::new(Part::Log(log.to_owned()), some(a), some(b)))
}

/// Returns `true` if two lines differ in nothing but the lengths of the bodies.
fn is_line(a: &str, b: &str, ([first, second], slack): ([[usize; 2]; 2], usize)) -> bool {
    let is_length = |part: &str, lengths: [usize; 2]| {
        part.parse().is_ok_and(|n: usize| lengths.iter().any(|l| (*l..=l + slack).contains(&n)))
    };
    let (a, b) = (numbers(a), numbers(b));
    a.len() == b.len()
        && a.iter().zip(&b).all(|(x, y)| x == y || (is_length(x, first) && is_length(y, second)))
}

/// Returns the parts of a line: numbers, and what is between them.
fn numbers(line: &str) -> Vec<&str> {
    let is_digit = |c: &u8| c.is_ascii_digit();
    let parts = line.as_bytes().chunk_by(|x, y| is_digit(x) == is_digit(y));
    // A part begins and ends at the side of a digit, so it is text.
    parts.filter_map(|part| std::str::from_utf8(part).ok()).collect()
}

fn some(lines: &[String]) -> Option<String> {
    (!lines.is_empty()).then(|| lines.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(fields: &[(&str, &str)], body: &str) -> Answer {
        let fields = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Answer { status: 200, fields, body: body.into(), ..Answer::default() }
    }

    #[test]
    fn pages_differ_by_the_servers_name_alone() {
        let a = answer(
            &[("Server", "nginx/1.2"), ("Content-Length", "33")],
            "x<hr><center>nginx/1.2</center>\r\n",
        );
        let b = answer(
            &[("Server", "forebay/0.2.0"), ("Content-Length", "37")],
            "x<hr><center>forebay/0.2.0</center>\r\n",
        );
        let found = answers(&a, &b);
        assert_eq!(found.iter().map(|d| d.part.clone()).collect::<Vec<_>>(), [Part::Field("server".into())]);
        let other = Answer { body: b"y".to_vec(), ..b };
        assert!(answers(&a, &other).iter().any(|d| d.part == Part::Body));
    }

    #[test]
    fn moments_are_alike_and_days_are_not() {
        let at = |date: &str| answer(&[("Expires", date)], "");
        let first = at("Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(answers(&first, &at("Sun, 06 Nov 1994 08:49:38 GMT")).is_empty());
        assert_eq!(answers(&first, &at("Mon, 07 Nov 1994 08:49:37 GMT")).len(), 1);
    }

    #[test]
    fn a_status_hides_what_follows_from_it() {
        let a = answer(&[("A", "1")], "x");
        let b = Answer { status: 404, ..answer(&[], "y") };
        assert_eq!(answers(&a, &b).len(), 1);
    }

    #[test]
    fn requests_to_upstreams() {
        let one = Received {
            line: "GET / HTTP/1.1".into(),
            fields: vec![("A".into(), "1".into())],
            ..Received::default()
        };
        let other =
            Received { fields: vec![("a".into(), "1".into()), ("B".into(), "2".into())], ..one.clone() };
        let found = upstreams(std::slice::from_ref(&one), &[other]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].part, Part::UpstreamField("b".into()));
        let scgi = Received { protocol: "SCGI", fields: Vec::new(), ..one.clone() };
        let found = upstreams(std::slice::from_ref(&one), &[scgi]);
        assert_eq!(found.iter().map(|d| &d.part).collect::<Vec<_>>(), [&Part::UpstreamLine]);
        assert_eq!(upstreams(&[one], &[])[0].part, Part::Upstreams);
    }

    #[test]
    fn lines_with_other_lengths() {
        let line = |n: &str| vec![format!("\"GET / HTTP/1.1\" 404 {n} \"-\"")];
        assert_eq!(lines("a", &line("153"), &line("157"), ([[153; 2], [157; 2]], 0)), None);
        assert!(lines("a", &line("153"), &line("158"), ([[153; 2], [157; 2]], 0)).is_some());
        let bracket = |n: &str| vec![format!("[Client ::1] [Length {n}] [Größe \"{n}\"] /a153")];
        assert_eq!(lines("a", &bracket("153"), &bracket("157"), ([[153; 2], [157; 2]], 0)), None);
        assert!(lines("a", &bracket("153"), &bracket("-"), ([[153; 2], [157; 2]], 0)).is_some());
        assert!(lines("a", &line("153"), &[], ([[153; 2], [157; 2]], 0)).is_some());
    }
}
