//! Client of the interoperability matrix on quiche. See ../README.md for what it is called with.

mod server;

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use quiche::h3::{self, NameValue};
use quiche::{Config, Connection, ConnectionId, PathEvent, RecvInfo};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);
const DATAGRAM: usize = 1350;
/// Bytes of connection ids: those of the clock and four of a number.
const ID_LENGTH: usize = 20;
/// Version that no server knows.
const UNKNOWN: u32 = 0x1a2a_3a4a;
/// Exit status for a case that the client cannot do.
const UNSUPPORTED: u8 = 127;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// File to download, with the hash that its content has to have.
struct File {
    path: String,
    hash: String,
}

/// Response under way.
struct Download<'a> {
    file: &'a File,
    sum: Sha256,
    status: Vec<u8>,
    length: usize,
    done: bool,
}

/// Settings in which cases differ.
struct Options {
    version: u32,
    window: u64,
    early: bool,
    migrate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { version: quiche::PROTOCOL_VERSION, window: 1 << 20, early: false, migrate: false }
    }
}

/// Outcome of a connection.
struct Outcome {
    resumed: bool,
    session: Option<Vec<u8>>,
}

/// Sockets of a connection: a second one where it moves.
struct Sockets {
    poll: Poll,
    all: Vec<UdpSocket>,
}

impl Sockets {
    /// Binds so many sockets, of the server's family of addresses.
    fn new(count: usize, server: SocketAddr) -> Result<Sockets> {
        let host = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
        let poll = Poll::new()?;
        let mut all = Vec::new();
        for n in 0..count {
            let mut socket = UdpSocket::bind(host.parse()?)?;
            poll.registry().register(&mut socket, Token(n), Interest::READABLE)?;
            all.push(socket);
        }
        Ok(Sockets { poll, all })
    }

