//! A host with an endpoint and its connections.

use crate::app::{App, Work};
use crate::network::Datagram;
use crate::random;
use crate::transport::End;
use bytes::BytesMut;
use forebay_quic::congestion::Algorithm;
use forebay_quic::connection::{Config, Connection, Identity, ResetToken, Route};
use forebay_quic::endpoint::{Arrival, Endpoint, Routed, Settings, Slot};
use forebay_quic::id::{ConnectionId, Side};
use forebay_quic::parameters::TransportParameters;
use forebay_quic::stream::Limits;
use forebay_quic::time::Time;
use forebay_quic::tls::{ClientSession, ServerSession, Session};
use forebay_quic::token::TokenKey;
use forebay_quic::version::Version;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Certificate of the server, its key.
static CERTIFICATE: LazyLock<(CertificateDer<'static>, Vec<u8>)> = LazyLock::new(|| {
    // Its signatures have one length, so that a seed always does the same.
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let made = rcgen::CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
    let certificate = made.self_signed(&key).expect("a certificate");
    (certificate.der().clone(), key.serialize_der())
});

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn new_server_tls() -> rustls::ServerConfig {
    let (certificate, key) = &*CERTIFICATE;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone()));
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a certificate");
    config.max_early_data_size = u32::MAX;
    config
}

pub fn server_tls() -> Arc<rustls::ServerConfig> {
    static CONFIG: LazyLock<Arc<rustls::ServerConfig>> = LazyLock::new(|| Arc::new(new_server_tls()));
    CONFIG.clone()
}

/// Returns a configuration that takes no early data: it knows the sessions of [`server_tls`] or not.
pub fn refusing_tls(knows: bool) -> Arc<rustls::ServerConfig> {
    let mut config = if knows { (*server_tls()).clone() } else { new_server_tls() };
    if knows {
        config.max_early_data_size = 0;
    }
    Arc::new(config)
}

pub fn client_tls() -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CERTIFICATE.0.clone()).expect("a certificate");
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_early_data = true;
    Arc::new(config)
}

/// Settings of connections in tests.
pub fn config() -> Config {
    Config {
        limits: Limits {
            stream_window: 64 * 1024,
            window: 256 * 1024,
            bi: 100,
            uni: 10,
            send_window: 256 * 1024,
        },
        max_send_window: 1 << 20,
        idle: Duration::from_secs(30),
        keep_alive: None,
        ids: 4,
        datagrams: 0,
        congestion: Algorithm::NewReno,
        is_paced: true,
        most_mtu: 1452,
        searches_mtu: true,
        initial_rtt: Duration::from_millis(100),
        gives_token: false,
    }
}

/// Identity of a node.
struct Plain(Option<Rc<TokenKey>>);

impl Identity for Plain {
    fn make(&self) -> ConnectionId {
        ConnectionId::new(&random::shared().to_ne_bytes()).expect("eight bytes")
    }

    fn id_len(&self) -> usize {
        8
    }

    fn reset_token(&self, id: &ConnectionId) -> ResetToken {
        let mut token = [7; 16];
        token.iter_mut().zip(id.iter()).for_each(|(to, from)| *to ^= from);
        token
    }

    fn token(&self, version: Version, ip: IpAddr) -> Option<Box<[u8]>> {
        let mut token = Vec::new();
        let unique = [random::shared(), random::shared()].map(u64::to_ne_bytes).concat();
        let unique = unique.try_into().expect("16 bytes");
        self.0.as_ref()?.push_new(&mut token, version, ip, 1000, unique).then(|| token.into())
    }
}

/// Node with a transport of any kind.
pub trait Host {
    fn addr(&self) -> SocketAddr;
    /// Forgets what ended before.
    fn begin(&mut self);
    /// Begins a connection.
    fn connect(&mut self, now: Time, remote: SocketAddr);
    fn receive(&mut self, now: Time, datagram: &Datagram, out: &mut Vec<Datagram>);
    /// Does what is due, and sends what is to be sent.
    fn turn(&mut self, now: Time, out: &mut Vec<Datagram>);
    fn deadline(&mut self, now: Time) -> Option<Time>;
    fn apps(&self) -> Vec<&App>;
    /// Closes all connections, as the application wants it.
    fn close(&mut self, now: Time, code: u64, reason: &[u8]);
    /// Returns `true` if no connection is left. Then nothing of one may be left.
    fn is_empty(&self) -> bool;
    fn describe(&self) -> String;
    /// It is another implementation, of which less is asked.
    fn is_other(&self) -> bool {
        false
    }
}

