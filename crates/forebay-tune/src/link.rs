//! A slow link between load and server: a relay on the loopback that holds bytes back, in threads of this process.
//!
//! Bytes to the client share the rate of the link, whatever connection they belong to; each direction takes half of the round trip, and
//! the first bytes of a connection one more round trip, as its handshake would. What TCP does on a lossy link is not emulated.

use crate::load::LoadPlan;
use forebay_bench::load::{Load, Protocol, Stop};
use forebay_bench::signals;
use forebay_copy::scene::Target;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A link between server and client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) bytes_a_second: f64,
    /// Seconds.
    pub(crate) round_trip: f64,
    /// Bytes that a server sends before the first acknowledgement (RFC 6928).
    pub(crate) first_window: f64,
}

/// The link of `--for transfer`: 4 Mbit/s and 60 ms, a slow mobile connection.
pub(crate) const SLOW: Link = Link { bytes_a_second: 500_000.0, round_trip: 0.06, first_window: 14_600.0 };

/// Bytes that are read at once.
const PIECE: usize = 8 << 10;
/// Pieces on their way in a direction.
const PIECES: usize = 64;
/// Most connections at a time; more are closed.
const MOST: usize = 64;
/// Connections of a page over HTTP/1.1, as browsers have it.
const BROWSER: usize = 6;
/// Requests of a page at once on one connection.
const STREAMS: usize = 64;
/// Most bytes of a page, uncompressed.
const PAGE: u64 = 400 << 10;
/// Requests of a page.
const REQUESTS: usize = 24;

/// Relays, by the address of the server that they lead to.
#[derive(Debug)]
pub(crate) struct Relays {
    link: Link,
    ports: BTreeMap<SocketAddr, SocketAddr>,
}

impl Relays {
    pub(crate) fn new(link: Link) -> Relays {
        Relays { link, ports: BTreeMap::new() }
    }

    /// Returns the time of a page: some targets of one server with connections that are new.
    pub(crate) fn page(&mut self, targets: &[Target], manner: &LoadPlan) -> Result<f64, String> {
        let page = page_of(targets);
        let behind = page.iter().map(|t| self.behind(t)).collect::<Result<Vec<Target>, String>>()?;
        let most = if manner.protocol == Protocol::Http1 { BROWSER } else { 1 };
        let loads = shares(&behind, most)
            .iter()
            .map(|share| load_of(share, manner))
            .collect::<Result<Vec<Load>, String>>()?;
        let start = Instant::now();
        let all: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = loads.iter().map(|load| scope.spawn(|| fetch(load))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread failed".into()))).collect()
        });
        let time = start.elapsed().as_secs_f64();
        all.into_iter()
            .collect::<Result<(), String>>()
            .map_err(|why| format!("over the slow link: {why}"))?;
        Ok(time)
    }

    /// Returns a target as it is reached over the link.
    fn behind(&mut self, target: &Target) -> Result<Target, String> {
        let wrong = || format!("{}: no address", target.url);
        let (scheme, rest) = target.url.split_once("://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let server: SocketAddr = authority.parse().map_err(|_| wrong())?;
        let relay = match self.ports.get(&server) {
            Some(relay) => *relay,
            None => start(self.link, server).map_err(|e| format!("a relay to {server}: {e}"))?,
        };
        self.ports.insert(server, relay);
        let host = target.host.clone().or_else(|| Some(authority.to_owned()));
        Ok(Target { url: format!("{scheme}://{relay}{path}"), host, ..target.clone() })
    }
}

/// Returns the targets of each connection of a page, which has at most so many. All of them together are asked for each once, however
/// fast a connection is.
fn shares(page: &[Target], most: usize) -> Vec<Vec<Target>> {
    let connections = most.min(page.len());
    let share = |n: usize| page.iter().skip(n).step_by(connections).cloned().collect();
    (0..connections).map(share).collect()
}

/// Returns the load of a connection of a page.
fn load_of(share: &[Target], manner: &LoadPlan) -> Result<Load, String> {
    let plan = LoadPlan { rate: None, access_log: None, ..manner.clone() };
    let mut load = crate::load::load(share, &plan)?;
    load.connections = 1;
    load.parallel = if manner.protocol == Protocol::Http1 { 1 } else { STREAMS };
    load.per_connection = 0;
    load.timeout = Duration::from_secs(30);
    load.stop = Stop::Count(share.len() as u64, Some(Duration::from_secs(30)));
    Ok(load)
}

/// Sends the requests of a connection and waits for the answers.
fn fetch(load: &Load) -> Result<(), String> {
    let run = forebay_bench::run::run(load, None, |_| !signals::interrupted()).map_err(|e| e.to_string())?;
    run.outcome.first_error.map_or(Ok(()), Err)
}

/// Returns the targets of a page: those of the first server, encrypted ones if there are any.
fn page_of(targets: &[Target]) -> Vec<&Target> {
    let origin = |t: &Target| t.url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let first = targets.iter().find(|t| t.url.starts_with("https")).or(targets.first()).map(origin);
    let mut bytes = 0;
    let of_page = targets.iter().filter(|t| Some(origin(t)) == first);
    let mut page: Vec<&Target> = of_page.clone().filter(|t| t.size <= PAGE).collect();
    page.retain(|t| {
        bytes += t.size;
        bytes <= PAGE
    });
    page.truncate(REQUESTS);
    if page.is_empty() { of_page.take(1).collect() } else { page }
}

