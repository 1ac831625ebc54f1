//! Server of the second table on quiche. See ../../README.md for what it is called with.

use crate::{DATAGRAM, ID_LENGTH, Result, UNSUPPORTED, id};
use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use quiche::h3::{self, NameValue};
use quiche::{Config, Connection, ConnectionId, Header, RecvInfo, Type};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Longest time without a look at the timers.
const TICK: Duration = Duration::from_millis(100);

/// Request, and what is left to send of the response.
#[derive(Default)]
struct Exchange {
    method: Vec<u8>,
    path: String,
    sum: Sha256,
    answer: Option<Answer>,
}

struct Answer {
    status: &'static [u8],
    body: Vec<u8>,
    sent: usize,
    begun: bool,
}

struct Client {
    /// Connection id that the client chose for its first packet.
    first: Vec<u8>,
    quic: Connection,
    http: Option<h3::Connection>,
    exchanges: HashMap<u64, Exchange>,
}

struct Server {
    local: SocketAddr,
    socket: UdpSocket,
    config: Config,
    root: String,
    retry: bool,
    clients: Vec<Client>,
    ids: u8,
}

impl Server {
    fn new(case: &str, local: SocketAddr, dir: &str) -> Result<Server> {
        let mut config = Config::new(quiche::PROTOCOL_VERSION)?;
        let large = matches!(case, "resumption" | "amplificationlimit");
        let certificate = if large { "large.pem" } else { "cert.pem" };
        config.load_cert_chain_from_pem_file(&format!("{dir}/{certificate}"))?;
        config.load_priv_key_from_pem_file(&format!("{dir}/key.pem"))?;
        config.set_application_protos(h3::APPLICATION_PROTOCOL)?;
        config.set_max_idle_timeout(60_000);
        config.set_max_recv_udp_payload_size(DATAGRAM);
        config.set_max_send_udp_payload_size(DATAGRAM);
        config.set_initial_max_data(1 << 18);
        config.set_initial_max_stream_data_bidi_remote(1 << 17);
        config.set_initial_max_stream_data_uni(1 << 17);
        config.set_initial_max_streams_bidi(128);
        config.set_initial_max_streams_uni(8);
        config.set_active_connection_id_limit(4);
        let socket = UdpSocket::bind(local)?;
        let root = format!("{dir}/html");
        Ok(Server { local, socket, config, root, retry: case == "retry", clients: Vec::new(), ids: 0 })
    }

    fn run(&mut self) -> Result<()> {
        let mut poll = Poll::new()?;
        poll.registry().register(&mut self.socket, Token(0), Interest::READABLE)?;
        let mut events = Events::with_capacity(8);
        loop {
            let soonest = self.clients.iter().filter_map(|client| client.quic.timeout()).min();
            poll.poll(&mut events, Some(soonest.unwrap_or(TICK).min(TICK)))?;
            for client in &mut self.clients {
                if client.quic.timeout().is_some_and(|left| left.is_zero()) {
                    client.quic.on_timeout();
                }
            }
            self.receive()?;
            for client in &mut self.clients {
                client.turn(&self.root, &mut self.ids)?;
                send(&self.socket, &mut client.quic);
            }
            self.clients.retain(|client| !client.quic.is_closed());
        }
    }

    fn receive(&mut self) -> Result<()> {
        let mut buf = [0; 65535];
        // What does not come now comes with the next turn.
        while let Ok((n, from)) = self.socket.recv_from(&mut buf) {
            let Ok(header) = Header::from_slice(&mut buf[..n], ID_LENGTH) else { continue };
            let Some(at) = self.find(&header, from)? else { continue };
            // A packet that cannot be read is dropped, as quiche asks.
            let _ = self.clients[at].quic.recv(&mut buf[..n], RecvInfo { from, to: self.local });
        }
        Ok(())
    }

    /// Returns the place of the client that a packet belongs to, which may be a new one.
    fn find(&mut self, header: &Header, from: SocketAddr) -> Result<Option<usize>> {
        let known = self.clients.iter().position(|client| {
            client.first == *header.dcid || client.quic.source_ids().any(|id| *id == header.dcid)
        });
        if known.is_some() || header.ty != Type::Initial {
            return Ok(known);
        }
        let mut out = [0; DATAGRAM];
        if !quiche::version_is_supported(header.version) {
            let n = quiche::negotiate_version(&header.scid, &header.dcid, &mut out)?;
            self.socket.send_to(&out[..n], from)?;
            return Ok(None);
        }
        self.ids = self.ids.wrapping_add(1);
        let new = ConnectionId::from_vec(id(self.ids));
        let token = header.token.as_deref().unwrap_or_default();
        if self.retry && token.is_empty() {
            // The token is only the id that the client chose: nothing here is secret.
            let n = quiche::retry(&header.scid, &header.dcid, &new, &header.dcid, header.version, &mut out)?;
            self.socket.send_to(&out[..n], from)?;
            return Ok(None);
        }
        let original = ConnectionId::from_ref(token);
        let (id, original) = if self.retry { (&header.dcid, Some(&original)) } else { (&new, None) };
        let quic = quiche::accept(id, original, self.local, from, &mut self.config)?;
        self.clients.push(Client {
            first: header.dcid.to_vec(),
            quic,
            http: None,
            exchanges: HashMap::new(),
        });
        Ok(Some(self.clients.len() - 1))
    }
}

