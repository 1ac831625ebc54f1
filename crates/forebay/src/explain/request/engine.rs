//! Serves one request in this process and records its way.

use crate::front_ends::FRONT_ENDS;
use forebay_bench::load::Protocol;
use forebay_bench::ports::free_port;
use forebay_bench::tls::{self, Trust};
use forebay_compare::message::Received;
use forebay_compare::recorder::{Recorder, Scripted};
use forebay_core::config::Config;
use forebay_core::control::Failure;
use forebay_core::control::blocking::{Address, Connection, Limits, NoResponse, Patience};
use forebay_core::counters::Counters;
use forebay_core::process::ThreadGeneration;
use forebay_core::trace::{self, Step, World};
use forebay_core::worker::{self, Command, Mailbox, Setup};
use forebay_net::addr::{Peer, PeerAddr};
use forebay_net::reactor::Remote;
use rustix::fs::{Mode, OFlags};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Longest time for the request. A limit that delays it may be the reason for a wait.
const TIME: Duration = Duration::from_secs(30);

/// Largest head and body of the response that are kept, bytes.
const LIMITS: Limits = Limits { head: 64 << 10, body: 64 << 10 };

/// A request with the connection that it comes over.
pub(super) struct Sent {
    /// Listener, index into [`Config::listeners`].
    pub listener: usize,
    /// Client.
    pub client: Peer,
    /// Address that the client has connected to.
    pub local: Option<SocketAddr>,
    /// Name in the TLS handshake; `None`: no TLS.
    pub name: Option<String>,
    /// Head.
    pub head: String,
    /// Content.
    pub body: String,
    /// The method is HEAD.
    pub is_head: bool,
}

/// The way of a request.
pub(super) struct Trip {
    /// Steps in the order in which they were made.
    pub steps: Vec<Step>,
    /// Requests that the stand-in for upstreams has received.
    pub received: Vec<Received>,
    /// Head of the response, or the reason for which there is none.
    pub response: Result<Vec<u8>, String>,
    /// Bytes of content that came, at most [`LIMITS`].
    pub content: usize,
}

/// Returns a function that says what cannot be had, for errors of the system.
fn failed(what: &'static str) -> impl Fn(io::Error) -> String {
    move |e| format!("{what}: {e}")
}

/// Serves a request with a configuration.
///
/// # Errors
/// This process cannot serve: no sockets, no threads.
pub(super) fn run(config: Config, sent: &Sent, answer: Scripted) -> Result<Trip, String> {
    let upstreams = free_port().and_then(|port| Recorder::start(Ipv4Addr::LOCALHOST, port));
    let upstreams = upstreams.map_err(failed("a socket for upstreams"))?;
    upstreams.script(None, answer);
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("a socket for the client"))?;
    let address = socket.local_addr().map_err(failed("a socket for the client"))?;
    socket.set_nonblocking(true).map_err(failed("a socket for the client"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("a runtime"))?;
    let mailbox = Arc::new(Mailbox::default());
    let (started, ready) = mpsc::channel();
    let setup = Setup {
        number: 0,
        cpus: Vec::new(),
        connections: 64,
        share: generation(config, sent.listener, socket.into())?,
        counters: Arc::new(vec![Arc::new(Counters::default())]),
        front_ends: FRONT_ENDS,
        mailbox: mailbox.clone(),
        log_area: None,
        tokio: runtime.handle().clone(),
        started,
    };
    let client_mailbox = mailbox;
    let (begun, begins) = mpsc::channel();
    begun.send(()).map_err(|_| "the thread has no beginning")?;
    trace::begin(World {
        upstream: PeerAddr::Inet(upstreams.address()),
        client: sent.client,
        local: sent.local,
    });
    let exchanged = std::thread::scope(|scope| {
        let client = scope.spawn(move || client(address, sent, &ready, &client_mailbox));
        worker::main(setup, &begins);
        client.join().unwrap_or_else(|_| Err("the client failed".into()))
    });
    let steps = trace::end();
    let (response, content) = match exchanged {
        Ok((head, content)) => (Ok(head), content),
        Err(why) => (Err(why), 0),
    };
    Ok(Trip { steps, received: upstreams.take_without(), response, content })
}

/// Returns what the thread serves: one socket, and logs that lead nowhere.
fn generation(config: Config, listener: usize, socket: OwnedFd) -> Result<ThreadGeneration, String> {
    let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let null: Arc<OwnedFd> = Arc::new(null.map_err(|e| format!("/dev/null: {e}"))?);
    let mut sockets: Vec<_> = config.listeners.iter().map(|_| None).collect();
    if let Some(slot) = sockets.get_mut(listener) {
        *slot = Some((Arc::new(socket), false));
    }
    let logs = config.log_files.iter().map(|_| null.clone()).collect();
    Ok(ThreadGeneration { config: Arc::new(config), sockets, logs, generation: 1 })
}

/// Sends the request, reads the response and stops the thread. Returns the head, and the number of bytes after it.
fn client(
    address: SocketAddr,
    sent: &Sent,
    ready: &Receiver<io::Result<Remote>>,
    mailbox: &Mailbox,
) -> Result<(Vec<u8>, usize), String> {
    let remote = ready.recv().map_err(|_| "the thread did not start")?.map_err(|e| e.to_string())?;
    let exchanged = exchange(address, sent);
    mailbox.push(Command::Stop);
    remote.wake();
    exchanged
}

fn exchange(address: SocketAddr, sent: &Sent) -> Result<(Vec<u8>, usize), String> {
    let patience = Patience::Until(Instant::now() + TIME);
    let mut connection = Connection::open(&Address::Inet(address), patience).map_err(|e| e.to_string())?;
    if let Some(name) = &sent.name {
        let config = tls::config(&Trust::Anyone, Protocol::Http1).map_err(|e| e.to_string())?;
        let name = ServerName::try_from(name.clone()).map_err(|e| e.to_string())?;
        let tls = ClientConnection::new(config, name).map_err(|e| e.to_string())?;
        connection.secure(tls).map_err(|e| format!("TLS: {e}"))?;
    }
    connection.request(format!("{}{}", sent.head, sent.body).as_bytes()).map_err(|e| failure(&e))?;
    let no_response = |why: NoResponse| match why {
        NoResponse::LongHead => "the head of the response is too long".to_owned(),
        NoResponse::Failed(why) => failure(&why),
    };
    if sent.is_head {
        return Ok((connection.head(LIMITS.head).map_err(no_response)?, 0));
    }
    let response = connection.response(LIMITS).map_err(no_response)?;
    Ok((response.head, response.body.len()))
}

/// Returns the reason for which there is no response.
fn failure(why: &Failure) -> String {
    match why {
        Failure::Send(e) | Failure::Receive(e) => format!("the connection failed: {e}"),
        Failure::NoHead => "the connection was closed without a response".to_owned(),
        Failure::InvalidHead => "the head of the response is not valid".to_owned(),
        Failure::InvalidChunk | Failure::Incomplete => "the content of the response ends early".to_owned(),
    }
}