/// Connection with its application.
struct Member {
    connection: Connection,
    app: App,
    /// Datagrams that came and left after it was closed.
    late: [u32; 2],
}

/// Host with the crate's transport.
pub struct Node {
    pub addr: SocketAddr,
    side: Side,
    endpoint: Endpoint,
    members: BTreeMap<Slot, Member>,
    pub config: Rc<Config>,
    pub work: Work,
    pub version: Version,
    /// New clients have to prove their addresses.
    pub retries: bool,
    pub client_tls: Arc<rustls::ClientConfig>,
    pub server_tls: Arc<rustls::ServerConfig>,
    token: Vec<u8>,
    /// Applications of connections that are over.
    ended: Vec<App>,
}

impl Node {
    pub fn new(side: Side, config: Config, work: Work) -> Node {
        let port = if side.is_server() { 443 } else { 50_000 };
        let tokens = side.is_server().then(|| Rc::new(TokenKey::new(&[3; 32], 10, 3600)));
        Node {
            addr: SocketAddr::from(([10, 0, 0, if side.is_server() { 1 } else { 2 }], port)),
            side,
            endpoint: Endpoint::new(Settings {
                identity: Rc::new(Plain(tokens.clone())),
                random: random::shared,
                tokens,
                resets: Duration::ZERO,
            }),
            members: BTreeMap::new(),
            config: Rc::new(config),
            work,
            version: Version::V1,
            retries: false,
            client_tls: client_tls(),
            server_tls: server_tls(),
            token: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn add(&mut self, slot: Slot, connection: Connection) {
        let member = Member { connection, app: App::new(self.side, &self.work), late: [0; 2] };
        assert!(self.members.insert(slot, member).is_none(), "slot {slot} is in use");
    }

    fn accept(&mut self, now: Time, arrival: &Arrival, first: (u8, BytesMut), out: &mut Vec<u8>) {
        let tls = self.server_tls.clone();
        let begin = |version, parameters: TransportParameters| {
            let mut encoded = Vec::new();
            parameters.push(&mut encoded, Side::Server, random::shared());
            let session = ServerSession::new(tls, version, encoded).expect("a session");
            Box::new(session) as Box<dyn Session>
        };
        let made = self.endpoint.accept(now, arrival, first, self.config.clone(), begin, out);
        if let Some((slot, connection)) = made {
            self.add(slot, connection);
        }
    }
}

impl Host for Node {
    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn connect(&mut self, now: Time, remote: SocketAddr) {
        let route = Route { remote, local: None };
        let tls = self.client_tls.clone();
        let token = std::mem::take(&mut self.token);
        let begin = |version, parameters: TransportParameters| {
            let mut encoded = Vec::new();
            parameters.push(&mut encoded, Side::Client, random::shared());
            let name = "h".try_into().expect("a name");
            Ok(Box::new(ClientSession::new(tls, version, name, encoded)?) as Box<dyn Session>)
        };
        let made = self.endpoint.connect(now, (self.version, route), self.config.clone(), token, begin);
        let (slot, connection) = made.expect("a connection");
        self.add(slot, connection);
    }

    fn receive(&mut self, now: Time, datagram: &Datagram, out: &mut Vec<Datagram>) {
        let route = Route { remote: datagram.from, local: None };
        let mut answer = Vec::new();
        let bytes = BytesMut::from(&datagram.bytes[..]);
        match self.endpoint.route(route, &bytes, || 1000) {
            Routed::Connection(slot) => {
                let member = self.members.get_mut(&slot).expect("a connection at the slot");
                member.late[0] += u32::from(member.connection.is_closed());
                member.connection.receive(now, route, datagram.ecn, bytes);
            }
            Routed::New(arrival) if self.retries && arrival.may_retry() => {
                self.endpoint.retry(&arrival, 1000, &mut answer);
            }
            Routed::New(arrival) => self.accept(now, &arrival, (datagram.ecn, bytes), &mut answer),
            Routed::Unknown => {
                self.endpoint.answer(now, &bytes, &mut answer);
                // RFC 9000, section 10.3.3: answers to answers have to end.
                assert!(answer.len() < bytes.len());
            }
            Routed::Dropped => {}
        }
        if !answer.is_empty() {
            out.push(Datagram { from: self.addr, to: datagram.from, ecn: 0, bytes: answer });
        }
    }

    fn turn(&mut self, now: Time, out: &mut Vec<Datagram>) {
        let mut over = Vec::new();
        for (slot, member) in &mut self.members {
            member.turn(now, self.addr, out);
            self.endpoint.settle(*slot, &mut member.connection);
            if let Some(token) = member.app.token.take() {
                self.token = token;
            }
            if member.connection.is_drained() {
                over.push(*slot);
            }
        }
        for slot in over {
            if let Some(mut member) = self.members.remove(&slot) {
                self.endpoint.remove(slot, &mut member.connection);
                self.ended.push(member.app);
            }
        }
        if self.members.is_empty() {
            assert_eq!(self.endpoint.counts(), (0, 0), "the endpoint knows identifiers of nobody");
        }
    }

    fn deadline(&mut self, now: Time) -> Option<Time> {
        let members = self.members.values();
        members.filter_map(|m| m.connection.deadline().into_iter().chain(m.app.wake(now)).min()).min()
    }

    fn apps(&self) -> Vec<&App> {
        self.ended.iter().chain(self.members.values().map(|m| &m.app)).collect()
    }

    fn close(&mut self, now: Time, code: u64, reason: &[u8]) {
        for member in self.members.values_mut() {
            member.app.has_closed |= !member.connection.is_closed();
            member.connection.close(now, code, reason);
        }
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn begin(&mut self) {
        self.ended.clear();
    }

    fn describe(&self) -> String {
        let all = self.members.values().map(|m| {
            let Member { connection: c, app, .. } = m;
            let (deadline, stats) = (c.deadline(), c.stats());
            let recovery = c.recovery();
            format!(
                "\n  {c:?} {deadline:?} mtu {} window {} {stats:?}\n    {recovery}\n    {}",
                c.mtu(),
                c.window(),
                app.describe()
            )
        });
        let ended = self.ended.iter().map(|app| format!("\n  over: {}", app.describe()));
        ended.chain(all).collect()
    }
}

impl Member {
    fn turn(&mut self, now: Time, addr: SocketAddr, out: &mut Vec<Datagram>) {
        // What was due may make something else due, but not for ever.
        for _ in 0..5 {
            self.one_turn(now, addr, out);
            if self.connection.deadline().is_none_or(|at| at > now) {
                break;
            }
        }
        self.check(now);
    }

    fn one_turn(&mut self, now: Time, addr: SocketAddr, out: &mut Vec<Datagram>) {
        let Member { connection, app, late } = self;
        if connection.deadline().is_some_and(|at| at <= now) {
            connection.expire(now);
        }
        app.turn(now, connection);
        let mut buffer = Vec::new();
        let mut is_silent = false;
        for round in 0.. {
            assert!(round < 10_000, "it does not stop to send");
            buffer.clear();
            let Some(sent) = connection.transmit(now, 10, &mut buffer) else { break };
            assert!(!is_silent, "it had nothing to send, as it said");
            is_silent = connection.has_sent_all();
            let (least, most) = (sent.segment * (sent.datagrams - 1), sent.segment * sent.datagrams);
            assert!(buffer.len() > least && buffer.len() <= most, "{sent:?} in {} bytes", buffer.len());
            late[1] += if connection.is_closed() { sent.datagrams as u32 } else { 0 };
            for part in buffer.chunks(sent.segment) {
                out.push(Datagram { from: addr, to: sent.remote, ecn: sent.ecn, bytes: part.to_vec() });
            }
        }
    }

    /// Checks what has to hold after each step.
    fn check(&mut self, now: Time) {
        let Member { connection, app, late } = self;
        assert!(connection.has_sent_all());
        if !connection.is_drained() {
            let deadline = connection.deadline();
            let is_later = deadline.is_none_or(|at| at > now);
            assert!(is_later, "something is due that nobody does: {} at {now:?}", connection.recovery());
        }
        let kept = connection.kept();
        assert!(kept.items <= 20_000 && kept.packets <= 20_000 && kept.events <= 1000, "{kept:?}");
        if connection.is_closed() {
            // RFC 9000, sections 10.2.1 and 10.2.2.
            let most = if app.has_closed || matches!(app.end, Some(End::Other(_))) {
                2 + late[0].checked_ilog2().unwrap_or(0)
            } else {
                0
            };
            assert!(late[1] <= most, "{late:?} datagrams after the end");
        }
    }
}
