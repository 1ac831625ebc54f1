//! Any bytes as datagrams of QUIC clients, in any cut and from any address.
#![no_main]

use forebay_net::quic::{
    Arrival, Choose, Congestion, Endpoint, HostKey, Mask, Owner, Place, Received, Settings, TlsConfig,
};
use forebay_net::tls::hello::Hello;
use libfuzzer_sys::fuzz_target;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Nobody;

impl Choose for Nobody {
    fn choose(&self, _: u32, _: Hello) -> Result<Arc<TlsConfig>, u8> {
        Err(112)
    }

    fn refused(&self, _: u32) {}
}

impl Owner for Nobody {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        Some(1)
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, _: Place, _: bool, _: &Received<'_>) -> bool {
        false
    }
}

fn endpoint() -> Option<Endpoint> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    let settings = Settings {
        streams: 4,
        stream_window: 1000,
        send_window: 4000,
        max_send_window: 4000,
        idle: Duration::from_secs(30),
        ids: 2,
        retry: false,
        connections: 8,
        congestion: Congestion::Cubic,
        key: HostKey::new(&[1; 64]),
    };
    let place = Place { process: 1, thread: 2, endpoint: 3 };
    Endpoint::new(Arc::new(socket.into()), false, settings, place, Arc::new(Mask::new(&[2; 16])?)).ok()
}

fuzz_target!(|input: (Vec<Vec<u8>>, u8)| {
    let (datagrams, spread) = input;
    let Some(endpoint) = endpoint() else { return };
    let chooser: Rc<dyn Choose> = Rc::new(Nobody);
    let now = Instant::now();
    for (n, bytes) in (0u16..).zip(&datagrams) {
        let remote = SocketAddr::from(([127, 0, 0, 1], 1 + n % (1 + u16::from(spread))));
        let received = Received { remote, local: None, ecn: spread & 3, bytes };
        endpoint.deliver(&received, now, &chooser, &Nobody);
        while endpoint.take_ready().is_some() {}
    }
    endpoint.flush(now, |_| {});
    endpoint.expire(now + Duration::from_secs(60));
    assert_eq!(endpoint.take_panics(), 0);
});
