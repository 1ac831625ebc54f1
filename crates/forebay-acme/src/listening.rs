//! Connections to sockets that background work has, and the end of that work.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Most connections to a socket at a time.
const MAX_CONNECTIONS: usize = 64;
/// Time limit of a connection, whatever it does.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after an error of a socket.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The process quits, and another may have the sockets (USR2).
static QUITS: AtomicBool = AtomicBool::new(false);

/// Ends answering over the sockets of this process, and asking for certificates.
pub fn quit() {
    QUITS.store(true, Relaxed);
}

/// Returns `true` after [`quit`].
pub(crate) fn quits() -> bool {
    QUITS.load(Relaxed)
}

/// Accepts connections and serves each for a limited time, until the process quits.
///
/// # Errors
/// If the socket cannot be used.
pub(crate) async fn serve_each<W>(fd: &OwnedFd, serve: impl Fn(TcpStream) -> W) -> io::Result<()>
where
    W: Future<Output = io::Result<()>> + Send + 'static,
{
    let socket = TcpListener::from_std(fd.try_clone()?.into())?;
    let mut places = Places::default();
    loop {
        let accepted = socket.accept().await;
        if quits() {
            // The client asks again, and gets to the other process.
            return Ok(());
        }
        let Ok((connection, client)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // A client that goes away, or takes too long, is no error.
        let served = tokio::spawn(timeout(PATIENCE, serve(connection)));
        places.take(client.ip(), served.abort_handle());
    }
}

/// Connections that are being served, the oldest first.
#[derive(Default)]
struct Places(Vec<(IpAddr, AbortHandle)>);

impl Places {
    /// Adds a connection. If there are too many, the oldest one of the network with the most is closed: a stranger who holds all
    /// places loses them to the authority.
    fn take(&mut self, client: IpAddr, served: AbortHandle) {
        self.0.retain(|(_, other)| !other.is_finished());
        if self.0.len() >= MAX_CONNECTIONS
            && let Some(at) = self.dispensable()
        {
            self.0.remove(at).1.abort();
        }
        self.0.push((network(client), served));
    }

    /// Returns the index of the connection that is closed for another one.
    fn dispensable(&self) -> Option<usize> {
        let held = |network: &IpAddr| self.0.iter().filter(|(n, _)| n == network).count();
        // From the end: of equal ones the last is taken, which is the oldest.
        let places = self.0.iter().enumerate().rev();
        places.max_by_key(|(_, (network, _))| held(network)).map(|(at, _)| at)
    }
}

/// Returns the network of a client: its address, or the first 64 bits of one of IPv6.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[test]
    fn the_network_with_the_most_connections_loses_its_oldest() {
        let tokio = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let task = || tokio.spawn(pending::<()>()).abort_handle();
        let ip = |text: &str| text.parse().expect("an address");
        let mut places = Places::default();
        let (authority, first, second) = (task(), task(), task());
        places.take(ip("192.0.2.1"), authority.clone());
        places.take(ip("2001:db8::1"), first.clone());
        places.take(ip("2001:db8::2"), second.clone());
        (3..MAX_CONNECTIONS).for_each(|n| places.take(ip(&format!("2001:db8::{n}")), task()));
        assert_eq!(places.0.len(), MAX_CONNECTIONS);
        places.take(ip("192.0.2.1"), task());
        // A task that was told to end has ended after a turn.
        tokio.block_on(async { tokio::task::yield_now().await });
        assert!(first.is_finished() && !second.is_finished() && !authority.is_finished());
        second.abort();
        tokio.block_on(async { tokio::task::yield_now().await });
        // A place that is free again is used before another connection is closed.
        places.take(ip("192.0.2.2"), task());
        tokio.block_on(async { tokio::task::yield_now().await });
        assert!(places.0.len() == MAX_CONNECTIONS && places.0.iter().all(|(_, t)| !t.is_finished()));
    }

    /// They have all places, and more wait.
    #[test]
    fn silent_clients_do_not_keep_others_waiting() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let echo = |mut connection: TcpStream| async move {
            let byte = connection.read_u8().await?;
            connection.write_u8(byte).await
        };
        tokio.block_on(async {
            let served = tokio::spawn(async move { serve_each(&listener.into(), echo).await });
            let mut silent = Vec::new();
            for _ in 0..2 * MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.expect("connected"));
            }
            let mut client = TcpStream::connect(address).await.expect("connected");
            client.write_u8(7).await.expect("sent");
            let answer = timeout(Duration::from_secs(20), client.read_u8()).await.expect("no wait");
            assert_eq!(answer.expect("an answer"), 7);
            served.abort();
        });
    }

    #[test]
    fn networks() {
        let of = |text: &str| network(text.parse().expect("an address")).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(of("2001:db8:1:2:3::4"), "2001:db8:1:2::");
    }
}
