//! Queries to name servers: over UDP from a port of its own for each query, over TCP if the answer was truncated. Runs
//! on the process's tokio thread.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::message::{self, Kind, Response};
use super::{Failure, Resolver};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// Time after which a query is sent again, to the next server.
const RESEND: Duration = Duration::from_secs(5);
/// Pause before the next round if no server can be reached.
const PAUSE: Duration = Duration::from_secs(1);
/// Largest number of times that one query is sent.
const ATTEMPTS: usize = 12;

/// Bounds of the queries in flight: `QUICK` holds those that are younger than [`MOMENT`], `SLOW` the older ones. Each takes a
/// descriptor, and names may come from clients. Names that never resolve fill only `SLOW`, so that other queries go on.
static QUICK: Semaphore = Semaphore::const_new(256);
static SLOW: Semaphore = Semaphore::const_new(256);
/// Age from which a query is a slow one. Servers that have the answer are faster.
const MOMENT: Duration = Duration::from_millis(500);

/// Result of one attempt.
enum Got {
    Response(Response),
    /// A response over TCP with any code.
    Whole(Response),
    /// The server cannot be reached.
    Unreachable,
    /// No (usable) answer in time.
    Silence,
}

/// Failed attempts of a query.
#[derive(Default)]
struct Failed {
    unreachable: usize,
    refused: usize,
}

impl Resolver {
    /// Sends a query until a server answers, first to the server with the number `first`. `key` is the cache's entry for
    /// the answer; the query ends when no request waits for that entry any more.
    pub(super) async fn ask(
        &self,
        key: Option<&[u8]>,
        name: &[u8],
        kind: Kind,
        first: usize,
    ) -> Result<Response, Failure> {
        let n = self.servers.len();
        let mut failed = Failed::default();
        for attempt in 0..ATTEMPTS {
            let Some(server) = self.servers.get((first + attempt) % n.max(1)) else { break };
            // All clients that waited for the name may have gone, and then nobody needs the answer.
            if attempt > 0 && key.is_some_and(|k| !self.is_wanted(k)) {
                break;
            }
            // Each attempt has its own number and port, so that guesses for one are worth nothing for the next.
            let query = Query::new(name, kind).ok_or(Failure::NotFound)?;
            let Ok(permit) = QUICK.acquire().await else { break };
            let until = Instant::now() + RESEND;
            let Some((got, permit)) = admitted(query.udp(*server, until), permit, &SLOW, MOMENT).await else {
                // The query goes on as if the server were silent, since it may know the name by the time of
                // the next attempt.
                sleep_until(until).await;
                continue;
            };
            let got = query.complete(got?, *server, until).await?;
            if let Some(response) = failed.last(got, n) {
                return Ok(response);
            }
            if failed.unreachable >= n {
                // The pause needs no descriptor, so the place goes to another query.
                failed.unreachable = 0;
                drop(permit);
                sleep(PAUSE).await;
            }
        }
        Err(Failure::Timeout)
    }
}

impl Failed {
    /// Counts an attempt with one of `n` servers. Returns the response that ends the query.
    fn last(&mut self, got: Got, n: usize) -> Option<Response> {
        match got {
            // Another server may accept what this one does not understand or refuses.
            Got::Response(r) if matches!(r.code, 1 | 4 | 5) => {
                self.refused += 1;
                return (self.refused >= n).then_some(r);
            }
            Got::Response(r) | Got::Whole(r) => return Some(r),
            Got::Unreachable => self.unreachable += 1,
            Got::Silence => {}
        }
        None
    }
}

/// Waits for an answer: for `moment` with the given permit, then with one of `slow`. Returns `None` if there is none.
async fn admitted<'p, T>(
    answer: impl Future<Output = T>,
    permit: SemaphorePermit<'p>,
    slow: &'p Semaphore,
    moment: Duration,
) -> Option<(T, SemaphorePermit<'p>)> {
    let mut answer = std::pin::pin!(answer);
    match timeout(moment, &mut answer).await {
        Ok(answer) => Some((answer, permit)),
        Err(_) => {
            drop(permit);
            // The query does not wait for a place, since queries that never end would queue up here.
            let permit = slow.try_acquire().ok()?;
            Some((answer.await, permit))
        }
    }
}

