//! Handshakes with the servers of a front end other than HTTP.

use super::accept::{Handshake, TlsServers};
use super::alpn;
use super::client::{ClientTls, OfferedProtocols, Wanted};
use super::demands::{Demands, Refusal};
use super::drive::{Driven, Patience};
use super::loader::{Loader, ServerInput};
use super::server::{Application, ServerTls, VirtualTls};
use super::settings::Written;
use super::vars::Variables;
use super::{Session, Verdict};
use crate::client::Client;
use crate::clock::Clock;
use crate::config::names::ServerName;
use crate::config::{
    Address, Build, Config, Context, Environment, ListenAddr, Listener, Scope, SocketOptions,
};
use crate::limit::cidr::Cidr;
use crate::thread::{ActiveConfig, Parts, Thread};
use crate::vars::{Captures, Evaluate, RowSource, Source, Var, VarError, VarId, VarStore};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_conf::tree::Block;
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::reactor::{Handler, Token};
use forebay_net::tls::certified::VerifyLater;
use forebay_net::tls::record::MAX_CONTENT;
use forebay_net::tls::stream::Stream;
use forebay_net::wire::Wire;
use rustls::pki_types::ServerName as Host;
use rustls::{AlertDescription, ClientConfig, ClientConnection};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Waker};
use std::time::{Duration, Instant};

/// Context of a front end without requests.
struct Visits;

impl Context for Visits {
    const BLOCK: &'static str = "";
    const TIMES: &'static [(&'static str, crate::upstream::balance::Timed)] = &[];
    type Eval = Visit;
    type Tables = ();
}

/// Connection for which variables are evaluated. It has those of TLS and no others.
struct Visit {
    clock: Clock,
    client: Rc<Client>,
    vars: Rc<Vec<Var<Visit>>>,
    captures: Captures,
    values: VarStore,
}

impl Evaluate for Visit {
    fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self.vars[usize::from(id.0)].source {
            Source::Get(value) => value(self, out),
            _ => Ok(false),
        }
    }

    fn values(&mut self) -> &mut VarStore {
        &mut self.values
    }

    fn captures(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn peer(&self) -> Peer {
        self.client.peer
    }

    fn session(&self) -> Option<&Session> {
        self.client.tls.as_deref()
    }

    fn forwarded(&self, peer: Peer, _: &[Cidr], _: bool) -> Peer {
        peer
    }

    fn log_with(&mut self, _: Level, _: impl FnOnce(&mut Vec<u8>)) {}
}

fn builtin(name: &[u8]) -> (Source<Visit>, bool) {
    let row = Variables::<Visit>::ROWS.iter().find(|row| row.name.as_bytes() == name);
    match row.map(|row| &row.get) {
        Some(RowSource::Get(value)) => (Source::Get(*value), true),
        _ => (Source::Unknown, true),
    }
}

/// Servers with their settings, and the lines of the error log.
struct Site {
    servers: Vec<VirtualTls>,
    vars: Rc<Vec<Var<Visit>>>,
    dir: Box<Path>,
    lines: RefCell<Vec<String>>,
}

impl TlsServers for &Site {
    type Eval = Visit;

    fn demands(&self, server: usize) -> Demands {
        self.servers[server].demands
    }

    fn tls(&self, server: usize) -> Option<&Arc<ServerTls>> {
        self.servers.get(server)?.handshakes.as_ref()
    }

    fn offers_optional(&self, _: usize, _: Option<&Address>) -> bool {
        false
    }

    fn quic_protocols(&self, _: usize) -> &'static [&'static [u8]] {
        &[]
    }

    fn evaluator(&self, client: &Rc<Client>, _: usize) -> Visit {
        Visit {
            clock: Clock::default(),
            client: client.clone(),
            vars: self.vars.clone(),
            captures: Captures::default(),
            values: VarStore::default(),
        }
    }

    fn shows_hello(&self) -> bool {
        false
    }

    fn serial(&self) -> u64 {
        1
    }

    fn certificate_dir(&self) -> &Path {
        &self.dir
    }

    fn is_logged(&self, _: &Client, level: Level) -> bool {
        level <= Level::Info
    }

    fn log(&self, _: &Client, _: Level, message: &str, tail: &str) {
        self.lines.borrow_mut().push(format!("{message}{tail}"));
    }
}