impl Client {
    /// Reads requests and sends as much of the responses as there is room for.
    fn turn(&mut self, root: &str, ids: &mut u8) -> Result<()> {
        while self.quic.is_established() && self.quic.scids_left() > 0 {
            *ids = ids.wrapping_add(1);
            self.quic.new_scid(&ConnectionId::from_vec(id(*ids)), u128::from(*ids), false)?;
        }
        if self.http.is_none() && self.quic.is_established() {
            self.http = Some(h3::Connection::with_transport(&mut self.quic, &h3::Config::new()?)?);
        }
        let Some(http) = &mut self.http else { return Ok(()) };
        let mut buf = [0; 65535];
        while let Ok((stream, event)) = http.poll(&mut self.quic) {
            let exchange = self.exchanges.entry(stream).or_default();
            match event {
                h3::Event::Headers { list, .. } => exchange.begin(&list),
                h3::Event::Data => {
                    while let Ok(n) = http.recv_body(&mut self.quic, stream, &mut buf) {
                        exchange.sum.update(&buf[..n]);
                    }
                }
                h3::Event::Finished => exchange.answer = Some(exchange.answered(root)),
                _ => {}
            }
        }
        let quic = &mut self.quic;
        self.exchanges.retain(|stream, exchange| {
            let Some(answer) = &mut exchange.answer else { return true };
            !answer.send(http, quic, *stream)
        });
        Ok(())
    }
}

impl Exchange {
    fn begin(&mut self, fields: &[h3::Header]) {
        for field in fields {
            match field.name() {
                b":method" => self.method = field.value().to_vec(),
                b":path" => self.path = String::from_utf8_lossy(field.value()).into(),
                _ => {}
            }
        }
    }

    /// Returns the hash of what was posted, or a file.
    fn answered(&mut self, root: &str) -> Answer {
        let (status, body): (&[u8], _) = if self.method == b"POST" {
            let sum = std::mem::take(&mut self.sum).finalize();
            (b"200", sum.iter().map(|b| format!("{b:02x}")).collect::<String>().into_bytes())
        } else {
            match std::fs::read(format!("{root}{}", self.path)) {
                Ok(content) => (b"200", content),
                Err(_) => (b"404", Vec::new()),
            }
        };
        Answer { status, body, sent: 0, begun: false }
    }
}

impl Answer {
    /// Returns `true` once everything is sent, or nobody wants it any more.
    fn send(&mut self, http: &mut h3::Connection, quic: &mut Connection, stream: u64) -> bool {
        if !self.begun {
            let length = self.body.len().to_string();
            let fields = [
                h3::Header::new(b":status", self.status),
                h3::Header::new(b"content-length", length.as_bytes()),
            ];
            match http.send_response(quic, stream, &fields, self.body.is_empty()) {
                Ok(()) => self.begun = true,
                Err(h3::Error::StreamBlocked) => return false,
                Err(_) => return true,
            }
        }
        while self.sent < self.body.len() {
            match http.send_body(quic, stream, &self.body[self.sent..], true) {
                Ok(n) => self.sent += n,
                Err(h3::Error::Done) => return false,
                Err(_) => return true,
            }
        }
        true
    }
}

fn send(socket: &UdpSocket, quic: &mut Connection) {
    let mut out = [0; DATAGRAM];
    while let Ok((n, info)) = quic.send(&mut out) {
        // A full buffer loses the datagram, as the network may.
        let _ = socket.send_to(&out[..n], info.to);
    }
}

/// Serves a case until the process is ended.
pub fn main(args: &[String]) -> ExitCode {
    let [case, address, dir] = args else {
        eprintln!("usage: interop-quiche server CASE ADDRESS DIRECTORY");
        return ExitCode::from(2);
    };
    // quiche begins no key update, and sends no ECN. After a change of the client's address this server sends no content any more, whoever
    // the client is.
    if matches!(case.as_str(), "keyupdate" | "ecn" | "rebinding") {
        return ExitCode::from(UNSUPPORTED);
    }
    let served = address.parse().map_err(Into::into).and_then(|local| Server::new(case, local, dir)?.run());
    if let Err(e) = served {
        println!("{e}");
    }
    ExitCode::FAILURE
}