/// Starts a relay to a server. It ends with this process.
fn start(link: Link, server: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let down = Arc::new(Mutex::new(Instant::now()));
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for client in listener.incoming().flatten() {
            if open.load(Ordering::Relaxed) >= MOST {
                continue;
            }
            if let Ok(server) = TcpStream::connect(server) {
                open.fetch_add(1, Ordering::Relaxed);
                let slot = Slot(open.clone());
                if let Err(e) = relay(link, [client, server], &down, slot) {
                    say!("The slow link lost a connection: {e}");
                }
            }
        }
    };
    std::thread::Builder::new().name("link".into()).spawn(accept)?;
    Ok(address)
}

/// A piece of a stream, with the time at which it arrives.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

/// The place of a connection among those that are open, free when it is dropped.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Relays a connection in both directions, between the sockets of client and server.
fn relay(
    link: Link,
    [client, server]: [TcpStream; 2],
    down: &Arc<Mutex<Instant>>,
    slot: Slot,
) -> std::io::Result<()> {
    let half = Duration::from_secs_f64(link.round_trip / 2.0);
    let (from_client, from_server, last) = (client.try_clone()?, server.try_clone()?, client.try_clone()?);
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // The handshake takes a round trip, in which the client would wait.
    let ready = Instant::now() + half * 2;
    let up = move |_: usize| Instant::now().max(ready) + half;
    let down = down.clone();
    let rate = link.bytes_a_second;
    let down = move |bytes: usize| {
        let mut free = down.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *free = (*free).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate);
        *free + half
    };
    carry(from_client, server, up, || {})?;
    // One direction alone would leave the client waiting.
    carry(from_server, client, down, move || drop(slot)).inspect_err(|_| {
        let _ = last.shutdown(Shutdown::Both);
    })
}

/// Carries bytes from one socket to the other, each piece at its time; `end` is called after the last one.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    due: impl Fn(usize) -> Instant + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let (send, receive): (SyncSender<Piece>, Receiver<Piece>) = sync_channel(PIECES);
    let read = move || {
        let mut buf = vec![0; PIECE];
        while let Ok(n) = from.read(&mut buf) {
            let Some(bytes) = buf.get(..n).filter(|b| !b.is_empty()) else { break };
            if send.send(Piece { due: due(n), bytes: bytes.to_vec() }).is_err() {
                break;
            }
        }
    };
    let write = move || {
        for piece in receive {
            std::thread::sleep(piece.due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece.bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        end();
    };
    let thread = |name: &str| std::thread::Builder::new().name(name.into()).stack_size(256 << 10);
    // Ends by itself where the other one cannot be started.
    thread("link write").spawn(write)?;
    thread("link read").spawn(read).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_time_of_the_link() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            stream.write_all(&vec![b'x'; 50_000]).expect("sent");
        });
        let link = Link { bytes_a_second: 500_000.0, round_trip: 0.04, first_window: 0.0 };
        let relay = start(link, server).expect("a relay");
        let begin = Instant::now();
        let mut client = TcpStream::connect(relay).expect("connected");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        client.write_all(b"?").expect("sent");
        let mut all = Vec::new();
        client.read_to_end(&mut all).expect("received");
        serve.join().expect("served");
        // A round trip for the handshake, one for the request, and a tenth of a second for the bytes.
        let time = begin.elapsed().as_secs_f64();
        assert!(all.len() == 50_000 && time >= 0.179, "{} bytes in {time}", all.len());
    }

    #[test]
    fn connections_share_a_page_without_a_rest() {
        let target = |n: usize| Target {
            url: format!("http://127.0.0.1:1/{n}"),
            host: None,
            location: None,
            proxied: false,
            size: 1,
        };
        let page: Vec<Target> = (0..8).map(target).collect();
        for (most, sizes) in [(6, vec![2, 2, 1, 1, 1, 1]), (1, vec![8]), (20, vec![1; 8])] {
            let shares = shares(&page, most);
            assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
            let urls: std::collections::BTreeSet<&str> =
                shares.iter().flatten().map(|t| t.url.as_str()).collect();
            assert_eq!(urls.len(), 8);
        }
        assert!(shares(&[], 6).is_empty());
    }

    #[test]
    fn a_place_of_a_link_is_free_again() {
        let open = Arc::new(AtomicUsize::new(1));
        drop(Slot(open.clone()));
        assert_eq!(open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_page_is_of_one_server_and_not_endless() {
        let target =
            |url: &str, size| Target { url: url.into(), host: None, location: None, proxied: false, size };
        let all = [
            target("http://127.0.0.1:1/a", 10),
            target("https://127.0.0.1:2/b", 10),
            target("https://127.0.0.1:2/huge", 1 << 30),
            target("https://127.0.0.1:2/c", 10),
        ];
        let urls = |all: &[Target]| page_of(all).iter().map(|t| t.url.clone()).collect::<Vec<_>>();
        assert_eq!(urls(&all), ["https://127.0.0.1:2/b", "https://127.0.0.1:2/c"]);
        assert_eq!(urls(&all[2..3]).len(), 1);
        assert!(urls(&[]).is_empty());
    }
}