/// Makes a certificate of this name with its key. Returns `false` if there is no OpenSSL to make it.
fn certificate(dir: &Path, name: &str) -> bool {
    let args = format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.crt -subj /CN={name}"
    );
    let done = Command::new("openssl").args(args.split(' ')).current_dir(dir).output();
    done.is_ok_and(|d| d.status.success())
}

/// Parses the directives of each server, and calls `with` with their blocks and the state of a build.
fn read_settings<T>(servers: &[&str], with: impl FnOnce(Vec<&Block>, Scope<'_, Visits>) -> T) -> T {
    let text: String = servers.iter().map(|s| format!("server {{ {s} }}\n")).collect();
    let env = Environment {
        prefix: "/t/".into(),
        conf_path: "/t/c".into(),
        globals: String::new(),
        error_log: None,
        access_log: "access.log".into(),
    };
    let mut files = Files::recorded([(&env.conf_path, format!("stream {{ {text} }}"))]);
    let parsed = forebay_conf::parse::parse(&env.conf_path, "", "/t".as_ref(), &mut files);
    let stream = parsed.tree.root.iter().find_map(|d| d.block.as_ref()).expect("a block");
    let mut warnings = Vec::new();
    let cx: Scope<'_, Visits> = Scope::new(Build::new(&env, &mut files, &mut warnings), builtin);
    with(stream.iter().filter_map(|d| d.block.as_ref()).collect(), cx)
}

/// Reads the directives of each server.
fn site(dir: &Path, servers: &[&str]) -> Site {
    let text: String = servers.iter().map(|s| format!("server {{ {s} }}\n")).collect();
    let conf_path = dir.join("nginx.conf");
    std::fs::write(&conf_path, format!("stream {{ {text} }}")).expect("written");
    let env = Environment {
        prefix: dir.into(),
        conf_path,
        globals: String::new(),
        error_log: None,
        access_log: "access.log".into(),
    };
    let mut files = Files::default();
    let parsed = forebay_conf::parse::parse(&env.conf_path, "", dir, &mut files);
    let stream = parsed.tree.root.iter().find_map(|d| d.block.as_ref()).expect("a block");
    let mut warnings = Vec::new();
    let mut cx: Scope<'_, Visits> = Scope::new(Build::new(&env, &mut files, &mut warnings), builtin);
    let mut loader = Loader::default();
    let mut made = Vec::new();
    for server in stream.iter().filter_map(|d| d.block.as_ref()) {
        let mut written = Written::default();
        for d in server {
            assert!(written.set(d, &mut cx).unwrap_or_else(|e| panic!("{}", e.message)));
        }
        let application = Application {
            protocols: vec![b"echo".to_vec()],
            optional: None,
            early_data: false,
            record: MAX_CONTENT,
        };
        let input =
            ServerInput { settings: &written.resolve(), application, resolver: None, issued: Vec::new() };
        made.push(loader.server(&input, &mut cx).unwrap_or_else(|e| panic!("{}", e.message)));
    }
    let (vars, errors) = cx.vars.finish();
    assert_eq!(errors, [""; 0]);
    Site { servers: made, vars: Rc::new(vars), dir: dir.into(), lines: RefCell::default() }
}

/// A thread with one listener, whose servers have these names. The first is the default one.
fn thread(names: &[&str]) -> Rc<Thread> {
    let mut address = Address::default();
    for (server, name) in names.iter().enumerate() {
        assert!(address.names.add(&ServerName::Exact(name.as_bytes().to_vec()), server));
    }
    let listener = Listener::new(ListenAddr::Unix("/s".into()), SocketOptions::default(), 0, address);
    let config = Config { listeners: vec![listener], ..Config::default() };
    let active = ActiveConfig { listeners: vec![Some(0)], ..ActiveConfig::new(Arc::new(config)) };
    let parts = Parts {
        number: 0,
        active,
        log_buffers: Default::default(),
        all_counters: Arc::default(),
        max_connections: 1,
    };
    Thread::new(Rc::new(Io::new().expect("epoll")), parts)
}

/// Exchanges the records that wait. Returns the error of the client, if it has one.
fn exchange(client: &mut ClientConnection, socket: &mut UnixStream) -> Result<(), rustls::Error> {
    let mut records = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut records).expect("a vector");
    }
    socket.write_all(&records).expect("room");
    let mut received = Vec::new();
    match socket.read_to_end(&mut received) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
    }
    let mut rest = received.as_slice();
    while !rest.is_empty() {
        client.read_tls(&mut rest).expect("records");
        client.process_new_packets()?;
    }
    Ok(())
}

