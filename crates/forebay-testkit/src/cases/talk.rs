//! Conversations of tables, over connections that stay open from one section to the next: `[COUNTx ]NAME[@AT] ACTION[ | ACTION]...`.
//!
//! The name is that of a connection, which is opened at its first action; that of the name `-` is there for its row alone. `AT` is the
//! number of a port, 0 if it is left out, or the name of a unix socket; `udp` before it is for datagrams: `@1`, `@udp0`, `@u.sock`,
//! `@udp:u.sock` (from a socket of the connection's name, in the abstract namespace if that is `abstract`), `@udp:127.0.0.7:%PORT0%`.
//! Actions are:
//!
//! - `sends "BYTES"`, `trickles "BYTES"`: each byte by itself; `gets TARGET`: a request of HTTP/1 that goes on;
//! - `reads "BYTES"`: so many bytes that come, or the next datagram; `reads ..."TEXT"`: all up to a text;
//! - `ends EXPECTED`: all up to the end, see [`text`](super::text), where a reset is an end, too; `closed`: the end, at once if something
//!   comes; `refused`: the server sends nothing for a datagram, and its port is closed;
//! - `shuts`: ends its own direction; `resets`; `leaves`; `opens`: nothing; `from ADDRESS`: that is where the other end is; `pauses
//!   MILLISECONDS`; `skips COUNT`: reads so many bytes, whatever they are;
//! - `lacks NAME "TEXT"`: the text of a name has no such part;
//! - `hello NAME`: sends a ClientHello with a name in single bytes;
//! - `as NAME[@AT]`: the actions behind it are those of another connection; `reloads`: the server reads its configuration again, and the
//!   next action waits for that.
//!
//! A test is also the other side of upstreams: `U accepts C`, where `U` is one of the kind `accepts`, takes the next connection to it and
//! names it `C`; and one of the kind `listens` has the actions `reads` and `sends`, which goes to the client of the last datagram, or to
//! that of a name: `U keeps NAME`, `U sends "BYTES" to NAME`.
//!
//! `{NAME}` in what is read stands for any text where it comes up first, and for the same text from there on, also in what is sent;
//! `{NEW!NAME}` for a text that is another, which may have a name or none; `{*}` for any text. `{NAME:1}` is for texts of a length.
//! `{C.port}` is the port of the connection `C`, and
//! `{C.bytes}` its two bytes. A row that is
//! there several times has the number of each, from 0, for `#`.

use super::row::{split, string};
use super::socket::{Socket, open};
use super::text;
use super::upstreams::Upstream;
use crate::{Server, reset};
use std::collections::HashMap;
use std::io::Read;
use std::net::{Shutdown, SocketAddr};

/// Connections that are open, and texts that have names.
#[derive(Default)]
pub(super) struct Talks {
    open: HashMap<String, Socket>,
    values: HashMap<String, String>,
    /// Clients of upstreams.
    clients: HashMap<String, SocketAddr>,
}

/// Part of a text that is expected.
enum Part<'a> {
    Literal(&'a str),
    /// The text of a name.
    Same(&'a str),
    /// The same, and its length.
    Sized(&'a str, usize),
    /// A text that is not that of the second name, and gets the first.
    Other(&'a str, &'a str),
}

/// Returns a text with a character for each byte.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Splits a text at its names.
fn parts(mut text: &str) -> Vec<Part<'_>> {
    let mut all = Vec::new();
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.')
    };
    let mut from = 0;
    while let Some(at) = text[from..].find('{').map(|at| from + at) {
        let inside = text[at + 1..].split('}').next().unwrap_or_default();
        let end = at + 1 + inside.len();
        let part = match inside.split_once('!') {
            _ if inside == "*" => Part::Other("", ""),
            Some((new, name)) if is_name(name) && (new.is_empty() || is_name(new)) => Part::Other(new, name),
            _ if inside
                .split_once(':')
                .is_some_and(|(name, length)| is_name(name) && length.parse::<usize>().is_ok()) =>
            {
                let (name, length) = inside.split_once(':').expect("a length");
                Part::Sized(name, length.parse().expect("a length"))
            }
            None if is_name(inside) && text[end..].starts_with('}') => Part::Same(inside),
            _ => {
                from = at + 1;
                continue;
            }
        };
        all.extend([Part::Literal(&text[..at]), part]);
        (text, from) = (&text[end + 1..], 0);
    }
    all.push(Part::Literal(text));
    all
}

