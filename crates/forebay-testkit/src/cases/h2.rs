//! Requests over HTTP/2 of tables, on one connection; with `each` behind the kind, each row on its own:
//! `METHOD TARGET[ | NAME: VALUE]...[ | "CONTENT"...][ | open] => EXPECTED[ | EXPECTED]...`.
//!
//! Streams have the numbers 1, 3 and so on. Names may be those of pseudo-header fields. Each piece of content is a frame; `open` leaves
//! the stream open behind them. Expected are: `404`: the status; `NAME: VALUE`; `!NAME`; `trailer NAME: VALUE`; a text of the content, see
//! [`text`](super::text); `content LENGTH`: its length; `reset CODE`: the reset that ends the stream; `then reset CODE`: one behind the
//! answer. All that is expected of no reset holds for answers that end.
//!
//! Values have the escapes of strings. Other rows are `frame KIND FLAGS STREAM "BYTES"`, which is sent so, and several times with `20x `
//! before it; `reset STREAM CODE`: a reset that comes; `answer STREAM => ...`, an answer to a request before; and
//! `ends`: the connection does; `goodbye CODE`, `goodbye none`: the code of the last GOAWAY, and none, before the connection ends.

use super::row::{split, string, unescape};
use super::text;
use crate::Server;
use crate::h2::{Answer, Client};
use forebay_http::h2::frame::{flag, kind};

/// A connection, and the number of its next stream.
struct Connection {
    client: Client,
    next: u32,
}

impl Connection {
    fn new(server: &Server) -> Connection {
        Connection { client: Client::new(server), next: 1 }
    }

    fn row(&mut self, row: &str) -> Result<(), String> {
        let sides = split(row, " => ");
        let mut parts = split(sides[0], " | ").into_iter().map(str::trim);
        let line = parts.next().unwrap_or_default();
        let words: Vec<&str> = match line.contains("x frame ") {
            true => line.splitn(3, ' ').collect(),
            false => line.splitn(5, ' ').collect(),
        };
        let stream = match words[..] {
            [count, "frame", ..] => {
                let count: usize = count.trim_end_matches('x').parse().expect("a number");
                let frame = line.split_once(' ').expect("a frame").1;
                return (0..count).try_for_each(|_| self.row(frame));
            }
            ["frame", kind, flags, stream, bytes] => {
                let bytes = string(bytes).expect("a string");
                let number = |text: &str| text.parse().expect("a number");
                self.client.frame(number(kind), number(flags), number(stream) as u32, &bytes);
                return Ok(());
            }
            ["ends"] => {
                while self.client.next().is_some() {}
                let end = std::io::Read::read(&mut self.client.stream, &mut [0]);
                return matches!(end, Ok(0)).then_some(()).ok_or(format!("{row}: {end:?}\n"));
            }
            ["goodbye", code] => {
                let got = self.client.goodbye();
                let fits = got.map_or("none".to_owned(), |got| got.to_string()) == code;
                return fits.then_some(()).ok_or(format!("{row}: {got:?}\n"));
            }
            ["reset", stream, code] => {
                let frames = std::iter::from_fn(|| self.client.next());
                let mut resets =
                    frames.filter(|f| f.kind == kind::RST_STREAM && f.stream.to_string() == stream);
                let got = resets.next().map(|f| f.code().to_string());
                return (got.as_deref() == Some(code)).then_some(()).ok_or(format!("{row}: {got:?}\n"));
            }
            ["answer", stream] => stream.parse().expect("a number"),
            [method, target] => self.ask(method, target, parts),
            _ => panic!("no row {row}"),
        };
        let Some(expected) = sides.get(1) else { return Ok(()) };
        let answer = self.client.answer(stream);
        for expected in split(expected, " | ") {
            if !self.holds(expected.trim(), stream, &answer) {
                return Err(format!("{row}: not {expected}: {answer:?}\n"));
            }
        }
        Ok(())
    }

    /// Sends a request, and returns its stream.
    fn ask<'a>(&mut self, method: &str, target: &str, parts: impl Iterator<Item = &'a str>) -> u32 {
        let field = |name: &str, value: &str| (name.to_owned(), unescape(value));
        let (mut fields, mut pieces, mut open) = (vec![field(":method", method)], Vec::new(), false);
        for part in parts {
            match (string(part), part.get(1..).and_then(|rest| rest.find(": "))) {
                (Some(piece), _) => pieces.push(piece),
                (None, Some(at)) => fields.push(field(&unescape(&part[..=at]), &part[at + 3..])),
                (None, None) => open = part == "open",
            }
        }
        let stream = self.next;
        self.next += 2;
        let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        self.client.request(stream, target, &fields, pieces.is_empty() && !open);
        for (n, piece) in pieces.iter().enumerate() {
            let last = n + 1 == pieces.len() && !open;
            self.client.frame(kind::DATA, if last { flag::END_STREAM } else { 0 }, stream, piece);
        }
        stream
    }

    fn holds(&mut self, expected: &str, stream: u32, answer: &Answer) -> bool {
        let (word, rest) = expected.split_once(' ').unwrap_or((expected, ""));
        if let ("reset", Ok(code)) = (word, rest.parse()) {
            return answer.reset == Some(code);
        }
        if !answer.ended {
            return false;
        }
        let has = |fields: &[(String, String)], line: &str| {
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            fields.iter().any(|(n, v)| n == name && v == value)
        };
        let of_body = expected.starts_with(['"', '~', '.']) || expected.starts_with("!~");
        match word {
            _ if of_body => text::holds(expected, &String::from_utf8_lossy(&answer.body)),
            "trailer" => has(&answer.trailers, rest),
            "content" => answer.body.len().to_string() == rest,
            "then" => {
                let frames = std::iter::from_fn(|| self.client.next());
                let mut resets = frames.filter(|f| f.kind == kind::RST_STREAM && f.stream == stream);
                resets.next().is_some_and(|f| format!("reset {}", f.code()) == rest)
            }
            _ if word.parse::<u16>().is_ok() => answer.field(":status") == word,
            _ => match word.strip_prefix('!') {
                Some(name) => {
                    let named = |(n, _): &(String, String)| n.eq_ignore_ascii_case(name);
                    !answer.fields.iter().any(named) && !answer.trailers.iter().any(named)
                }
                None => has(&answer.fields, expected),
            },
        }
    }
}

/// Carries out rows.
pub(super) fn check(rows: &[String], argument: &str, server: &Server) {
    let mut connection = Connection::new(server);
    let mut all = String::new();
    for row in rows {
        if argument == "each" {
            connection = Connection::new(server);
        }
        all.push_str(&connection.row(row).err().unwrap_or_default());
    }
    assert!(all.is_empty(), "{all}\n{}", server.error_log());
}