/// Event loop that ends after the events of one wait.
struct OneWait(Cell<u32>);

impl Handler for OneWait {
    fn accept(&self, _: u32) {}
    fn resume(&self, _: u8, _: Token) {}
    fn expired(&self, _: u8, _: Token) {}
    fn start_queued(&self, _: u8) {}
    fn set_aside_ended(&self, _: Token, _: u32) {}
    fn tick(&self, _: Instant) {}
    fn turn(&self) {
        self.0.set(self.0.get() + 1);
    }
    fn due(&self) -> Option<Instant> {
        Some(Instant::now())
    }
    fn finished(&self) -> bool {
        self.0.get() == 2
    }
}

/// Takes the event of a connection, if something has arrived on it.
fn wait(thread: &Thread, wire: &Wire) {
    let _ = wire.poll_readable(&thread.io, &mut task::Context::from_waker(Waker::noop()));
    thread.reactor.run(&OneWait(Cell::new(0))).expect("events");
}

/// Makes a handshake for a server name. Returns the client as the server sees it, and the certificate that it got.
///
/// # Errors
/// Error of the client's handshake.
fn connect(site: &Site, thread: &Thread, name: &'static str) -> Result<(Rc<Client>, Vec<u8>), rustls::Error> {
    connect_as(&client_config(), site, thread, name)
}

/// Makes the configuration of a client. It keeps sessions.
fn client_config() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(VerifyLater));
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"echo".to_vec()];
    Arc::new(config)
}

/// Makes a handshake as [`connect`] does, and takes the sessions that the server gives.
fn connect_as(
    config: &Arc<ClientConfig>,
    site: &Site,
    thread: &Thread,
    name: &'static str,
) -> Result<(Rc<Client>, Vec<u8>), rustls::Error> {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("set");
    theirs.set_nonblocking(true).expect("set");
    let mut wire = Wire::Plain(thread.io.poller.insert(ours.into()));
    wire.encrypt(Stream::server(Vec::new()));
    let host = Host::try_from(name).expect("a name");
    let mut peer = ClientConnection::new(config.clone(), host).expect("a client");
    let mut client = Rc::new(Client::none(Instant::now()));
    let active = thread.active();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let until = Instant::now() + Duration::from_secs(10);
    let mut done = false;
    while !done || peer.is_handshaking() {
        assert!(Instant::now() < until, "{:?}", site.lines);
        exchange(&mut peer, &mut theirs)?;
        if done {
            continue;
        }
        let (wire, client) = (&mut wire, &mut client);
        let mut handshake = Handshake { thread, active: &active, servers: site, wire, client };
        let room = Patience::Room(thread.io.poller.deadline_at(until));
        match runtime.block_on(handshake.drive(room)) {
            Driven::Done => {
                done = true;
                // Driving a complete handshake again changes nothing.
                assert_eq!(runtime.block_on(handshake.drive(room)), Driven::Done);
            }
            Driven::Paused => wait(thread, wire),
            Driven::Over => {}
            other => panic!("{other:?}"),
        }
    }
    exchange(&mut peer, &mut theirs)?;
    let own = peer.peer_certificates().and_then(|all| all.first()).expect("a certificate");
    Ok((client, own.to_vec()))
}