impl Talks {
    /// Returns `true` if a text is the one that is expected, and takes the texts of new names.
    fn fits(&mut self, expected: &str, mut text: &str) -> bool {
        let parts = parts(expected);
        for (n, part) in parts.iter().enumerate() {
            let rest = match part {
                Part::Literal(literal) => text.strip_prefix(literal),
                Part::Same(name) if self.values.contains_key(*name) => {
                    text.strip_prefix(self.values[*name].as_str())
                }
                Part::Sized(name, length) => {
                    let Some((value, rest)) = text.split_at_checked(*length) else { return false };
                    let known = self.values.entry((*name).to_owned()).or_insert_with(|| value.to_owned());
                    (known == value).then_some(rest)
                }
                Part::Same(new) | Part::Other(new, _) => {
                    let end = match parts.get(n + 1) {
                        Some(Part::Literal(next)) if n + 2 == parts.len() => {
                            text.strip_suffix(next).map(str::len)
                        }
                        Some(Part::Literal(next)) if !next.is_empty() => text.find(next),
                        _ => Some(text.len()),
                    };
                    let Some((value, rest)) = end.map(|end| text.split_at(end)) else { return false };
                    let same = matches!(part, Part::Other(_, old) if self.values.get(*old).is_some_and(|v| v == value));
                    if !new.is_empty() {
                        self.values.insert((*new).to_owned(), value.to_owned());
                    }
                    Some(rest).filter(|_| !same)
                }
            };
            let Some(rest) = rest else { return false };
            text = rest;
        }
        text.is_empty()
    }

    /// Replaces the names in a text.
    fn filled(&self, text: &str) -> String {
        let value = |part| match part {
            Part::Literal(text) => text.to_owned(),
            Part::Sized(_, length) => "x".repeat(length),
            Part::Same(name) | Part::Other(_, name) => {
                self.values.get(name).unwrap_or_else(|| panic!("no text {name}")).clone()
            }
        };
        parts(text).into_iter().map(value).collect()
    }

    /// Gives a text a name.
    pub fn name(&mut self, name: &str, text: String) {
        self.values.insert(name.to_owned(), text);
    }

    /// Carries out a row.
    ///
    /// # Errors
    /// The difference to what is expected.
    pub fn row(&mut self, row: &str, server: &Server, upstreams: &[Upstream]) -> Result<(), String> {
        let (count, line) = match row.split_once("x ") {
            Some((count, line)) if count.parse::<usize>().is_ok() => (count.parse().expect("a number"), line),
            _ => (1, row),
        };
        let (name, actions) = line.split_once(' ').unwrap_or_else(|| panic!("no action in {row}"));
        let before: Vec<String> = self.open.keys().cloned().collect();
        for n in 0..count {
            let numbered =
                |text: &str| if count > 1 { text.replace('#', &n.to_string()) } else { text.to_owned() };
            let mut current = numbered(name);
            for action in split(&numbered(actions), " | ") {
                let action = action.trim();
                if let Some(other) = action.strip_prefix("as ") {
                    current = other.to_owned();
                    continue;
                }
                let done = match action.strip_prefix("accepts ") {
                    Some(connection) => self.accept(&current, connection, upstreams),
                    None if action == "reloads" => reload(server),
                    None if current.contains("@udp:[") && std::net::UdpSocket::bind("[::1]:0").is_err() => {
                        println!("skipped: there is no IPv6 here: {row}");
                        Ok(())
                    }
                    None => {
                        let name = self.open(&current, server, upstreams);
                        self.action(name, action)
                    }
                };
                if let Err(e) = done {
                    // So that it can be tried again.
                    self.open.retain(|name, _| before.contains(name));
                    return Err(format!("{row}, {n}: {action}: {e}\n"));
                }
            }
            self.open.remove("-");
        }
        Ok(())
    }