/// A query.
struct Query<'n> {
    id: u16,
    name: &'n [u8],
    kind: Kind,
    message: Vec<u8>,
}

impl<'n> Query<'n> {
    /// Returns `None` if no query can be made of the name.
    fn new(name: &'n [u8], kind: Kind) -> Option<Query<'n>> {
        // Numbers and ports that cannot be guessed are the only protection from forged answers (RFC 5452, sections 4
        // and 9).
        let id = forebay_sys::random::random_u64() as u16;
        let message = message::query(id, name, kind)?;
        Some(Query { id, name, kind, message })
    }

    fn is_answered_by(&self, message: &[u8]) -> bool {
        message::answers(message, self.id, self.name, self.kind)
    }

    async fn udp(&self, server: SocketAddr, until: Instant) -> Result<Got, Failure> {
        let Ok(socket) = self.sent_from(server).await else { return Ok(Got::Unreachable) };
        // Queries have no EDNS record, so answers have at most 512 bytes (RFC 1035, section 4.2.1).
        let mut buf = [0u8; 4096];
        loop {
            let len = match timeout_at(until, socket.recv(&mut buf)).await {
                Err(_) => return Ok(Got::Silence),
                // A connected UDP socket reports ICMP errors, such as a closed port, as errors of recv(2).
                Ok(Err(_)) => return Ok(Got::Unreachable),
                Ok(Ok(len)) => len,
            };
            let m = buf.get(..len).unwrap_or_default();
            // Anything else may be forged, and the wait goes on. Otherwise a forger could end the query.
            if self.is_answered_by(m) {
                return message::parse(m).map(Got::Response).ok_or(Failure::Format);
            }
        }
    }

    /// Sends the query and returns the socket for the answer.
    async fn sent_from(&self, server: SocketAddr) -> std::io::Result<UdpSocket> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(local).await?;
        // A connected socket receives datagrams of that server only.
        socket.connect(server).await?;
        socket.send(&self.message).await?;
        Ok(socket)
    }

    /// Replaces a truncated answer by an answer over TCP.
    async fn complete(&self, got: Got, server: SocketAddr, until: Instant) -> Result<Got, Failure> {
        match got {
            Got::Response(r) if r.truncated && r.code == 0 => {}
            got => return Ok(got),
        }
        let Ok(Ok(m)) = timeout_at(until, self.tcp(server)).await else { return Ok(Got::Unreachable) };
        let response = message::parse(&m).filter(|r| self.is_answered_by(&m) && !r.truncated);
        response.map(Got::Whole).ok_or(Failure::Format)
    }

    /// Returns the answer over TCP.
    async fn tcp(&self, server: SocketAddr) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(server).await?;
        // RFC 1035, section 4.2.2: over TCP, a message follows its length in two bytes.
        let len = u16::try_from(self.message.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&len.to_be_bytes(), self.message.as_slice()].concat()).await?;
        let len = stream.read_u16().await?;
        let mut m = vec![0; usize::from(len)];
        stream.read_exact(&mut m).await?;
        Ok(m)
    }
}

#[cfg(test)]
mod tests {
    use super::super::both;
    use super::*;

    #[test]
    fn names_that_are_never_answered_leave_places_to_others() {
        let (quick, slow) = (Semaphore::new(2), Semaphore::new(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let moment = Duration::from_millis(10);
            let ask = || async {
                let permit = quick.acquire().await.expect("open");
                admitted(std::future::pending::<()>(), permit, &slow, moment).await.is_some()
            };
            // Four queries without an answer: one of them waits on, the others end.
            let mut never = std::pin::pin!(both(both(ask(), ask()), both(ask(), ask())));
            for _ in 0..1000 {
                assert!(timeout(moment, &mut never).await.is_err(), "one waits for ever");
                if (quick.available_permits(), slow.available_permits()) == (2, 0) {
                    break;
                }
            }
            assert_eq!((quick.available_permits(), slow.available_permits()), (2, 0));
            let permit = quick.acquire().await.expect("open");
            assert!(admitted(async { 1 }, permit, &slow, moment).await.is_some_and(|(n, _)| n == 1));
        });
    }
}
