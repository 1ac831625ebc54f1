//! Upstreams of tables, `origin NAME[ KIND]`:
//!
//! - none or `at_head`: HTTP/1 by target, see [`rules`]; `fastcgi`: see [`programs`]; `fastcgi unix`: on
//!   a unix socket;
//! - `echo`: sends back what it receives; `says`: the same behind the text of the section, a string; `silent`: does not answer;
//! - `scgi`, `uwsgi`: as `fastcgi`, by strings; `h2`: answers with the numbers of connection and stream;
//! - `frames`: of HTTP/2, each row for one connection, sent when a request has come: `head NAME=VALUE...[ end]`, `data "TEXT"[ end]`,
//!   `frame KIND FLAGS STREAM "BYTES"`, `raw "BYTES"`, each after ` | `, where `100x ` before one repeats it;
//! - `udp`: answers a datagram with the port that it came from, a space and the datagram; `datagrams`: sends
//!   datagrams back, or if it has a text, that; `listens`, `accepts`: takes datagrams, and connections, for `talk`;
//! - `dns`: a name server that knows the names of its rows; `dead`: a port that nobody has.

use super::programs;
use super::row::{split, string, unescape};
use super::rules::{self, Rules};
use super::section::Section;
use crate::{DEADLINE, Echo, Names, Origin, accept, echo, free_port, gateways, h2, silent};
use forebay_http::h2::frame::flag;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Returns the frames of a row, on stream 1.
fn frames(row: &str) -> Vec<u8> {
    let frame = |part: &str| {
        let repeated = part.split_once("x ").and_then(|(n, rest)| Some((n.parse::<usize>().ok()?, rest)));
        let (count, part) = repeated.unwrap_or((1, part));
        let (part, flags) = part.strip_suffix(" end").map_or((part, 0), |part| (part, flag::END_STREAM));
        let (kind, rest) = part.split_once(' ').unwrap_or((part, ""));
        let bytes = |text: &str| string(text).unwrap_or_else(|| panic!("no string: {part}"));
        let frame = match kind {
            "head" => {
                let fields = rest.split(' ').map(|pair| pair.split_once('=').expect("a field"));
                let fields: Vec<(&str, String)> = fields.map(|(n, v)| (n, unescape(v))).collect();
                let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
                h2::headers(1, &fields, flags)
            }
            "data" => h2::data(1, &bytes(rest), flags),
            "raw" => bytes(rest),
            "frame" => {
                let words: Vec<&str> = rest.splitn(4, ' ').collect();
                let number = |n: usize| words[n].parse().expect("a number");
                h2::frame(number(0), number(1), number(2).into(), &bytes(words[3]))
            }
            other => panic!("no frame {other}"),
        };
        frame.repeat(count)
    };
    split(row, " | ").into_iter().flat_map(|part| frame(part.trim())).collect()
}

/// An upstream.
pub(super) struct Upstream {
    pub name: String,
    pub addr: SocketAddr,
    /// Its unix socket, instead.
    pub path: Option<tempfile::TempPath>,
    kind: Kind,
}