/// Text of a variable for a client.
fn variable(site: &Site, client: &Rc<Client>, name: &str) -> String {
    let (Source::Get(value), _) = builtin(name.as_bytes()) else { panic!("no {name}") };
    let mut out = Vec::new();
    let _ = value(&mut site.evaluator(client, 0), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn a_front_end_chooses_certificates_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    if !(certificate(dir.path(), "a.test") && certificate(dir.path(), "b.test")) {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return;
    }
    let site = site(
        dir.path(),
        &[
            "ssl_certificate a.test.crt; ssl_certificate_key a.test.key; ssl_protocols TLSv1.2;",
            "ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key;",
            "ssl_reject_handshake on;",
        ],
    );
    let thread = thread(&["a.test", "b.test", "c.test"]);
    let der = |name: &str| {
        let pem = std::fs::read(dir.path().join(name)).expect("a file");
        forebay_net::tls::pem::certificates(&pem)[0].to_vec()
    };
    let (client, shown) = connect(&site, &thread, "a.test").expect("a handshake");
    assert_eq!(shown, der("a.test.crt"));
    assert_eq!(variable(&site, &client, "ssl_protocol"), "TLSv1.2");
    assert_eq!(variable(&site, &client, "ssl_alpn_protocol"), "echo");
    // The file's name has a variable, so it is read in the handshake.
    let (client, shown) = connect(&site, &thread, "b.test").expect("a handshake");
    assert_eq!(shown, der("b.test.crt"));
    assert_eq!(variable(&site, &client, "ssl_protocol"), "TLSv1.3");
    assert_eq!(variable(&site, &client, "ssl_server_name"), "b.test");
    assert_eq!(client.tls.as_ref().map(|tls| tls.verdict.get()), Some(Verdict::None));
    assert_eq!(*site.lines.borrow(), [""; 0]);
    // An unknown name gets the default server.
    let (_, shown) = connect(&site, &thread, "d.test").expect("a handshake");
    assert_eq!(shown, der("a.test.crt"));
    let refused = connect(&site, &thread, "c.test").expect_err("a refusal");
    assert_eq!(refused, rustls::Error::AlertReceived(AlertDescription::UnrecognisedName));
    let text = "SSL_do_handshake() failed (SSL: error:0A0000E2:SSL routines::callback failed) while SSL handshaking, \
                client: unix:, server: unix:/s";
    assert_eq!(*site.lines.borrow(), [text]);
}

/// A client whose session is another server's, of a suite with another hash and without post-quantum groups, makes a new one.
#[test]
fn clients_come_from_servers_of_other_programs() {
    let dir = tempfile::tempdir().expect("a directory");
    if !certificate(dir.path(), "a.test") {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return;
    }
    let of = |more: &str| {
        let text = format!("ssl_certificate a.test.crt; ssl_certificate_key a.test.key; {more}");
        site(dir.path(), &[&text])
    };
    let other = of("ssl_ecdh_curve X25519; ssl_conf_command Ciphersuites TLS_AES_256_GCM_SHA384;");
    let ours = of("ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;");
    let config = client_config();
    let group = |site: &Site, name: &'static str| {
        let thread = thread(&[name]);
        let (client, _) = connect_as(&config, site, &thread, name).expect("a handshake");
        (variable(site, &client, "ssl_curve"), variable(site, &client, "ssl_session_reused"))
    };
    assert_eq!(group(&other, "a.test"), ("X25519".into(), ".".into()));
    assert_eq!(group(&ours, "a.test"), ("X25519".into(), ".".into()));
    // The session is resumed as usual.
    assert_eq!(group(&ours, "a.test").1, "r");
}

