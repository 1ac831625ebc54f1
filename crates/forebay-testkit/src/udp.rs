//! Datagrams.

use crate::DEADLINE;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

/// UDP server that answers with the port that a datagram came from, a space and the datagram.
pub struct Echo {
    /// Its address.
    pub addr: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts it.
    pub fn start() -> Echo {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let addr = socket.local_addr().expect("bound");
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut buf = [0; 65536];
            while let Ok((count, from)) = socket.recv_from(&mut buf) {
                if ended.load(SeqCst) {
                    return;
                }
                let answer = [format!("{} ", from.port()).as_bytes(), &buf[..count]].concat();
                let _ = socket.send_to(&answer, from);
            }
        });
        Echo { addr, ends, thread: Some(thread) }
    }

    /// Closes the port.
    pub fn end(&mut self) {
        self.ends.store(true, SeqCst);
        let waker = UdpSocket::bind("127.0.0.1:0").expect("bind");
        waker.send_to(b"", self.addr).expect("sent");
        self.thread.take().expect("runs").join().expect("ended");
    }
}

/// Opens a socket to an address, whose reads have a deadline.
pub fn udp(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(if to.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" }).expect("bind");
    socket.connect(to).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("timeout");
    socket
}

/// Returns the next datagram as text, if one comes in time.
pub fn receive(socket: &UdpSocket) -> Option<String> {
    let mut buf = [0; 65536];
    let count = socket.recv(&mut buf).ok()?;
    Some(String::from_utf8_lossy(&buf[..count]).into_owned())
}
