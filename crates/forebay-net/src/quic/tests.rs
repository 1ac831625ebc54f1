use super::*;
use bytes::Bytes;
use quinn_proto as quinn;
use quinn_proto::ClientConfig;
use quinn_proto::crypto::rustls::QuicClientConfig;
use std::collections::VecDeque;
use std::net::UdpSocket;

/// A certificate of its own with its key.
fn certificate() -> (rustls::pki_types::CertificateDer<'static>, rustls::pki_types::PrivateKeyDer<'static>) {
    let more = "-addext subjectAltName=DNS:h -addext basicConstraints=critical,CA:FALSE";
    crate::tls::made::certificate(more).expect("openssl is missing")
}

/// Names that handshakes have asked for; only `h` is known.
struct Names {
    config: Arc<TlsConfig>,
    asked: RefCell<Vec<(u32, Option<Vec<u8>>)>>,
}

impl Choose for Names {
    fn choose(&self, owner: u32, hello: crate::tls::hello::Hello) -> Result<Arc<TlsConfig>, u8> {
        let known = hello.server_name.as_deref() == Some(b"h");
        self.asked.borrow_mut().push((owner, hello.server_name));
        // unrecognized_name
        if known { Ok(self.config.clone()) } else { Err(112) }
    }

    fn refused(&self, _: u32) {}
}

const HERE: Place = Place { process: 1, thread: 7, endpoint: 0 };

/// Owner that numbers connections from 42 on, and takes what is for other places.
#[derive(Default)]
struct Numbers {
    begun: Cell<u32>,
    passed: RefCell<Vec<(Place, bool)>>,
}

impl Owner for Numbers {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        self.begun.set(self.begun.get() + 1);
        Some(41 + self.begun.get())
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, place: Place, exact: bool, _: &Received<'_>) -> bool {
        self.passed.borrow_mut().push((place, exact));
        !exact
    }
}

/// An endpoint, and a client of its own.
struct Pair {
    server: Endpoint,
    names: Rc<Names>,
    links: Vec<Rc<Link>>,
    gone: usize,
    socket: UdpSocket,
    endpoint: quinn::Endpoint,
    config: ClientConfig,
    client: quinn::Connection,
    handle: quinn::ConnectionHandle,
    events: VecDeque<quinn::Event>,
}

fn pair(name: &str, retry: bool) -> Pair {
    pair_with(name, |settings| settings.retry = retry)
}

fn pair_with(name: &str, edit: impl FnOnce(&mut Settings)) -> Pair {
    let (cert, key) = certificate();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], key)
        .expect("a certificate");
    config.alpn_protocols = vec![b"h3".to_vec()];
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert).expect("a root");
    let mut trusting = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    trusting.alpn_protocols = vec![b"h3".to_vec()];
    let listening = UdpSocket::bind("127.0.0.1:0").expect("bound");
    listening.set_nonblocking(true).expect("option");
    let at = listening.local_addr().expect("bound");
    let mut settings = Settings {
        streams: 4,
        stream_window: 1000,
        send_window: 100_000,
        max_send_window: 100_000,
        idle: Duration::from_secs(30),
        ids: 2,
        retry: false,
        connections: 2,
        congestion: Congestion::Cubic,
        key: HostKey::new(&[1; 64]),
    };
    edit(&mut settings);
    let mask = Arc::new(Mask::new(&[2; 16]).expect("a key"));
    let server = Endpoint::new(Arc::new(listening.into()), false, settings, HERE, mask).expect("an endpoint");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_read_timeout(Some(Duration::from_millis(10))).expect("option");
    let mut endpoint = quinn::Endpoint::new(Arc::new(quinn::EndpointConfig::default()), None, false, None);
    let config_of_client =
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(trusting).expect("TLS 1.3")));
    let (handle, client) =
        endpoint.connect(Instant::now(), config_of_client.clone(), at, name).expect("a client");
    let names = Rc::new(Names { config: Arc::new(config), asked: RefCell::default() });
    Pair {
        server,
        names,
        links: Vec::new(),
        gone: 0,
        socket,
        endpoint,
        config: config_of_client,
        client,
        handle,
        events: VecDeque::new(),
    }
}