/// Settings that are gone when the next are read, so that the next lists may be where theirs were.
#[test]
fn authorities_are_not_those_of_earlier_settings() {
    let dir = tempfile::tempdir().expect("a directory");
    if !(certificate(dir.path(), "a.test") && certificate(dir.path(), "b.test")) {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return;
    }
    let of = |name| format!("ssl_verify_client on; ssl_client_certificate {name}.test.crt;");
    let servers: Vec<String> = (0..40).map(|n| of(if n % 2 == 0 { "a" } else { "b" })).collect();
    let site = site(dir.path(), &servers.iter().map(String::as_str).collect::<Vec<_>>());
    let [a, b] = [0, 1].map(|n| site.servers[n].demands);
    assert_ne!(a, b);
    for (n, server) in site.servers.iter().enumerate() {
        assert_eq!(server.demands, if n % 2 == 0 { a } else { b }, "{n}");
    }
}

/// Demands are those of the settings, whether or not a server makes handshakes.
#[test]
fn demands_come_from_the_settings() {
    let dir = tempfile::tempdir().expect("a directory");
    if !(certificate(dir.path(), "a.test") && certificate(dir.path(), "b.test")) {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return;
    }
    const A: &str = "ssl_certificate a.test.crt; ssl_certificate_key a.test.key;";
    const TRUST: &str = "ssl_verify_client on; ssl_client_certificate a.test.crt;";
    let site = site(
        dir.path(),
        &[
            &format!("{A} ssl_verify_client optional_no_ca;"),
            "",
            "ssl_verify_client off; ssl_client_certificate a.test.crt;",
            "ssl_verify_client on;",
            "ssl_verify_client optional;",
            TRUST,
            &format!("{A} {TRUST}"),
            &format!("{TRUST} ssl_verify_depth 2;"),
            &format!("{TRUST} ssl_ocsp leaf;"),
            "ssl_verify_client on; ssl_client_certificate b.test.crt;",
            "ssl_reject_handshake on; ssl_verify_client optional_no_ca;",
        ],
    );
    let demands: Vec<Demands> = site.servers.iter().map(|s| s.demands).collect();
    let any: Vec<bool> = demands.iter().map(Demands::any).collect();
    assert_eq!(any, [true, false, false, true, true, true, true, true, true, true, true]);
    let own: Vec<usize> = (0..11).filter(|n| (&site).tls(*n).is_some()).collect();
    assert_eq!(own, [0, 6, 10]);
    // The same settings, with and without a certificate.
    assert_eq!(demands[5], demands[6]);
    for n in 7..10 {
        assert_ne!(demands[n], demands[5], "{n}");
    }
    // The handshake of the default server judges a client without a certificate for all of them.
    let thread = thread(&["a.test", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    let (client, _) = connect(&site, &thread, "d.test").expect("a handshake");
    let session = client.tls.as_deref().expect("a session");
    let refused: Vec<usize> =
        (0..11).filter(|n| demands[*n].refuse(session) == Some(Refusal::Missing)).collect();
    assert_eq!(refused, [3, 5, 6, 7, 8, 9]);
}

#[test]
fn names_for_alpn() {
    let long = "a".repeat(256);
    let servers = [
        "ssl_alpn foo '' \"b c\"; ssl_handshake_timeout 5ms; proxy_ssl_alpn x '' y;",
        "",
        "proxy_ssl_alpn $ssl_server_name z;",
        &format!("ssl_alpn {long};"),
        &format!("proxy_ssl_alpn {long};"),
        "ssl_alpn a; ssl_alpn b;",
        "proxy_ssl_alpn a; proxy_ssl_alpn b;",
        "ssl_handshake_timeout x;",
    ];
    let read = |block: &Block, cx: &mut Scope<'_, Visits>| {
        let (mut own, mut upstream) = (alpn::Written::default(), alpn::upstream::Written::default());
        for d in block {
            if !own.set(d, cx)? {
                assert!(upstream.set(d, cx)?, "{}", d.name.as_str());
            }
        }
        Ok((own.resolve(), upstream.resolve()))
    };
    let (all, vars) = read_settings(&servers, |blocks, mut cx| {
        let all: Vec<Result<_, forebay_conf::error::Error>> =
            blocks.into_iter().map(|block| read(block, &mut cx)).collect();
        (all, cx.vars.finish().0)
    });
    let text = |n: usize| all[n].as_ref().map(|_| "").map_err(|e| e.message.as_str());
    let (own, upstream) = all[0].as_ref().expect("settings");
    assert_eq!(own.application().protocols, [b"foo".to_vec(), b"b c".to_vec()]);
    assert_eq!(own.handshake_timeout.0, Duration::from_millis(5));
    assert_eq!(upstream.alpn.constants(), Some(vec![&b"x"[..], b"y"]));
    let (own, upstream) = all[1].as_ref().expect("settings");
    assert!(own.application().protocols.is_empty());
    assert_eq!(own.handshake_timeout.0, Duration::from_secs(60));
    assert_eq!(upstream.alpn.constants(), Some(Vec::new()));
    let (_, upstream) = all[2].as_ref().expect("settings");
    assert_eq!(upstream.alpn.constants(), None);
    let mut client = Client::none(Instant::now());
    client.tls = Some(Rc::new(Session { name: Some(b"n.test".to_vec().into()), ..Session::default() }));
    let mut visit = Visit {
        clock: Clock::default(),
        client: Rc::new(client),
        vars: Rc::new(vars),
        captures: Captures::default(),
        values: VarStore::default(),
    };
    assert_eq!(upstream.alpn.values(&mut visit), Ok(vec![b"n.test".to_vec(), b"z".to_vec()]));
    assert_eq!(text(3), Err("\"ssl_alpn\" directive protocol too long"));
    assert_eq!(text(4), Err("\"proxy_ssl_alpn\" directive protocol too long"));
    assert_eq!(text(5), Err("\"ssl_alpn\" directive is duplicate"));
    assert_eq!(text(6), Err("\"proxy_ssl_alpn\" directive is duplicate"));
    assert_eq!(text(7), Err("\"ssl_handshake_timeout\" directive invalid value"));
}

/// Begins a connection, and returns its first bytes.
fn client_hello(wanted: &Wanted, mut waker: task::Context<'_>) -> Vec<u8> {
    let task::Poll::Ready(begun) = pin!(wanted.begin("/t".as_ref())).poll(&mut waker) else {
        panic!("no files")
    };
    let mut begun = begun.expect("a connection");
    let mut bytes = vec![0; 4096];
    match begun.process_tls_records(&mut []).state {
        Ok(rustls::unbuffered::ConnectionState::EncodeTlsData(mut hello)) => {
            let len = hello.encode(&mut bytes).expect("room");
            bytes.truncate(len);
        }
        other => panic!("{other:?}"),
    }
    bytes
}

/// Protocols of a session differ from those of others of the same settings, and their connections are not exchanged.
#[test]
fn sessions_offer_protocols_of_their_own() {
    let tls = read_settings(&[""], |_, mut cx| {
        let settings = super::proxy_ssl::Written::default().resolve();
        ClientTls::new(
            &settings,
            OfferedProtocols { alpn: &[b"common"], quic: None },
            &mut Loader::default(),
            &mut cx,
        )
    });
    let tls = Arc::new(tls.unwrap_or_else(|e| panic!("{}", e.message)));
    let mut visit = Visit {
        clock: Clock::default(),
        client: Rc::new(Client::none(Instant::now())),
        vars: Rc::default(),
        captures: Captures::default(),
        values: VarStore::default(),
    };
    let common = tls.wanted(&mut visit, |_| b"host.test:1".to_vec());
    let mut own = common.clone();
    own.offer(vec![b"mine".to_vec()]);
    assert_ne!(common.key(), own.key());
    for (wanted, offered) in [(common, "common"), (own, "mine")] {
        let hello = client_hello(&wanted, task::Context::from_waker(Waker::noop()));
        let contains = |name: &str| hello.windows(name.len()).any(|w| w == name.as_bytes());
        assert!(contains(offered), "{offered}");
        assert_eq!(contains("common"), offered == "common");
    }
}
