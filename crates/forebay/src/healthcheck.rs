//! `forebay healthcheck`: asks a server on this machine whether it answers, for images that have no other client.

use crate::cli::Options;
use crate::origin;
use forebay_conf::address::{Address, Host};
use forebay_conf::files::Files;
use forebay_conf::tree::{Block, Directive};
use forebay_core::control::Failure;
use forebay_core::control::blocking::{self, Connection, Patience};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Length of `HTTP/1.1 200`.
const STATUS: usize = 12;

/// Runs the subcommand. Returns the exit code: 0 if the server is healthy.
pub(crate) fn main(options: &Options, url: Option<&str>, patience: Duration) -> u8 {
    let result = match url {
        Some(url) => Resource::parse(url).and_then(|resource| resource.check(patience)),
        None => address(options).and_then(|address| ping(&address, patience)),
    };
    match result {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay healthcheck: {text}");
            1
        }
    }
}

/// Returns the first address of an `http` server. Reads the files only: names of upstreams are not resolved.
fn address(options: &Options) -> Result<Address, String> {
    let (environment, _) = options.places();
    let tree = origin::tree(&environment, &mut Files::disk());
    let servers = inside(&tree.root, "http").flat_map(|http| inside(http, "server"));
    let mut listens = servers.flat_map(|server| named(server, "listen"));
    let is_stream = |listen: &Directive| !listen.args.iter().any(|word| word.text == b"quic");
    let first = listens.find(|listen| is_stream(listen)).and_then(|listen| listen.args.first());
    // nginx's default, by privilege.
    let default = if forebay_sys::identity::is_root() { "80" } else { "8000" };
    let text = first.map_or(default.into(), |word| word.as_str());
    Address::parse(&text, Some(80)).ok_or_else(|| format!("no address: \"{text}\""))
}

fn named<'a>(block: &'a Block, name: &'static str) -> impl Iterator<Item = &'a Directive> {
    block.iter().filter(move |directive| directive.name.text == name.as_bytes())
}

fn inside<'a>(block: &'a Block, name: &'static str) -> impl Iterator<Item = &'a Block> {
    named(block, name).filter_map(|directive| directive.block.as_ref())
}

/// Connects, and closes the connection's one direction without a request. A worker that runs closes the other one and logs
/// nothing, whatever the `listen` speaks: HTTP, TLS or the PROXY protocol. For a worker that hangs the kernel accepts the
/// connection, but does not close it.
fn ping(address: &Address, patience: Duration) -> Result<(), String> {
    match exchange(address, None, patience) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("no answer: {e}")),
    }
}

/// An `http` URL.
struct Resource {
    authority: String,
    address: Address,
    target: String,
}

impl Resource {
    fn parse(url: &str) -> Result<Resource, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("not an http:// URL: \"{url}\""))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address =
            Address::parse(authority, Some(80)).ok_or_else(|| format!("no address: \"{authority}\""))?;
        Ok(Resource { authority: authority.to_owned(), address, target: format!("/{path}") })
    }

    /// Requests the resource: healthy is a status from 200 to 399.
    fn check(&self, patience: Duration) -> Result<(), String> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: forebay-healthcheck\r\nConnection: close\r\n\r\n",
            self.target, self.authority
        );
        let answer =
            exchange(&self.address, Some(&request), patience).map_err(|e| format!("no answer: {e}"))?;
        let status = answer.get(9..STATUS).unwrap_or_default();
        match status.parse() {
            Ok(200..=399) => Ok(()),
            Ok(code @ 100..) => Err(format!("status {code}")),
            _ => Err("the answer is not HTTP".to_owned()),
        }
    }
}

/// Connects, sends a request if there is one, or its end, and returns the beginning of the answer: less than a status if the
/// server closes before.
fn exchange(address: &Address, request: Option<&str>, patience: Duration) -> io::Result<String> {
    let end = Patience::Until(Instant::now() + patience);
    let mut connection = Connection::open(&local(address), end)?;
    match request {
        Some(request) => connection.request(request.as_bytes()).map_err(|failure| match failure {
            Failure::Send(e) => e,
            other => io::Error::other(format!("{other:?}")),
        })?,
        None => connection.end()?,
    }
    Ok(String::from_utf8_lossy(&connection.beginning(STATUS)?).into_owned())
}

/// Returns an address of this machine at which a listener answers.
fn local(address: &Address) -> blocking::Address {
    let (host, port) = match address {
        Address::Unix(path) => return blocking::Address::Unix(path.into()),
        Address::Inet(host, ports) => (host, *ports.start()),
    };
    let ip = match host {
        Host::Any { v6: false } => Ipv4Addr::LOCALHOST.into(),
        Host::Any { v6: true } => Ipv6Addr::LOCALHOST.into(),
        Host::Ip(ip) => *ip,
        Host::Name(name) => return blocking::Address::Host(name.clone(), port),
    };
    blocking::Address::Inet((ip, port).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::sync::mpsc;

    /// A server that hangs accepts nothing, and so the queue of its socket is full.
    #[test]
    fn a_full_queue_is_no_answer() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let addr = SockAddr::unix(&path).expect("an address");
        listener.bind(&addr).and_then(|()| listener.listen(0)).expect("listens");
        let client = || {
            let client = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).expect("a socket");
            client.connect(&addr).is_ok().then_some(client)
        };
        let queue: Vec<Socket> = std::iter::from_fn(client).take(100).collect();
        assert!(queue.len() < 100, "the queue has an end");
        let address = Address::parse(&format!("unix:{}", path.display()), None).expect("an address");
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || done.send(ping(&address, Duration::from_millis(50))));
        let result = result.recv_timeout(Duration::from_secs(20)).expect("an end");
        assert!(result.is_err_and(|text| text.contains("timed out")), "no answer in time");
    }
}