enum Kind {
    Http(Origin, Rules),
    Counted(Arc<AtomicUsize>),
    Dns(Names),
    Udp(UdpSocket),
    Tcp(TcpListener),
    /// Lives as long as the case.
    Other(#[expect(dead_code, reason = "kept open")] Box<dyn std::any::Any>),
}

impl Upstream {
    /// Starts the one of a section.
    pub fn start(section: &Section) -> Upstream {
        let (name, kind) = section.argument.split_once(' ').unwrap_or((&section.argument, ""));
        let rows = section.rows();
        let counted = |(addr, count): (SocketAddr, _)| (addr, Kind::Counted(count));
        let http = |(origin, rules): (Origin, Rules)| (origin.addr, Kind::Http(origin, rules));
        let mut path = None;
        let (addr, kind) = match kind {
            "fastcgi unix" => {
                let own =
                    tempfile::Builder::new().prefix("forebay-program").make(|_| Ok(())).expect("a name");
                let socket = own.into_temp_path();
                let count = programs::start_unix(&socket, &rows);
                path = Some(socket);
                (([127, 0, 0, 1], 0).into(), Kind::Counted(count))
            }
            "" => http(rules::start(&rows, Origin::start)),
            "at_head" => http(rules::start(&rows, Origin::at_head)),
            "fastcgi" => counted(programs::start(&rows)),
            "scgi" => (programs::start_gateway(gateways::scgi, &rows), Kind::Other(Box::new(()))),
            "uwsgi" => (programs::start_gateway(gateways::uwsgi, &rows), Kind::Other(Box::new(()))),
            "h2" => counted(h2::upstream(&[], |peer, number| {
                while let Some(stream) = peer.request() {
                    peer.answer(stream, &format!("{number}.{stream}"));
                }
            })),
            "frames" => {
                let answers: Vec<Vec<u8>> = rows.iter().map(|row| frames(row)).collect();
                counted(h2::upstream(&[], move |peer, number| {
                    if let (Some(_), Some(answer)) = (peer.request(), answers.get(number - 1)) {
                        peer.send(std::slice::from_ref(answer));
                        let _ = peer.stream.shutdown(Shutdown::Write);
                        while peer.next().is_some() {}
                    }
                }))
            }
            "echo" => counted(echo()),
            "silent" => counted(silent()),
            "says" => {
                let text = string(&rows[0]).expect("a string");
                let count = Arc::new(AtomicUsize::new(0));
                let counter = count.clone();
                let addr = accept(move |mut stream, _| {
                    counter.fetch_add(1, SeqCst);
                    let mut from = stream.try_clone().expect("clone");
                    let _ = stream.write_all(&text);
                    let _ = std::io::copy(&mut from, &mut stream);
                });
                counted((addr, count))
            }
            "udp" => {
                let echo = Echo::start();
                (echo.addr, Kind::Other(Box::new(echo)))
            }
            "datagrams" => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
                let addr = socket.local_addr().expect("bound");
                let answer = rows.first().map(|row| string(row).expect("a string"));
                let count = Arc::new(AtomicUsize::new(0));
                let counter = count.clone();
                std::thread::spawn(move || {
                    let mut buf = [0; 65536];
                    while let Ok((length, from)) = socket.recv_from(&mut buf) {
                        counter.fetch_add(1, SeqCst);
                        let _ = socket.send_to(answer.as_deref().unwrap_or(&buf[..length]), from);
                    }
                });
                counted((addr, count))
            }
            "listens" => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
                socket.set_read_timeout(Some(DEADLINE)).expect("timeout");
                (socket.local_addr().expect("bound"), Kind::Udp(socket))
            }
            "accepts" => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
                // It is the deadline of `accept`, too.
                socket2::SockRef::from(&listener).set_read_timeout(Some(DEADLINE)).expect("timeout");
                (listener.local_addr().expect("bound"), Kind::Tcp(listener))
            }
            "dns" => {
                let names = Names::start(&rows.iter().map(String::as_str).collect::<Vec<_>>());
                (names.addr, Kind::Dns(names))
            }
            "dead" => (([127, 0, 0, 1], free_port()).into(), Kind::Other(Box::new(()))),
            other => panic!("no kind {other}"),
        };
        Upstream { name: name.to_owned(), addr, path, kind }
    }

    /// Returns how many requests, connections on which something came, or questions it has received.
    pub fn asked(&self) -> usize {
        match &self.kind {
            Kind::Http(origin, _) => origin.asked(),
            Kind::Counted(count) => count.load(SeqCst),
            Kind::Dns(names) => names.asked(),
            _ => panic!("{} does not count", self.name),
        }
    }

    /// Returns the one of HTTP/1.
    pub fn http(&self) -> &Origin {
        let Kind::Http(origin, _) = &self.kind else { panic!("{} is not of HTTP", self.name) };
        origin
    }

    /// Returns its socket for datagrams.
    pub fn udp(&self) -> Option<UdpSocket> {
        let Kind::Udp(socket) = &self.kind else { return None };
        Some(socket.try_clone().expect("a second handle"))
    }

    /// Returns its listener.
    pub fn listener(&self) -> Option<&TcpListener> {
        let Kind::Tcp(listener) = &self.kind else { return None };
        Some(listener)
    }

    /// Changes its rules.
    pub fn change(&self, rows: &[String]) {
        let Kind::Http(_, rules) = &self.kind else { panic!("{} is not of HTTP", self.name) };
        rules.change(rows);
    }

    /// Changes the names that it knows.
    pub fn know(&self, rows: &[String]) {
        let Kind::Dns(names) = &self.kind else { panic!("{} is no name server", self.name) };
        names.know(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