    fn receive(&self, conn: &mut Connection) -> Result<()> {
        let mut buf = [0; 65535];
        for socket in &self.all {
            let to = socket.local_addr()?;
            loop {
                match socket.recv_from(&mut buf) {
                    // An id that the server has retired comes again when paths overtake each other. quiche would close the
                    // connection; RFC 9000, section 5.2, has the packet dropped.
                    Ok((n, _)) if !addressed(conn, &mut buf[..n]) => {}
                    // A packet that cannot be read is dropped, as quiche asks.
                    Ok((n, from)) => drop(conn.recv(&mut buf[..n], RecvInfo { from, to })),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    fn send(&self, conn: &mut Connection) -> Result<()> {
        let mut out = [0; DATAGRAM];
        for socket in &self.all {
            let from = socket.local_addr()?;
            for to in conn.paths_iter(from) {
                while let Ok((n, info)) = conn.send_on_path(&mut out, Some(from), Some(to)) {
                    match socket.send_to(&out[..n], info.to) {
                        Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn config(options: &Options) -> Result<Config> {
    let mut config = Config::new(options.version)?;
    config.verify_peer(false);
    config.set_application_protos(h3::APPLICATION_PROTOCOL)?;
    config.set_max_idle_timeout(DEADLINE.as_millis() as u64);
    config.set_max_recv_udp_payload_size(DATAGRAM);
    config.set_max_send_udp_payload_size(DATAGRAM);
    config.set_initial_max_data(2 * options.window);
    config.set_initial_max_stream_data_bidi_local(options.window);
    config.set_initial_max_stream_data_uni(options.window);
    config.set_initial_max_streams_uni(8);
    config.set_active_connection_id_limit(4);
    if options.early {
        config.enable_early_data();
    }
    Ok(config)
}

/// Tells whether a datagram has a connection id of ours.
fn addressed(conn: &Connection, datagram: &mut [u8]) -> bool {
    let head = quiche::Header::from_slice(datagram, ID_LENGTH);
    head.is_ok_and(|head| conn.source_ids().any(|id| *id == head.dcid))
}

/// Connection id, from the clock: nothing here is secret.
fn id(n: u8) -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let mut id = now.to_le_bytes().to_vec();
    id.extend([n; 4]);
    id
}

/// Connects, downloads the files at the same time, and closes.
fn connect(server: SocketAddr, files: &[File], options: &Options, session: Option<&[u8]>) -> Result<Outcome> {
    let mut sockets = Sockets::new(if options.migrate { 2 } else { 1 }, server)?;
    let (local, other) =
        (sockets.all[0].local_addr()?, sockets.all.last().map(UdpSocket::local_addr).transpose()?);
    let scid = id(0);
    let mut conn = quiche::connect(
        Some("localhost"),
        &ConnectionId::from_ref(&scid),
        local,
        server,
        &mut config(options)?,
    )?;
    if let Some(session) = session {
        conn.set_session(session)?;
    }
    let (mut http, mut downloads, mut ids) = (None, HashMap::new(), 1);
    let (mut probed, mut moved, mut closing) = (false, false, false);
    let (begun, mut events) = (Instant::now(), Events::with_capacity(64));
    sockets.send(&mut conn)?;
    while !conn.is_closed() {
        if begun.elapsed() > DEADLINE {
            return Err("no end in time".into());
        }
        // A request with early data leaves before the server has answered.
        if http.is_some() || !conn.is_in_early_data() {
            sockets.poll.poll(&mut events, conn.timeout().or(Some(DEADLINE)))?;
            if events.is_empty() {
                conn.on_timeout();
            }
        }
        sockets.receive(&mut conn)?;
        if http.is_none() && (conn.is_established() || conn.is_in_early_data()) {
            http = Some(h3::Connection::with_transport(&mut conn, &h3::Config::new()?)?);
        }
        if let Some(http) = &mut http {
            start(http, &mut conn, files, &mut downloads)?;
            // The rest of the content is left where it is until the connection has moved, or the download could end before.
            if moved || !probed {
                respond(http, &mut conn, &mut downloads)?;
            }
        }
        while conn.scids_left() > 0 && conn.is_established() {
            conn.new_scid(&ConnectionId::from_vec(id(ids)), u128::from(ids), false)?;
            ids += 1;
        }
        let under_way = downloads.values().any(|d| d.length > 100_000);
        if let (true, true, false, Some(other)) =
            (options.migrate, under_way && conn.available_dcids() > 0, probed, other)
        {
            conn.probe_path(other, server)?;
            probed = true;
        }
        while let Some(event) = conn.path_event_next() {
            match event {
                PathEvent::Validated(local, peer) => {
                    conn.migrate(local, peer)?;
                    moved = true;
                }
                PathEvent::FailedValidation(..) => {
                    return Err("the server does not answer on the new path".into());
                }
                _ => {}
            }
        }
        // The ticket comes with the end of the handshake.
        let complete = downloads.len() == files.len() && downloads.values().all(|d| d.done);
        if complete && !closing && conn.is_established() && conn.session().is_some() {
            closing = true;
            conn.close(true, 0x100, b"")?;
        }
        sockets.send(&mut conn)?;
    }
    if !closing {
        return Err(format!("the connection ended: {:?} {:?}", conn.peer_error(), conn.local_error()).into());
    }
    if options.migrate && !moved {
        return Err("the connection did not move".into());
    }
    for d in downloads.values() {
        let hash: String = d.sum.clone().finalize().iter().map(|b| format!("{b:02x}")).collect();
        if d.status != b"200" {
            return Err(format!("status {}", String::from_utf8_lossy(&d.status)).into());
        }
        if hash != d.file.hash {
            return Err(format!("{} bytes with another content", d.length).into());
        }
    }
    Ok(Outcome { resumed: conn.is_resumed(), session: conn.session().map(<[u8]>::to_vec) })
}

/// Sends requests for the files that are left, as many as the server allows at a time.
fn start<'a>(
    http: &mut h3::Connection,
    conn: &mut Connection,
    files: &'a [File],
    downloads: &mut HashMap<u64, Download<'a>>,
) -> Result<()> {
    for file in files.iter().skip(downloads.len()) {
        if conn.peer_streams_left_bidi() == 0 {
            break;
        }
        let fields = [
            h3::Header::new(b":method", b"GET"),
            h3::Header::new(b":scheme", b"https"),
            h3::Header::new(b":authority", b"localhost"),
            h3::Header::new(b":path", file.path.as_bytes()),
        ];
        let stream = match http.send_request(conn, &fields, true) {
            Err(h3::Error::StreamBlocked) => break,
            sent => sent?,
        };
        downloads.insert(
            stream,
            Download { file, sum: Sha256::new(), status: Vec::new(), length: 0, done: false },
        );
    }
    Ok(())
}

fn respond(
    http: &mut h3::Connection,
    conn: &mut Connection,
    downloads: &mut HashMap<u64, Download>,
) -> Result<()> {
    let mut buf = [0; 65535];
    loop {
        match http.poll(conn) {
            Ok((stream, event)) => {
                let Some(download) = downloads.get_mut(&stream) else { continue };
                match event {
                    h3::Event::Headers { list, .. } => {
                        let status = list.iter().find(|h| h.name() == b":status");
                        download.status = status.map(|h| h.value().to_vec()).unwrap_or_default();
                    }
                    h3::Event::Data => {
                        while let Ok(n) = http.recv_body(conn, stream, &mut buf) {
                            download.sum.update(&buf[..n]);
                            download.length += n;
                        }
                    }
                    h3::Event::Finished => download.done = true,
                    h3::Event::Reset(code) => return Err(format!("reset: {code:#x}").into()),
                    _ => {}
                }
            }
            Err(h3::Error::Done) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Runs a case. `None` is for one that quiche cannot do.
fn run(case: &str, server: SocketAddr, files: &[File]) -> Result<Option<()>> {
    let mut options = Options::default();
    match case {
        "handshake" | "retry" | "multiplexing" | "http3" => {}
        // BoringSSL prefers it on machines without AES: see `OPENSSL_ia32cap` in ../run.py.
        "chacha20" => {}
        "transfer" => options.window = 1 << 16,
        "versionnegotiation" => options.version = UNKNOWN,
        "migration" => options.migrate = true,
        "multiconnect" => {
            for file in files {
                connect(server, std::slice::from_ref(file), &options, None)?;
            }
            return Ok(Some(()));
        }
        "resumption" | "zerortt" => {
            let (first, second) = files.split_at(1);
            options.early = case == "zerortt";
            let session = connect(server, first, &options, None)?.session;
            let again = connect(server, second, &options, session.as_deref())?;
            return if again.resumed { Ok(Some(())) } else { Err("the session was not resumed".into()) };
        }
        // quiche begins no key update, sends no ECN, and knows no version 2.
        _ => return Ok(None),
    }
    connect(server, files, &options, None)?;
    Ok(Some(()))
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "server").is_some() {
        return server::main(&args.collect::<Vec<_>>());
    }
    let (Some(case), Some(Ok(server))) = (args.next(), args.next().map(|a| a.parse())) else {
        eprintln!("usage: interop-quiche CASE ADDRESS PATH=SHA256 ...");
        return ExitCode::from(2);
    };
    let files: Vec<File> = args
        .filter_map(|a| a.rsplit_once('=').map(|(path, hash)| File { path: path.into(), hash: hash.into() }))
        .collect();
    match run(&case, server, &files) {
        Ok(Some(())) => ExitCode::SUCCESS,
        Ok(None) => ExitCode::from(UNSUPPORTED),
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}
