//! A name server.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// A name server that knows A records of 127.0.0.1 for the names it is given, and no others. It runs as long as the test program.
#[derive(Clone)]
pub struct Names {
    /// Its address.
    pub addr: SocketAddr,
    known: Arc<Mutex<Vec<String>>>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    /// Starts one that knows these names.
    pub fn start(known: &[&str]) -> Names {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let addr = socket.local_addr().expect("address");
        let names = Names { addr, known: Arc::default(), asked: Arc::default() };
        names.know(known);
        let own = names.clone();
        std::thread::spawn(move || {
            let mut buf = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buf) {
                own.asked.fetch_add(1, SeqCst);
                let _ = socket.send_to(&own.reply(&buf[..length]), from);
            }
        });
        names
    }

    /// Changes the names that it knows.
    pub fn know(&self, known: &[&str]) {
        let known = known.iter().map(|name| (*name).to_owned()).collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Returns how many questions have come.
    pub fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    fn reply(&self, question: &[u8]) -> Vec<u8> {
        let mut m = question.to_vec();
        let (mut at, mut name) = (12, Vec::new());
        while m[at] != 0 {
            let n = usize::from(m[at]);
            name.push(String::from_utf8_lossy(&m[at + 1..at + 1 + n]).into_owned());
            at += n + 1;
        }
        let is_a = m[at + 2] == 1;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(&name.join("."));
        (m[2], m[3]) = (0x81, if known { 0x80 } else { 0x83 });
        if known && is_a {
            m[7] = 1;
            m.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        m
    }
}