impl Pair {
    /// Lets both sides send and receive what they have. Server events go to `f`.
    fn turn(&mut self, mut f: impl FnMut(&Rc<Link>, Event)) {
        let now = Instant::now();
        let mut buf = Vec::new();
        while let Some(transmit) = self.client.poll_transmit(now, 1, &mut buf) {
            self.socket.send_to(&buf[..transmit.size], transmit.destination).expect("sent");
            buf.clear();
        }
        let chooser: Rc<dyn Choose> = self.names.clone();
        let owner = Numbers::default();
        let mut batch = Batch::new();
        let count = self.server.receive(&mut batch).unwrap_or(0);
        self.server.handle(&batch, 0..count, now, &chooser, &owner);
        while let Some(link) = self.server.take_ready() {
            if !self.links.iter().any(|known| Rc::ptr_eq(known, &link)) {
                self.links.push(link.clone());
            }
            self.server.guard(&link, || {
                loop {
                    let event = link.quic().poll();
                    let Some(event) = event else { break };
                    f(&link, event);
                }
            });
        }
        self.server.expire(now);
        let gone = Cell::new(0);
        self.server.flush(now, |_| gone.set(gone.get() + 1));
        self.gone += gone.get();
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
            let data = BytesMut::from(&bytes[..len]);
            let mut response = Vec::new();
            if let Some(quinn::DatagramEvent::ConnectionEvent(_, event)) =
                self.endpoint.handle(now, from, None, None, data, &mut response)
            {
                self.client.handle_event(event);
            }
        }
        self.client.handle_timeout(Instant::now());
        while let Some(event) = self.client.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.client.handle_event(event);
            }
        }
        while let Some(event) = self.client.poll() {
            self.events.push_back(event);
        }
    }

    /// Forgets the client, and begins another connection from its address.
    fn again(&mut self) {
        let (now, at) = (Instant::now(), self.client.remote_address());
        let begun = self.endpoint.connect(now, self.config.clone(), at, "h").expect("a client");
        (self.handle, self.client) = begun;
        self.events.clear();
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.events);
            self.turn(|_, _| {});
        }
    }
}