    /// Returns the name of a connection, which is opened first.
    fn open<'a>(&mut self, name: &'a str, server: &Server, upstreams: &[Upstream]) -> &'a str {
        let (name, at) = name.split_once('@').unwrap_or((name, "0"));
        if !self.open.contains_key(name) {
            let own = upstreams.iter().find(|upstream| upstream.name == name);
            let socket = match own.and_then(Upstream::udp) {
                Some(socket) => Socket::Upstream(socket, None),
                None => open(server, name, at),
            };
            if let Some(port) = socket.port() {
                self.values.insert(format!("{name}.port"), port.to_string());
                self.values.insert(format!("{name}.bytes"), latin(&port.to_be_bytes()));
            }
            self.open.insert(name.to_owned(), socket);
        }
        name
    }

    /// Takes the next connection to an upstream.
    fn accept(&mut self, name: &str, connection: &str, upstreams: &[Upstream]) -> Result<(), String> {
        let own = upstreams.iter().find(|upstream| upstream.name == name);
        let listener = own.and_then(Upstream::listener).ok_or("no listener")?;
        let (stream, _) = listener.accept().map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(crate::DEADLINE)).map_err(|e| e.to_string())?;
        self.open.insert(connection.to_owned(), Socket::Tcp(stream));
        Ok(())
    }

    fn action(&mut self, name: &str, action: &str) -> Result<(), String> {
        let (word, argument) = action.split_once(' ').unwrap_or((action, ""));
        let bytes = || latin(&string(argument).unwrap_or_else(|| panic!("no string: {action}")));
        let sent = |text: &str| text.chars().map(|c| c as u8).collect::<Vec<u8>>();
        if let Some((text, to)) = argument.rsplit_once("\" to ").filter(|_| word == "sends") {
            let bytes = string(&format!("{text}\"")).expect("a string");
            let Some(Socket::Upstream(socket, _)) = self.open.get(name) else {
                panic!("no upstream: {name}")
            };
            return socket.send_to(&bytes, self.clients[to]).map(drop).map_err(|e| e.to_string());
        }
        let known = match word {
            "sends" | "trickles" => sent(&self.filled(&bytes())),
            "gets" => format!("GET {argument} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes(),
            _ => Vec::new(),
        };
        let socket = self.open.get_mut(name).expect("a connection");
        match word {
            "sends" | "gets" => socket.send(&known),
            "trickles" => known.iter().for_each(|byte| socket.send(&[*byte])),
            "shuts" => socket.tcp().shutdown(Shutdown::Write).expect("shut down"),
            "resets" => {
                reset(socket.tcp());
                self.open.remove(name);
            }
            "leaves" => drop(self.open.remove(name)),
            "keeps" => {
                let Socket::Upstream(_, Some(client)) = socket else { panic!("no client: {name}") };
                self.clients.insert(argument.to_owned(), *client);
            }
            "skips" => {
                socket.tcp().read_exact(&mut vec![0; argument.parse().expect("a number")]).expect("read")
            }
            "hello" => client_hello(argument).iter().for_each(|byte| socket.send(&[*byte])),
            "refused" => {
                let Socket::Udp(socket) = socket else { panic!("not UDP: {name}") };
                return match socket.recv(&mut [0; 9]) {
                    Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
                    other => Err(format!("{other:?}")),
                };
            }
            "opens" => {}
            "closed" => {
                return match socket.read(&mut [0]) {
                    Ok(0) => Ok(()),
                    Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => Ok(()),
                    other => Err(format!("{other:?}")),
                };
            }
            "lacks" => {
                let (name, part) = argument.split_once(' ').expect("a name and a text");
                let part = latin(&string(part).expect("a string"));
                let text = &self.values[name];
                return if text.contains(&part) { Err(text.clone()) } else { Ok(()) };
            }
            "from" => {
                let got = match socket {
                    Socket::Tcp(stream) => stream.peer_addr().ok(),
                    Socket::Upstream(_, from) => *from,
                    _ => None,
                };
                let got = got.map(|addr| addr.ip().to_string()).unwrap_or_default();
                return (got == argument).then_some(()).ok_or(got);
            }
            "pauses" => {
                let time = std::time::Duration::from_millis(argument.parse().expect("milliseconds"));
                std::thread::sleep(time);
            }
            "reads" if argument.starts_with("...") => {
                let end = latin(&string(&argument[3..]).expect("a string"));
                let mut got = Vec::new();
                let mut byte = [0];
                while !latin(&got).ends_with(&end) {
                    match socket.read(&mut byte) {
                        Ok(1) => got.push(byte[0]),
                        other => return Err(format!("{other:?} behind {}", latin(&got))),
                    }
                }
            }
            "reads" => {
                let expected = bytes();
                let mut got =
                    vec![0; if socket.is_stream() { self.filled(&expected).chars().count() } else { 65536 }];
                let socket = self.open.get_mut(name).expect("a connection");
                let mut length = 0;
                loop {
                    match socket.read(&mut got[length..]) {
                        Ok(n) if n > 0 || !socket.is_stream() => length += n,
                        other => return Err(format!("{other:?} behind {}", latin(&got[..length]))),
                    }
                    if length == got.len() || !socket.is_stream() {
                        break;
                    }
                }
                let got = latin(&got[..length]);
                return self.fits(&expected, &got).then_some(()).ok_or(got);
            }
            "ends" => {
                let mut got = Vec::new();
                let end = socket.rest(&mut got);
                let got = latin(&got);
                if end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock) {
                    return Err(format!("no end behind {got}"));
                }
                let fits = match string(argument) {
                    Some(expected) => self.fits(&latin(&expected), &got),
                    None => text::holds(argument, &got),
                };
                return fits.then_some(()).ok_or(got);
            }
            other => panic!("no action {other}"),
        }
        Ok(())
    }
}

