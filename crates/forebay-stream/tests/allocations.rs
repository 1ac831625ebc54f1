//! Bytes and datagrams of sessions that are there pass without an allocation. A new session of TCP has a known number of them.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

use forebay_core::front::FrontEnd;
use forebay_sys::alloc::CountingAllocator;
use forebay_testkit::worker;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static FRONT_ENDS: &[&dyn FrontEnd] = &[&forebay_stream::FRONT_END];

const MESSAGE: &[u8; 64] = &[b'm'; 64];

/// Starts a server that sends back what it receives, for as long as the process lives.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 1024];
                while let Ok(n @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..n]).expect("write");
                }
            });
        }
    });
    addr
}

/// Starts a server that sends datagrams back.
fn echo_datagrams() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = socket.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok((n, from)) = socket.recv_from(&mut bytes) {
            socket.send_to(&bytes[..n], from).expect("send");
        }
    });
    addr
}

/// Work of a client.
#[derive(Clone, Copy)]
enum Work {
    /// Messages on one connection, each of which comes back before the next.
    Messages,
    /// Connections, one after the other, with a message each.
    Connections,
    /// Datagrams of one client, each of which comes back before the next.
    Datagrams,
}

fn ask(stream: &mut TcpStream) {
    let mut answer = [0; MESSAGE.len()];
    stream.write_all(MESSAGE).expect("write");
    stream.read_exact(&mut answer).expect("read");
    assert_eq!(&answer, MESSAGE);
}

impl Work {
    fn times(self, n: usize, addr: SocketAddr) {
        match self {
            Work::Messages => {
                let mut stream = TcpStream::connect(addr).expect("connect");
                (0..n).for_each(|_| ask(&mut stream));
            }
            Work::Connections => {
                for _ in 0..n {
                    let mut stream = TcpStream::connect(addr).expect("connect");
                    ask(&mut stream);
                    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
                    // The session has ended, and its memory is free for the next.
                    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
                }
            }
            Work::Datagrams => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
                socket.connect(addr).expect("connect");
                socket.set_read_timeout(Some(Duration::from_secs(20))).expect("option");
                let mut answer = [0; MESSAGE.len()];
                for _ in 0..n {
                    socket.send(MESSAGE).expect("send");
                    assert_eq!(socket.recv(&mut answer).expect("receive"), MESSAGE.len());
                }
            }
        }
    }
}

/// Runs a worker in this thread while another one does the work. Returns the number of allocations of this thread.
fn allocations(dir: &Path, work: Work, times: usize) -> u64 {
    let (socket, addr, parameter, upstream): (OwnedFd, _, _, _) = match work {
        Work::Messages | Work::Connections => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            listener.set_nonblocking(true).expect("nonblocking");
            let addr = listener.local_addr().expect("bound");
            (listener.into(), addr, "", echo())
        }
        Work::Datagrams => {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
            socket.set_nonblocking(true).expect("nonblocking");
            let addr = socket.local_addr().expect("bound");
            (socket.into(), addr, "udp", echo_datagrams())
        }
    };
    let conf = format!(
        "events {{}}\nstream {{ upstream u {{ server {upstream}; }} log_format l '$status $upstream_addr';\n\
         access_log {d}/access.log l buffer=64k flush=5s;\n\
         server {{ listen {addr} {parameter}; proxy_pass u; }} }}\n",
        d = dir.display()
    );
    let mut before = 0;
    let begin = || before = CountingAllocator::counts().allocations;
    worker::serve(dir, &conf, FRONT_ENDS, socket, begin, move || work.times(times, addr));
    CountingAllocator::counts().allocations - before
}

/// Counts the allocations of a thousand repetitions.
fn of_a_thousand(work: Work) -> u64 {
    let dir = tempfile::tempdir().expect("temporary directory");
    // What the process makes once is not counted.
    allocations(dir.path(), work, 10);
    let few = allocations(dir.path(), work, 100);
    let many = allocations(dir.path(), work, 1100);
    many.abs_diff(few)
}

/// Allocations of a session over TCP, from its acceptance to its line in the log.
const SESSION: u64 = 13;

#[test]
fn warm_sessions_allocate_nothing() {
    // The two runs differ in a thousand repetitions; timing may cost a handful in either.
    let messages = of_a_thousand(Work::Messages);
    assert!(messages < 50, "{messages} allocations for 1000 messages");
    let datagrams = of_a_thousand(Work::Datagrams);
    assert!(datagrams < 50, "{datagrams} allocations for 1000 datagrams");
    let sessions = of_a_thousand(Work::Connections);
    assert!(sessions < SESSION * 1000 + 500, "{sessions} allocations for 1000 sessions");
}