#[test]
fn a_handshake_asks_for_a_configuration_by_name() {
    for retry in [false, true] {
        let mut pair = pair("h", retry);
        pair.until("connected", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
        assert_eq!(*pair.names.asked.borrow(), [(42, Some(b"h".to_vec()))]);
        let link = pair.links[0].clone();
        let facts = RefCell::new(None);
        pair.until("established", |_| {
            facts.replace(link.facts());
            facts.borrow().is_some()
        });
        let facts = facts.take().expect("established");
        assert_eq!((facts.agreed.alpn.as_deref(), facts.agreed.v13), (Some(&b"h3"[..]), true));
        assert_eq!((pair.server.open(), link.owner.get()), (1, 42));
        // Content goes and comes.
        let id = pair.client.streams().open(quinn::Dir::Bi).expect("a stream");
        assert_eq!(pair.client.send_stream(id).write(b"ping").ok(), Some(4));
        let got = RefCell::new(Vec::new());
        let end = Instant::now() + Duration::from_secs(20);
        while got.borrow().is_empty() && Instant::now() < end {
            pair.turn(|link, event| {
                if matches!(event, Event::Stream(StreamEvent::Opened { dir: Dir::Bi })) {
                    let mut streams = link.streams();
                    let id = streams.accept(Dir::Bi).expect("a stream");
                    if let Ok(Some(chunk)) = streams.read(id, 100) {
                        got.borrow_mut().extend_from_slice(&chunk.bytes);
                    }
                }
            });
        }
        assert_eq!(*got.borrow(), b"ping");
        // The end of the client frees the link.
        pair.client.close(Instant::now(), 0u32.into(), Bytes::new());
        pair.until("gone", |p| p.gone == 1);
        assert_eq!(pair.server.open(), 0);
    }
}

/// A full congestion window holds back content, not the end.
#[test]
fn a_close_passes_a_full_window() {
    for congestion in [Congestion::Cubic, Congestion::Bbr, Congestion::Reno] {
        let mut pair = pair_with("h", |settings| settings.congestion = congestion);
        pair.until("connected", |p| p.links.first().is_some_and(|link| !link.quic().is_handshaking()));
        let link = pair.links[0].clone();
        let id = link.streams().open(Dir::Uni).expect("a stream");
        let sent = link.streams().write_slice(id, &[0; 100_000]).expect("room");
        assert_eq!(sent, 100_000);
        // Seconds pass, so that it is the window that ends this, not pacing.
        for seconds in 1..20 {
            pair.server.mark_sending(&link);
            pair.server.flush(Instant::now() + Duration::from_secs(seconds), |_| {});
        }
        let stats = *link.quic().stats();
        assert!(1200 * stats.sent_stream_frames < 100_000, "{stats:?}");
        link.close(Instant::now(), 7, b"");
        pair.server.mark_sending(&link);
        let lost = |e: &quinn::Event| {
            use quinn::ConnectionError::{ApplicationClosed, ConnectionClosed};
            matches!(e, quinn::Event::ConnectionLost { reason: ApplicationClosed(_) | ConnectionClosed(_) })
        };
        pair.until("closed", |p| p.events.iter().any(lost));
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let mut pair = pair("other", false);
    pair.until("lost", |p| p.events.iter().any(|e| matches!(e, quinn::Event::ConnectionLost { .. })));
    let lost = pair.events.iter().find(|e| matches!(e, quinn::Event::ConnectionLost { .. }));
    // Alert 112, which is printed as 0x70 (RFC 9001, section 4.8).
    assert!(format!("{lost:?}").contains("crypto(70)"), "{lost:?}");
}

#[test]
fn a_panic_ends_one_link() {
    let mut pair = pair("h", false);
    pair.until("connected", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
    let link = pair.links[0].clone();
    assert_eq!(pair.server.guard(&link, || 5), Some(5));
    std::panic::set_hook(Box::new(|_| {}));
    assert_eq!(pair.server.guard(&link, || -> i32 { panic!("on purpose") }), None);
    let _ = std::panic::take_hook();
    assert_eq!((pair.server.take_panics(), pair.server.take_panics(), pair.server.open()), (1, 0, 0));
    pair.turn(|_, _| panic!("nothing is there any more"));
    assert_eq!((pair.gone, pair.server.take_panics()), (1, 0));
}

/// What is for other places goes there; what is for this one stays, known or not.
#[test]
fn datagrams_for_other_places_are_passed_on() {
    use forebay_quic::connection::Identity;
    let pair = pair("h", false);
    let chooser: Rc<dyn Choose> = pair.names.clone();
    let owner = Numbers::default();
    let there = Place { thread: 3, ..HERE };
    let send = |place: Place, long: bool| {
        let resets = reset::Key::new(&[3; 32]);
        let mask = pair.server.mask.clone();
        let id = Here { place, mask, resets, tokens: RefCell::default() }.make();
        let mut bytes = if long { vec![0xc3, 0, 0, 0, 1, id.len() as u8] } else { vec![0x43] };
        bytes.extend_from_slice(&id);
        bytes.resize(1200, 0);
        pair.socket.send_to(&bytes, pair.client.remote_address()).expect("sent");
        let end = Instant::now() + Duration::from_secs(20);
        let mut batch = Batch::new();
        while pair.server.receive(&mut batch).is_err() {
            assert!(Instant::now() < end, "no datagram");
        }
        pair.server.handle(&batch, 0..1, Instant::now(), &chooser, &owner);
        owner.passed.take()
    };
    assert_eq!(send(there, true), [(there, true)]);
    assert_eq!(send(there, false), [(there, false)]);
    assert!(send(HERE, true).is_empty());
    let mut bytes = [0; 2048];
    assert!(pair.socket.recv(&mut bytes).is_err());
    // An unknown connection of this place is told so, at most once in `RESETS`; that of another has been passed on.
    let end = Instant::now() + Duration::from_secs(20);
    let length = loop {
        assert!(send(HERE, false).is_empty());
        if let Ok(length) = pair.socket.recv(&mut bytes) {
            break length;
        }
        assert!(Instant::now() < end, "no reset");
    };
    assert!(length < 1200);
    assert!(pair.socket.recv(&mut bytes).is_err());
}

#[test]
fn few_clients_are_answered_one_by_one() {
    let mut pair = pair("h", false);
    assert_eq!(pair.server.portion(), MOST);
    pair.until("a connection", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
    let end = Instant::now() + Duration::from_secs(20);
    while pair.server.portion() > 1 {
        assert!(Instant::now() < end, "{}", pair.server.portion());
        pair.client.ping();
        pair.turn(|_, _| {});
    }
}

/// A removed link must not affect the link that has its slot.
#[test]
fn a_link_that_is_gone_does_nothing_to_the_next_one_in_its_slot() {
    let mut pair = pair("h", false);
    pair.until("connected", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
    let old = pair.links[0].clone();
    pair.server.mark(&old);
    std::panic::set_hook(Box::new(|_| {}));
    assert_eq!(pair.server.guard(&old, || -> i32 { panic!("on purpose") }), None);
    let _ = std::panic::take_hook();
    pair.links.clear();
    pair.again();
    pair.until("connected", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
    assert_eq!((pair.links.len(), pair.gone, pair.server.open()), (1, 1, 1), "no events of the old one");
    assert_eq!(pair.links[0].slot, old.slot);
    // A handler of the old one notes something to send, and nothing is left of the connection.
    let now = Instant::now();
    old.close(now, 0, b"");
    old.quic().expire(time(now + Duration::from_secs(100)));
    assert!(old.quic().is_drained());
    pair.server.mark_sending(&old);
    pair.turn(|_, _| {});
    assert_eq!((pair.gone, pair.server.open(), pair.server.link(old.slot).is_some()), (1, 1, true));
}

/// A client that is busy now and then leaves a timer of the idle timeout behind each time.
#[test]
fn timers_that_are_out_of_date_have_a_bound() {
    let mut pair = pair("h", false);
    pair.until("connected", |p| p.events.iter().any(|e| matches!(e, quinn::Event::Connected)));
    let chooser: Rc<dyn Choose> = pair.names.clone();
    let (owner, mut batch, mut buf) = (Numbers::default(), Batch::new(), Vec::new());
    let mut now = Instant::now();
    for n in 0..250 {
        pair.client.ping();
        buf.clear();
        let sent = pair.client.poll_transmit(now, 1, &mut buf).expect("a PING");
        pair.socket.send_to(&buf[..sent.size], sent.destination).expect("sent");
        let end = Instant::now() + Duration::from_secs(20);
        let count = loop {
            assert!(Instant::now() < end, "{n}: no datagram");
            if let Ok(count) = pair.server.receive(&mut batch) {
                break count;
            }
        };
        pair.server.handle(&batch, 0..count, now, &chooser, &owner);
        for _ in 0..2 {
            pair.server.flush(now, |_| {});
            now += Duration::from_millis(50);
            pair.server.expire(now);
        }
        let timers = pair.server.timers.borrow().len();
        assert!(timers <= 2 + STALE_TIMERS, "{n}: {timers}");
    }
    assert_eq!(pair.server.open(), 1);
}

/// An owner that fails, as those might that judge new clients.
struct Failing;

impl Owner for Failing {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        panic!("on purpose")
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, _: Place, _: bool, _: &Received<'_>) -> bool {
        false
    }
}

#[test]
fn a_panic_before_there_is_a_link_costs_one_datagram() {
    let mut pair = pair("h", false);
    let chooser: Rc<dyn Choose> = pair.names.clone();
    let mut buf = Vec::new();
    let first = pair.client.poll_transmit(Instant::now(), 1, &mut buf).expect("a first packet");
    let remote = pair.socket.local_addr().expect("bound");
    let received = Received { remote, local: None, ecn: 0, bytes: &buf[..first.size] };
    std::panic::set_hook(Box::new(|_| {}));
    pair.server.deliver(&received, Instant::now(), &chooser, &Failing);
    let _ = std::panic::take_hook();
    assert_eq!((pair.server.take_panics(), pair.server.open()), (1, 0));
    // The same datagram is taken by an owner that works.
    pair.server.deliver(&received, Instant::now(), &chooser, &Numbers::default());
    assert_eq!((pair.server.take_panics(), pair.server.open()), (0, 1));
}