/// Has the server read its configuration again, and waits until it does.
fn reload(server: &Server) -> Result<(), String> {
    let before = server.error_log().matches(": reconfiguring").count();
    server.reload();
    server.wait_for_log(": reconfiguring", before + 1);
    Ok(())
}

/// Returns a ClientHello with a name.
fn client_hello(name: &str) -> Vec<u8> {
    let two = |n: usize| (n as u16).to_be_bytes();
    let n = name.len();
    let extension = [&[0, 0], &two(n + 5)[..], &two(n + 3), &[0], &two(n), name.as_bytes()].concat();
    let body = [&[3, 3], &[7; 32][..], &[0, 0, 2, 0x13, 1, 1, 0], &two(extension.len()), &extension].concat();
    let (outer, inner) = (two(body.len() + 4), two(body.len()));
    [&[22, 3, 1], &outer[..], &[1, 0], &inner, &body].concat()
}

#[cfg(test)]
mod tests {
    use super::Talks;

    #[test]
    fn names_stand_for_texts() {
        let mut talks = Talks::default();
        assert!(talks.fits("{p} x", "80 x") && talks.fits("{p} y", "80 y"));
        assert!(!talks.fits("{p} x", "81 x") && !talks.fits("{!p} x", "80 x"));
        assert!(talks.fits("{q!p} x", "81 x") && talks.fits("{q} {*}.", "81 xy."));
        assert!(talks.fits("{s:2}x", "abx") && talks.fits("{s:2}", "ab") && !talks.fits("{s:2}", "ac"));
        assert!(talks.fits("{!p} x", "81 x") && talks.fits("{ no", "{ no") && !talks.fits("a{r}", "b"));
        assert_eq!(talks.filled("<{p}>"), "<80>");
    }
}
